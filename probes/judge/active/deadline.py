"""Who has joined and whom the others wait for, in one sentence: also what a deadline ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.active import numbers
from mltop.probes.judge.active.nodes import folded

# A launcher's stages as what it is busy with. None was said: its agent has not started it, or cannot.
_STAGES = {
    "start python": "starting Python",
    "import torch": "torch import",
    "listen": "opening its port",
    "join": "meeting the other nodes",
    "init": "making the process group",
}
GROUPS = 3
SAME_S = 5.0  # nodes that are in one stage for times so close are told together


@dataclass(frozen=True)
class Waited:
    """One node. ``stage``: the launcher's, "" before it said any; ``seconds``: in it. ``failed``: it will not come.

    ``reached``: its agent answers; None: unknown.
    """

    node: str
    joined: bool
    stage: str = ""
    seconds: float = 0.0
    failed: str = ""
    reached: bool | None = None


def joined_sentence(waited: Sequence[Waited], elapsed_s: float) -> str:
    """``14 of 16 nodes joined within 12 s; waiting for node-07: ssh fine, torch import 22 s so far``.

    Nodes in one stage are told together, as ``node-[07-09]``; those that failed with their reason.
    """
    joined = sum(one.joined for one in waited)
    count = numbers.many(len(waited), "node")
    if joined == len(waited):
        return f"all {count} joined within {_seconds(elapsed_s)}" if joined > 1 else f"{count} joined"
    if len(waited) == 1 and not waited[0].failed:  # this machine, or one node: nobody else to wait for
        return f"not ready within {_seconds(elapsed_s)}: {_state(waited).removeprefix('ssh fine, ')}"
    parts = [f"{joined} of {count} joined within {_seconds(elapsed_s)}"]
    parts += _grouped("waiting for ", _by_stage([one for one in waited if not one.joined and not one.failed]))
    parts += _grouped("", _by_reason([one for one in waited if one.failed and not one.joined]))
    return "; ".join(parts)


def _grouped(before: str, groups: Sequence[tuple[Sequence[str], str]]) -> list[str]:
    """The largest groups first; what is left over is counted."""
    ordered = sorted(groups, key=lambda group: -len(group[0]))
    said = [f"{before}{folded(nodes)}: {text}" for nodes, text in ordered[:GROUPS]]
    left = [node for nodes, _ in ordered[GROUPS:] for node in nodes]
    return said + ([f"{before}{len(left)} more: {folded(left)}"] if left else [])


def _by_stage(waiting: Sequence[Waited]) -> list[tuple[list[str], str]]:
    groups: list[list[Waited]] = []
    for one in sorted(waiting, key=lambda one: (one.stage, str(one.reached), one.seconds)):
        first = groups[-1][0] if groups else None
        same = first is not None and (first.stage, first.reached) == (one.stage, one.reached)
        if first is not None and same and one.seconds - first.seconds <= SAME_S:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [([one.node for one in group], _state(group)) for group in groups]


def _by_reason(failed: Sequence[Waited]) -> list[tuple[list[str], str]]:
    groups: dict[str, list[str]] = {}
    for one in failed:
        groups.setdefault(one.failed, []).append(one.node)
    return [(nodes, reason) for reason, nodes in groups.items()]


def _state(group: Sequence[Waited]) -> str:
    """A stage was said, so its agent is reached."""
    first, seconds = group[0], _seconds(max(one.seconds for one in group))
    if first.stage:
        return f"ssh fine, {_STAGES.get(first.stage, first.stage)} {seconds} so far"
    if first.reached is False:
        return f"not reached for {seconds}"
    return f"ssh fine, no word of its probe for {seconds}" if first.reached else f"no word of its probe for {seconds}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"
