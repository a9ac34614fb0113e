"""Each start of a job: its events with their ranks and nodes, and what is known of each rank's own lines."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest

from mltop.probes.judge.evidence.jobs import NUMBERS, JobFiles, ranks_in
from mltop.probes.judge.evidence.writers import MOST_RANKS, Ranks, restarts_in
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.evidence.logs import GoodEnds, LogEvent, LogFile

_TROUBLE = ("root", "named", "timeout", "cascade")


@dataclass
class Presence:
    """A rank's own lines, and whether the lack of some of them means anything."""

    file: str  # that has most of them
    lines: int = 0
    is_cut: bool = False  # or lines were left out
    last_at: float | None = None
    last_step: int | None = None
    streams: frozenset[str] = frozenset()  # names of its files without numbers: stdout, stderr, one for both

    @property
    def is_whole(self) -> bool:
        return self.lines > 0 and not self.is_cut


def stream_of(path: str) -> str:
    """What the same file of another rank is called, too."""
    name = path.rpartition("/")[2]
    for ending in (".gz", ".bz2", ".xz", ".zst"):
        name = name.removesuffix(ending)
    return NUMBERS.sub("#", name)


@dataclass
class Attempt:
    """One start of a job. ``events``: with ranks and nodes, as far as they are known; ``world_size``: as a line says: a
    launcher lists ranks that failed, or that it ended, which need not be all.
    """

    number: int
    events: list[LogEvent] = field(default_factory=list)
    presence: dict[int, Presence] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    world_size: int | None = None
    is_thinned: bool = False
    is_cut: bool = False  # a file of ranks ends within a line
    is_cut_in_traceback: bool = False
    ends: dict[str, GoodEnds] = field(default_factory=dict)  # file → where it reports a good end
    _picked: dict[tuple[int, str, tuple[str, ...]], list[LogEvent]] = field(default_factory=dict, repr=False)

    @cached_property
    def ranks(self) -> list[int]:
        """All that are known to exist: ranks are numbered from 0 on."""
        told = {*self.presence, *known(self.by_rank)}
        told.update(rank for event in self.of_class("named") if event.kind != "child_named" for rank in event.named)
        highest = max((rank for rank in told if rank < MOST_RANKS), default=-1)
        return list(range(max(self.world_size or 0, 1 + highest)))

    @cached_property
    def by_rank(self) -> dict[int | None, list[LogEvent]]:
        """The events of each: asked for once all are there."""
        return grouped(self.events, lambda event: event.rank)

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
        complaints = self.of_class("timeout", "cascade")
        return frozenset(stream_of(event.file) for event in complaints if not event.by_launcher)

    @cached_property
    def two_least_steps(self) -> list[tuple[int, int]]:
        """The last step of the two ranks that got least far, with the rank: the least of all others than one."""
        steps = ((each.last_step, rank) for rank, each in self.presence.items() if each.last_step is not None)
        return nsmallest(2, steps)

    @cached_property
    def first_wait(self) -> float | None:
        """When the first of those who waited in vain began to; unix s."""
        return min(known(event.waited_since for event in self.of_class("timeout")), default=None)

    @cached_property
    def first_ends(self) -> dict[str, float]:
        """When the first of those who waited in vain gave up, in each file; unix s."""
        found: dict[str, float] = {}
        for event in self.of_class("timeout"):
            if event.at is not None and event.is_dated:
                found[event.file] = min(event.at, found.get(event.file, event.at))
        return found

    def of_class(self, *classes: str) -> list[LogEvent]:
        return self._with("event_class", classes)

    def of_kind(self, *kinds: str) -> list[LogEvent]:
        return self._with("kind", kinds)

    def _with(self, field_name: str, values: tuple[str, ...]) -> list[LogEvent]:
        """Not to be changed: it is asked for again for every event."""
        key = (len(self.events), field_name, values)
        if key not in self._picked:
            self._picked[key] = [event for event in self.events if getattr(event, field_name) in values]
        return self._picked[key]

    @property
    def troubles(self) -> list[LogEvent]:
        """What speaks of a bad end."""
        return [
            event
            for event in self.events
            if not event.survived
            and (
                event.event_class in _TROUBLE
                or (event.kind == "exit" and event.code and event.how != "stopped")
                or (event.kind in ("agent_failed", "launcher_failed") and event.code not in (None, 0, -signal.SIGTERM))
            )
        ]


def attempts_of(job: JobFiles) -> list[Attempt]:
    """Each start of the job by itself, the first one first."""
    ranks = Ranks(job.files)
    by_number: dict[int, dict[str, list[LogEvent]]] = {number: {} for number in known(f.attempt for f in job.files)}
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
        found.is_cut_in_traceback |= file.is_cut_in_traceback
        if file.good_ends.latest:
            found.ends[file.path] = file.good_ends
        _note_presence(found, file, ranks)
    for event in found.events:
        if event.rank is not None and event.node:
            found.nodes.setdefault(event.rank, event.node)
    told = [event.sequence for event in found.of_kind("world") if event.sequence and event.sequence <= MOST_RANKS]
    found.world_size = max(told, default=None)
    return found


def _note_presence(attempt: Attempt, file: LogFile, ranks: Ranks) -> None:
    """Both streams of a rank count together."""
    is_own = ranks.of_file(file) is not None
    speaking = ranks.speaking_in(file)
    for rank in speaking if is_own else speaking | ranks_in(file):
        own = attempt.presence.setdefault(rank, Presence(file.path))
        if file.is_error_file or rank not in speaking:
            continue
        own.file = file.path if file.lines > own.lines else own.file
        own.lines += file.lines
        own.is_cut |= file.lines > 0 and (file.is_cut or file.is_thinned or bool(file.gaps))
        own.streams |= {stream_of(file.path)}
        if is_own:
            own.last_at = max(known((own.last_at, file.last_at)), default=None)
            own.last_step = max(known((own.last_step, file.last_step)), default=None)
