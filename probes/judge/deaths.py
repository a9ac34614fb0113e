"""In which order the ranks of a job died, and whose death was the first that can have ended the others.

A rank that dies of its own (a signal that nobody sends, memory, an exception) takes the others with it: their
connections close, their watchdogs abort them (SIGABRT), their launcher stops them. Those are no causes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mltop.probes.model import RankDeath
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import clock_time, signal_name, time_words
from mltop.probes.model.vocabulary import CulpritKind

# Two ends on one node whose times the kernel reported are in order; all others may be in either. A pidfd tells how a
# process ended and not when.
_EXACT = ("proc connector", "kernel log")
EXACT_S, ROUGH_S = 0.02, 1.5
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FOLLOW = (signal.SIGABRT, signal.SIGPIPE)  # a watchdog's way to end, and that of who writes to a peer that is gone
# What a rank says that lost its peer, or waited for it in vain.
_OF_A_PEER = re.compile(
    r"(?i)connection (was )?(closed|reset|refused|aborted)|closed by (the )?(remote )?peer|broken pipe|socket closed|"
    r"ncclRemoteError|remote process exited|DistNetworkError|timed? ?out|watchdog"
)


@dataclass(frozen=True)
class Death:
    node: str
    report: RankDeath

    @property
    def rank(self) -> int | None:
        return self.report.rank

    @property
    def is_exact(self) -> bool:
        return any(source in _EXACT for source in self.report.told_by.split(", "))

    @property
    def strength(self) -> int:
        """How well it explains that others died: 0 well, 1 perhaps, 2 it is rather explained by another, 3 not."""
        report = self.report
        if report.how == "signal" and report.code in _ASKED:
            return 3
        if report.how == "oom" or (report.how == "signal" and report.code not in _FOLLOW):
            return 0
        if report.how == "signal" or _is_of_a_peer(report):
            return 2
        if report.how != "exit" or report.code == 0:
            return 3
        return 0 if report.error else 1

    @property
    def is_in_vain(self) -> bool:
        """It says itself that it waited for a peer, or lost one."""
        return _is_of_a_peer(self.report)

    def words(self) -> str:
        """``killed by SIGKILL``; a text from an error file last."""
        return _with_error(self.report, _how(self.report))


@dataclass
class Deaths:
    """``firsts``: those that can have ended the others, several when their order is unknown; ``sure``: it is known."""

    all: list[Death] = field(default_factory=list)
    firsts: list[Death] = field(default_factory=list)
    sure: bool = False

    @property
    def _others(self) -> list[Death]:
        """There may be thousands of either."""
        firsts = set(map(id, self.firsts))
        return [death for death in self.all if id(death) not in firsts]

    def is_consequence(self, rank: int) -> bool:
        """Another death explains it."""
        return bool(self.firsts) and rank not in self._first_ranks

    @cached_property
    def _first_ranks(self) -> frozenset[int | None]:
        return frozenset(death.rank for death in self.firsts)

    @property
    def all_finished(self) -> bool:
        """Every one of them with exit code 0."""
        return bool(self.all) and all(ended_well(death.report) for death in self.all)

    def lead(self) -> str:
        """``, 0.4 s before the others``; "" where there are none, or nobody knows."""
        times = [death.report.at for death in self._others if death.report.at is not None]
        first = self.firsts[0].report.at if len(self.firsts) == 1 else None
        if first is None or not times or min(times) <= first:
            return ""
        others = "the others" if len(times) > 1 else "the other"
        return f", {time_words(min(times) - first)} before {others}"

    def lines(self) -> list[str]:
        """The first ones with their times, and how the others ended, a line for each way."""
        first = " first" if len(self.all) > 1 else ""
        lines = [
            f"{_name(death)} {_ended(death)}{first}: {death.words()}{self.lead()}{_at(death)}"
            for death in self.firsts[:1]
        ]
        if len(self.firsts) > 1:
            together = ranks_text(sorted(death.rank for death in self.firsts if death.rank is not None))
            lines = [f"{together} {_ended(self.firsts[0])} {_span(self.firsts)}: which was first is not known"]
            lines += [f"{_name(death)}: {death.words()}{_at(death)}" for death in self.firsts[:_MOST_LINES]]
        if any(death.report.code == signal.SIGABRT and death.report.how == "signal" for death in self.firsts):
            lines.append("SIGABRT is also how a watchdog ends a rank that waited in vain: its log says which")
        ways: dict[str, list[int]] = {}
        for death in self._others:
            if death.rank is not None and death.report.how != "unknown":
                ways.setdefault(death.words(), []).append(death.rank)
        return lines + [f"{ranks_text(sorted(ranks))}: {way}" for way, ranks in list(ways.items())[:_MOST_LINES]]


_MOST_LINES = 4


def order_of(deaths: Sequence[Death]) -> Deaths:
    """Who died first of those that died of their own; nobody where what was first is a consequence, as a rule."""
    dated = sorted(deaths, key=lambda death: (death.report.at is None, death.report.at or 0.0))
    causes = [death for death in dated if death.strength < 2]
    left = [death for death in dated if ended_well(death.report)]
    found = Deaths(dated, _left_before(dated))
    if found.firsts:
        others = [death for death in dated if not ended_well(death.report)]
        found.sure = len(found.firsts) == 1 and all(_is_before(found.firsts[0], other) for other in others)
        return found
    if not causes:
        found.firsts = _only_one_not_asked(dated)
        return found
    earliest = causes[0]
    together = [death for death in causes if _together(earliest, death)]
    strongest = min(death.strength for death in together)
    found.firsts = [death for death in together if death.strength == strongest]
    before = [death for death in dated if death.strength == 2 and _is_before(death, found.firsts[0])]
    if before and strongest:
        found.firsts = []  # an exit without a word may follow from those
    in_doubt = any(_together(death, first) for death in left for first in found.firsts)
    found.sure = len(found.firsts) == 1 and not before and not in_doubt
    return found


def _left_before(dated: Sequence[Death]) -> list[Death]:
    """Those few that came to an end of their own with exit code 0, after which the others fell for want of them.

    Nobody where the order is not known: then the others may have failed first. Where as many or more ended well, one
    that did not may have failed in what it did last; unless it says itself that it lost a peer. What a rank dies of by
    itself explains more, and who was stopped from outside did not fall.
    """
    left = [death for death in dated if ended_well(death.report)]
    others = [death for death in dated if not ended_well(death.report)]
    fell = [death for death in others if death.strength in (1, 2)]
    if not left or not fell or any(death.strength == 0 for death in others):
        return []
    if any(other.report.at is None or not _is_before(death, other) for death in left for other in others):
        return []
    if len(left) >= len(others) and not all(
        _is_before(left[-1], other) and _is_of_a_peer(other.report) for other in fell
    ):
        return []
    return left


def _only_one_not_asked(dated: Sequence[Death]) -> list[Death]:
    """The one that aborted, where all others were asked to end: their launcher does so when a rank has ended.

    What ends for want of a peer, or was asked before it, may have made it abort.
    """
    aborted = [death for death in dated if death.report.how == "signal" and death.report.code == signal.SIGABRT]
    asked = [death for death in dated if death.strength == 3 and death.report.how in ("signal", "stopped")]
    if len(aborted) != 1 or not asked or len(asked) + 1 < len(dated):
        return []
    if any(_is_before(death, aborted[0]) for death in asked) or _is_of_a_peer(aborted[0].report):
        return []
    return aborted


def _is_of_a_peer(report: RankDeath) -> bool:
    return bool(report.error and _OF_A_PEER.search(report.error))


def _together(death: Death, other: Death) -> bool:
    """Their order is not known."""
    if death.report.at is None or other.report.at is None:
        return True
    return abs(other.report.at - death.report.at) <= _slack_s(death, other)


def _is_before(death: Death, other: Death) -> bool:
    if death.report.at is None or other.report.at is None:
        return False
    return other.report.at - death.report.at > _slack_s(death, other)


def _slack_s(death: Death, other: Death) -> float:
    return EXACT_S if death.node == other.node and death.is_exact and other.is_exact else ROUGH_S


def end_of(death: RankDeath) -> str:
    """ "rank 6 (pid 4711) was killed by SIGKILL"."""
    who = f"rank {death.rank} (pid {death.pid})" if death.rank is not None else f"a rank (pid {death.pid})"
    was = " was" if death.how in ("oom", "signal", "stopped") else ""
    return _with_error(death, f"{who}{was} {_how(death)}")


def _how(death: RankDeath) -> str:
    return {
        "oom": "killed by the kernel for want of memory",
        "signal": f"killed by {ended_by(death.code)}{' (core dumped)' if death.dumped_core else ''}",
        "stopped": "stopped from outside" + (f" ({ended_by(death.code)})" if death.code else ""),
        "exit": "exited" + ("" if death.code is None else f" with code {death.code}"),
    }.get(death.how, "ended, cause unknown")


def _with_error(death: RankDeath, text: str) -> str:
    return f"{text}: {death.error}" if death.error else text


def ended_well(death: RankDeath) -> bool:
    return death.how == "exit" and death.code == 0


def kind_of_end(death: RankDeath) -> CulpritKind:
    """What a rank did that others waited for, or fell for."""
    return "left" if ended_well(death) else "dead"


def is_own_fault(death: RankDeath) -> bool:
    """Whether it ended by a failure of its own (or an unknown one), not well and not stopped by others."""
    return death.how != "stopped" and not ended_well(death)


def ended_by(number: int | None) -> str:
    """``SIGKILL``; an exit code of 128 and more stands for a signal, too."""
    return "a signal" if number is None else signal_name(number - 128 if number > 128 else number)


def _name(death: Death) -> str:
    return f"pid {death.report.pid}" if death.rank is None else f"rank {death.rank}"


def _at(death: Death) -> str:
    return "" if death.report.at is None else f" (at {clock_time(death.report.at)})"


def _ended(death: Death) -> str:
    return "ended" if ended_well(death.report) else "died"


def _span(deaths: Sequence[Death]) -> str:
    times = [death.report.at for death in deaths if death.report.at is not None]
    if len(times) < len(deaths):
        return "within a time unknown of each other"
    span_s = max(times) - min(times)
    return "in the same moment" if span_s < EXACT_S else f"within {time_words(span_s)} of each other"
