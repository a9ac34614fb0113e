"""Who says nothing while all others complain. That a line is missing proves something only where it would be there."""

from __future__ import annotations

import signal
from collections.abc import Set
from dataclasses import dataclass

from mltop.probes.judge.evidence.scene import Attempt

LEAST_COVERAGE = 0.95
_MOST_STEPS_BEHIND = 3  # a file that ends earlier than the others' was cut off, or buffered


@dataclass(frozen=True)
class Silence:
    """``ranks``: whose silence tells; ``lacking``: those of whom nothing can be told."""

    ranks: tuple[int, ...] = ()
    lacking: tuple[int, ...] = ()


def silent_ranks(attempt: Attempt, complaining: Set[int | None], most: int | None = None) -> Silence:
    """``most``: more of them at once tell nothing, as some may have been about to complain."""
    ranks = attempt.ranks
    # Who aborted as the others did was ended by its own watchdog, whose lines are not here.
    rows = attempt.of_kind("exit")
    aborted = {event.rank for event in rows if event.how == "signal" and event.code == signal.SIGABRT}
    silent = [rank for rank in ranks if rank not in complaining and rank not in aborted]
    if not silent or not complaining or len(ranks) < 2:
        return Silence()
    lacking = tuple(rank for rank in silent if not would_have_spoken(attempt, rank))
    heard = set(silent) - set(lacking)
    if lacking or attempt.is_thinned or not heard:
        return Silence((), lacking or tuple(silent))
    limit = most if most is not None else max(1, int(len(ranks) * (1 - LEAST_COVERAGE)))
    nodes = {attempt.nodes.get(rank, "") for rank in silent}
    of_one_node = most is None and len(nodes) == 1 and "" not in nodes and len(set(attempt.nodes.values())) > 2
    whole_node = of_one_node and all(rank in silent for rank in ranks if attempt.nodes.get(rank, "") in nodes)
    if len(silent) > limit and not whole_node:
        return Silence((), tuple(silent))
    return Silence(tuple(silent))


def would_have_spoken(attempt: Attempt, rank: int) -> bool:
    """Its file is there, has lines, and was not cut off; or the launcher ended it while it was at work."""
    own = attempt.presence.get(rank)
    rows = attempt.by_rank.get(rank, ())
    # A launcher that ends one process, and has no row for one rank, ended that one.
    told_to_end = {event.pid for event in attempt.of_kind("terminated") if event.pid is not None}
    others = {event.rank for event in attempt.of_kind("exit")}
    stopped = any(event.kind == "exit" and event.how == "stopped" for event in rows) or (
        len(told_to_end) == 1 and [each for each in attempt.ranks if each not in others] == [rank]
    )
    if own is None or own.lines == 0:
        return stopped and any(
            event.rank is not None and event.rank != rank and not event.by_launcher
            for event in attempt.of_class("timeout", "cascade")
        )
    if not own.is_whole or not own.streams & attempt.complaining_streams:
        return False  # its stdout alone proves nothing of its stderr
    steps = [step for step in attempt.two_least_steps if step[1] != rank]
    return not (steps and own.last_step is not None and steps[0][0] - own.last_step > _MOST_STEPS_BEHIND)
