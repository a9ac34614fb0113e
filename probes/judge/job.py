"""One job as the judge sees it: who waits, who does not, who cannot be read, and how long it was watched."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.classes import by_place
from mltop.probes.judge.evidence import JobEvidence
from mltop.probes.judge.fold import fold, ranks_text
from mltop.probes.judge.frames import key_of, where
from mltop.probes.judge.roster import Roster, read_roster
from mltop.probes.judge.view import BACKWARD, RankView, known_waits, with_wait
from mltop.probes.model import CONFIDENCES, Confidence, Gap, StackDigest, Waiting


@dataclass
class JobView:
    """``views`` are the ranks with a live process on a node that answered; the lists below divide them."""

    roster: Roster
    stopped: list[RankView] = field(default_factory=list)
    waiters: list[RankView] = field(default_factory=list)
    others: list[RankView] = field(default_factory=list)  # readable, and in no collective
    unreadable: list[RankView] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def views(self) -> list[RankView]:
        return self.roster.views

    @property
    def running(self) -> list[RankView]:
        return [*self.waiters, *self.others]

    @property
    def mostly_stopped(self) -> bool:
        """At least half of the ranks are stopped: whatever the others do, the job does not get on."""
        return bool(self.stopped) and 2 * len(self.stopped) >= len(self.views)

    @cached_property
    def window_s(self) -> float:
        """How long the waiting ranks (or all, when none waits) were watched: what half of them reach."""
        watched = self.waiters or self.running
        return statistics.median(view.window_s for view in watched) if watched else 0.0

    @cached_property
    def quiet_s(self) -> float | None:
        """How long before the first dump the waiting ranks stood still; None when too few have a history."""
        known = [view.seen.quiet_s for view in self.waiters if view.seen.quiet_s is not None]
        return min(known) if known and 2 * len(known) >= len(self.waiters) else None

    @cached_property
    def counted(self) -> bool:
        """The counters of most waiting ranks could be read."""
        known = sum(view.motion.switches is not None for view in self.waiters)
        return 2 * known > len(self.waiters)

    @property
    def known_s(self) -> float:
        """For how long the standstill is known: watched, and quiet before that."""
        return self.window_s + (self.quiet_s or 0.0)

    @property
    def watched(self) -> str:
        """Of ranks that "did not move": ``for 5.0 s (quiet for 3 min 20 s before that)``.

        One look alone shows no standstill: then the samples before it do, or nothing does.
        """
        quiet_s = self.quiet_s or 0.0
        quiet = f"for {duration(quiet_s)}" if quiet_s >= limit.TOLD_QUIET_S else ""
        if self.window_s < limit.TOLD_WINDOW_S:
            return f"{quiet} before the dump" if quiet else "(seen once)"
        return f"for {self.window_s:.1f} s" + (f" (quiet {quiet} before that)" if quiet else "")

    @property
    def enough_time(self) -> bool:
        return self.window_s >= limit.WINDOW_LEAST_S or (self.quiet_s or 0.0) >= limit.QUIET_SHORT_S

    def confidence(self, *caps: Confidence) -> Confidence:
        """How surely it stands still, and not more than any of ``caps``.

        Lower when other threads of waiting ranks do I/O, when ranks are unseen or unreadable, or when a wait is a
        guess (autograd).
        """
        found: list[Confidence] = [self.standstill, *caps]
        unknown = self.roster.unseen or self.roster.silent or self.unreadable
        guessed = any(view.waiting_in == BACKWARD for view in self.waiters)
        if unknown or guessed or any(view.motion.calling() for view in self.waiters):
            found.append("medium")
        return max(found, key=CONFIDENCES.index)

    @cached_property
    def standstill(self) -> Confidence:
        """How surely nothing moves, whoever is to blame.

        high: watched for 5 s, or quiet for 30 s before; low: under 3 s and not even quiet for 10 s, or with unknown
        counters (stacks alone look alike in a slow healthy job).
        """
        quiet_s = self.quiet_s or 0.0
        if not self.counted and self.quiet_s is None:
            return "low"
        if self.window_s >= limit.WINDOW_LONG_S - limit.WINDOW_SLACK_S or quiet_s >= limit.QUIET_LONG_S:
            return "high"
        if self.window_s < limit.WINDOW_SHORT_S and quiet_s < limit.QUIET_SHORT_S:
            return "low"
        return "medium"


def read_job(evidence: JobEvidence) -> JobView:
    roster = read_roster(evidence)
    job = JobView(roster, gaps=list(roster.gaps))
    _share_waits(roster.views)
    for view in roster.views:
        if view.stopped:
            job.stopped.append(view)
        elif not view.readable:
            job.unreadable.append(view)
        elif view.waiting_in is not None and not _computes(view):
            job.waiters.append(view)
        else:
            job.others.append(view)
    job.gaps.extend(_unreadable_gaps(job.unreadable))
    return job


def _share_waits(views: Sequence[RankView]) -> None:
    """What native frames of one rank show holds for a rank at the same place that was read without them."""
    if not any(_shows_native(view.now) for view in views if view.readable):
        return
    known = known_waits(main for view in views for main in view.mains if _shows_native(main))
    for view in views:
        for at, main in enumerate(view.mains):
            if not _shows_native(main):
                view.mains[at] = with_wait(main, {} if main.waiting_in else known)
                view.waits[at] = view.waits[at] or view.mains[at].waiting_in


def _shows_native(main: StackDigest) -> bool:
    return main.frames[0].native


def _computes(view: RankView) -> bool:
    """Autograd that burns CPU computes gradients; only one that sleeps may wait for those of others."""
    return view.waiting_in == BACKWARD and view.spins


def names(views: Sequence[RankView]) -> str:
    """``ranks 0-1,3``, or pids for processes without a rank."""
    numbers = [view.rank for view in views if view.rank is not None]
    pids = ", ".join(view.name for view in views if view.rank is None)
    return " and ".join(filter(None, (ranks_text(numbers) if numbers else "", pids)))


def waiting_place(view: RankView) -> str:
    """``all_reduce, called from train (case.py:60)``."""
    return f"{view.waiting_in}, called from {where(view.now)}"


def waiting_lines(views: Iterable[RankView]) -> list[Waiting]:
    """One line per place, the fullest first. Ranks without a number are counted as none."""
    places: dict[tuple[str, str | None], str] = {}  # thousands of ranks stand in a few places

    def text(view: RankView) -> str:
        key = (key_of(view.now), view.waiting_in)
        if key not in places:
            places[key] = waiting_place(view)
        return places[key]

    groups = by_place((-1 if view.rank is None else view.rank, text(view)) for view in views)
    lines = [Waiting(fold(rank for rank in ranks if rank >= 0), text) for text, ranks in groups.items()]
    return sorted(lines, key=lambda line: -len(groups[line.where]))


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _unreadable_gaps(views: Sequence[RankView]) -> list[Gap]:
    """One gap per reason."""
    reasons: dict[tuple[str, str], list[RankView]] = {}
    for view in views:
        digest = view.error
        reason = (digest.error or "", digest.fix) if digest else ("no stack was taken", "")
        reasons.setdefault(reason, []).append(view)
    return [
        Gap("stacks." + (fold(view.rank for view in hit if view.rank is not None) or hit[0].name), why, fix)
        for (why, fix), hit in reasons.items()
    ]
