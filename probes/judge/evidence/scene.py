"""Each start of a job: its events with their ranks and nodes, and what is known of each rank's own lines."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest

from mltop.probes.judge.evidence.jobs import JobFiles, ranks_in
from mltop.probes.judge.evidence.writers import MOST_RANKS, Ranks, restarts_in
from mltop.probes.model.evidence.logs import GoodEnds, LogEvent, LogFile

_NUMBERS = re.compile(r"\d+")
_TROUBLE = ("root", "named", "timeout", "cascade")


@dataclass
class Presence:
    """Where a rank's own lines stand, and whether that there are none of a kind means anything."""

    file: str = ""
    lines: int = 0
    is_whole: bool = False  # it has lines, and nothing was cut off or left out
    last_at: float | None = None
    last_step: int | None = None
    streams: frozenset[str] = frozenset()  # names of its files without numbers: stdout, stderr, one for both


def stream_of(path: str) -> str:
    """What the same file of another rank is called, too."""
    name = path.rpartition("/")[2]
    for ending in (".gz", ".bz2", ".xz", ".zst"):
        name = name.removesuffix(ending)
    return _NUMBERS.sub("#", name)


@dataclass
class Attempt:
    """One start of a job. ``events``: with ranks and nodes, as far as they are known; ``world_size``: as told."""

    number: int
    events: list[LogEvent] = field(default_factory=list)
    presence: dict[int, Presence] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    world_size: int | None = None
    is_thinned: bool = False
    is_cut: bool = False  # a file of ranks ends within a line
    ends: dict[str, GoodEnds] = field(default_factory=dict)  # file → where it reports a good end
    _picked: dict[tuple[int, bool, tuple[str, ...]], list[LogEvent]] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> list[int]:
        """All that are known to exist: ranks are numbered from 0 on."""
        known = set(self.presence) | {event.rank for event in self.events if event.rank is not None}
        known.update(rank for event in self.of_class("named") if event.kind != "child_named" for rank in event.named)
        highest = max((rank for rank in known if rank < MOST_RANKS), default=-1)
        return list(range(max(self.world_size or 0, 1 + highest)))

    @cached_property
    def by_rank(self) -> dict[int | None, list[LogEvent]]:
        """The events of each: asked for once all are there."""
        found: dict[int | None, list[LogEvent]] = {}
        for event in self.events:
            found.setdefault(event.rank, []).append(event)
        return found

    @cached_property
    def clock_doubt_s(self) -> float:
        """How far apart the nodes' clocks may be: all nodes began to wait, or lost others, at about the same time."""
        firsts = self.first_troubles.values()
        return max(firsts) - min(firsts) if len(firsts) > 1 else 0.0

    @cached_property
    def first_troubles(self) -> dict[str, float]:
        """When each node, or file where that is not known, first waited or lost others; unix s of its own clock."""
        firsts: dict[str, float] = {}
        for event in self.of_class("timeout", "cascade"):
            if event.at is not None and event.is_dated and not event.by_launcher:
                began = event.at - (event.ran_s or 0.0)
                place = event.node or event.file
                firsts[place] = min(began, firsts.get(place, began))
        return firsts

    @cached_property
    def complaining_streams(self) -> frozenset[str]:
        """In which of their files ranks complain of others."""
        return frozenset(
            stream_of(event.file) for event in self.of_class("timeout", "cascade") if not event.by_launcher
        )

    @cached_property
    def two_least_steps(self) -> list[tuple[int, int]]:
        """The last step of the two ranks that got least far, with the rank: the least of all others than one."""
        steps = ((each.last_step, rank) for rank, each in self.presence.items() if each.last_step is not None)
        return nsmallest(2, steps)

    @cached_property
    def first_wait(self) -> float | None:
        """When the first of those who waited in vain began to; unix s."""
        begun = (event.waited_since for event in self.of_class("timeout"))
        return min((at for at in begun if at is not None), default=None)

    @cached_property
    def first_ends(self) -> dict[str, float]:
        """When the first of those who waited in vain gave up, in each file; unix s."""
        found: dict[str, float] = {}
        for event in self.of_class("timeout"):
            if event.at is not None and event.is_dated:
                found[event.file] = min(event.at, found.get(event.file, event.at))
        return found

    def of_class(self, *classes: str) -> list[LogEvent]:
        """Not to be changed: it is asked for again for every event."""
        key = (len(self.events), True, classes)
        if key not in self._picked:
            self._picked[key] = [event for event in self.events if event.event_class in classes]
        return self._picked[key]

    def of_kind(self, *kinds: str) -> list[LogEvent]:
        """Not to be changed, either."""
        key = (len(self.events), False, kinds)
        if key not in self._picked:
            self._picked[key] = [event for event in self.events if event.kind in kinds]
        return self._picked[key]

    @property
    def troubles(self) -> list[LogEvent]:
        """What speaks of a bad end."""
        return [
            event
            for event in self.events
            if (event.event_class in _TROUBLE and not event.survived)
            or (event.kind == "exit" and event.code and event.how != "stopped" and not event.survived)
            or (
                event.kind in ("agent_failed", "launcher_failed")
                and event.code not in (None, 0, -signal.SIGTERM)
                and not event.survived
            )
        ]


def attempts_of(job: JobFiles) -> list[Attempt]:
    """Each start of the job by itself, the first one first."""
    ranks = Ranks(job.files)
    by_number: dict[int, dict[str, list[LogEvent]]] = {
        file.attempt: {} for file in job.files if file.attempt is not None
    }
    for file in job.files:
        for event in file.events:
            by_number.setdefault(event.attempt, {}).setdefault(file.path, []).append(event)
        restarts = restarts_in(file)
        gave_up = any(event.kind == "exit" for event in file.events)
        if restarts and not gave_up and max(file.last_step_line, file.good_ends.latest) > restarts[-1]:
            by_number.setdefault(len(restarts), {})  # it went on without another event
    return [_attempt(number, job.files, by_number.get(number, {}), ranks) for number in sorted(by_number or {0: {}})]


def _attempt(number: int, files: Sequence[LogFile], told_in: Mapping[str, Sequence[LogEvent]], ranks: Ranks) -> Attempt:
    """``told_in``: the events of this attempt, of each file."""
    found = Attempt(number)
    for file in files:
        if file.attempt not in (None, number):
            continue
        placed = [each for event in told_in.get(file.path, ()) for each in ranks.placed(event, file)]
        found.events += [event for event in placed if not (event.survived and event.kind != "exception")]
        found.is_thinned = found.is_thinned or file.is_thinned
        found.is_cut = found.is_cut or (file.is_cut and (bool(file.speakers) or len(files) == 1))
        if file.good_ends.latest:
            found.ends[file.path] = file.good_ends
        _note_presence(found, file, ranks)
    for event in found.events:
        if event.rank is not None and event.node:
            found.nodes.setdefault(event.rank, event.node)
    told = [event.sequence for event in found.of_kind("world") if event.sequence and event.sequence <= MOST_RANKS]
    found.world_size = max(told, default=None)
    rows = {event.rank for event in found.of_kind("exit") if event.rank is not None}
    if found.world_size is None and rows and rows == set(range(max(rows) + 1)):
        found.world_size = max(rows) + 1
    return found


def _note_presence(attempt: Attempt, file: LogFile, ranks: Ranks) -> None:
    own = ranks.of_file(file)
    speaking = ranks.speaking_in(file)
    for rank in {own} if own is not None else ranks_in(file) | speaking:
        if rank is None:
            continue
        before = attempt.presence.get(rank)
        spoke = own is not None or rank in speaking
        if file.is_error_file or not spoke:
            attempt.presence.setdefault(rank, Presence(file.path))
            continue
        here = Presence(
            file.path,
            file.lines,
            file.lines > 0 and not file.is_cut and not file.is_thinned and not file.gaps,
            file.last_at if own is not None else None,
            file.last_step if own is not None else None,
            frozenset((stream_of(file.path),)),
        )
        attempt.presence[rank] = here if before is None else _both(before, here)


def _both(one: Presence, other: Presence) -> Presence:
    """stdout and stderr."""
    times = [each.last_at for each in (one, other) if each.last_at is not None]
    steps = [each.last_step for each in (one, other) if each.last_step is not None]
    fuller = one if one.lines >= other.lines else other
    cut = any(each.lines and not each.is_whole for each in (one, other))
    whole = (one.is_whole or other.is_whole) and not cut
    streams = one.streams | other.streams
    return Presence(
        fuller.file, one.lines + other.lines, whole, max(times, default=None), max(steps, default=None), streams
    )
