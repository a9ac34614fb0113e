"""What rules say of each other: which of several causes is reported, and what they do to ranks and to peers."""

from __future__ import annotations

BRIDGE = "PCIe bridge"  # the subject of what has failed above a device that is gone

# One cause, one line: of findings that explain each other the one with the lowest number is reported.
GPU_LOST, DRIVER, FABRIC, LINK_DOWN, MEMORY_ERRORS, LINK_ERRORS, THROTTLE, SYMPTOM = range(1, 9)

# What befalls ranks and is no finding: a process has ended, ranks stand still, a job gets on more slowly than it did.
RANK_ENDED, RANK_STALLED, RANK_SLOWED = "rank.ended", "rank.stalled", "rank.slowed"
OF_RANKS = (RANK_ENDED, RANK_STALLED, RANK_SLOWED)
# What relations to ranks and to peers often name: a fault that stops work, one that only slows it, and what ports on
# other nodes complain of when their peer does not answer, or not in time.
STOPS = (RANK_ENDED, RANK_STALLED, "job.hang", "job.odd_rank")
SLOWS = (RANK_SLOWED, "job.straggler")
SILENT_PEER = ("ib.transport",)
SLOW_PEER = (*SILENT_PEER, "ib.discards", "ib.wait", "roce.slow")


def is_named(rule_id: str, patterns: tuple[str, ...]) -> bool:
    """Whether an id is among those that a relation names, whole or by their beginning ("gpu.")."""
    return rule_id in patterns or any(rule_id.startswith(pattern) for pattern in patterns if pattern.endswith("."))
