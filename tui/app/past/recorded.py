"""The past of a recording or a capture: its samples as they are, and what the health rules make of all of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mltop.probes.investigate.diagnosis import Diagnosis, with_told
from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import Incident, JobReport, KernelEvent, NodeState, RankDeath, Sample
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.reach.receiving import UNREADABLE, sample_of_line, why_unreadable
from mltop.probes.reach.records import state_by_age
from mltop.probes.reach.view import FleetView, NodeView, Received
from mltop.probes.record import OpenRecording, StoredSamples
from mltop.probes.record.decoding import BadRecording, decode_sample
from mltop.tui.app.feed import Picture
from mltop.tui.app.judging import happened_by
from mltop.tui.app.past.past import Past
from mltop.tui.render.findings import state_findings
from mltop.tui.render.guarded import guarded

FEW_NODES, SHORT_STEP_S, LONG_STEP_S = 8, 1.0, 5.0  # of recorded time between two looks at what is told
BEGINS_WITHIN_S = 10.0
TOLD_EVERY = 0.02  # of the whole: how often the screen hears how far it is
PAUSE_S = 0.001
AT_ONCE, READ_TOLD_S = 8, 0.5  # samples that are read between two looks of others, and how often the screen hears of it


class RecordedPast(Past):
    """``judge`` goes over all samples once, in a thread of its caller; what they say themselves is there at once.

    ``states``: of nodes as the capture tells them, for those that it has no sample of.
    """

    def __init__(self, samples: StoredSamples, states: Sequence[NodeState] = (), ended_at: float = -math.inf) -> None:
        """``ended_at``: when it ended, where that is later than its newest sample. Raises BadRecording for nothing."""
        super().__init__()
        if not samples:
            raise BadRecording("there are no samples in it")
        self._samples, self._ended_at = samples, ended_at
        self._states = {state.node: state for state in states}
        self._take_bounds()
        self._shown: dict[str, tuple[float, Received]] = {}  # what was looked at last
        self._judged: set[str] = set()  # nodes whose newest sample the rules have seen
        self._events: dict[str, Sequence[KernelEvent | RankDeath]] = {}
        self.judged_until = -math.inf
        self.unreadable: set[tuple[str, float]] = set()  # samples that the rules had to pass by

    def _take_bounds(self) -> None:
        samples = self._samples
        self._order = tuple(dict.fromkeys([*self._states, *samples]))
        self.began, self.newest_at = samples.oldest_at, max(self._ended_at, samples.newest_at)

    def read_on(self, recording: OpenRecording, stopped: threading.Event, on_progress: Callable[[], object]) -> str:
        """Read all that is still to be read, from one thread; others look at what is there meanwhile. Returns what is
        wrong with it; what was read until then stays.
        """
        told_at, more, problem = time.monotonic(), True, ""
        while more and not stopped.is_set():
            time.sleep(PAUSE_S)  # for the one that draws
            with self._lock:
                try:
                    more = recording.read(AT_ONCE)
                except BadRecording as error:
                    more, problem = False, str(error)
                self._take_bounds()
            if time.monotonic() - told_at > READ_TOLD_S:
                told_at = time.monotonic()
                on_progress()
        self.is_complete = True
        on_progress()
        return problem or (f"{recording.path.name} is cut off" if recording.cut_off else "")

    @property
    def all_seen_at(self) -> float:
        """When every node that is there from the beginning has said something."""
        began = self.began or 0.0
        firsts = [own.oldest_at for own in self._samples.values()]
        return max((first for first in firsts if first - began < BEGINS_WITHIN_S), default=began)

    @property
    def judged_share(self) -> float:
        """How much of it the rules have gone over."""
        whole_s = self.newest_at - (self.began or 0.0)
        if self.judged_until >= self.newest_at:
            return 1.0
        return 0.0 if whole_s <= 0 else max(0.0, (self.judged_until - (self.began or 0.0)) / whole_s)

    def picture(self, moment: float) -> Picture:
        """As it was recorded; what the rules say is not known of what they have not gone over."""
        picture = super().picture(moment)
        if moment <= self.judged_until:
            return picture
        return Picture(picture.view, not_judged=frozenset(self._order))

    def is_settled(self, moment: float) -> bool:
        """Values and findings of a recording come as the rules go over it."""
        return moment <= self.judged_until

    def _node_then(self, name: str, moment: float) -> NodeView:
        own = self._samples.get(name)
        found = own.at(moment) if own is not None else None
        if found is None:
            told = self._states.get(name)
            is_silent = told is not None and own is None and told.state not in ("live", "stale")
            return NodeView(
                told if told is not None and is_silent else NodeState(name, "connecting", "nothing was recorded so far")
            )
        at, line = found
        if name not in self._shown or self._shown[name][0] != at:
            try:
                self._shown[name] = at, self._newest_of(name, at, line)
            except UNREADABLE as error:
                return NodeView(NodeState(name, "stale", f"its sample is {why_unreadable(error)}", moment - at))
        newest = self._shown[name][1]
        return NodeView(state_by_age(name, moment - at, newest.whole.interval_s), newest)

    def _newest_of(self, name: str, at: float, line: bytes) -> Received:
        """What the rules have gone over need not be decoded for a look at all nodes. Raises UNREADABLE."""
        own = self._nodes.get(name)
        found = own.row_at(at) if own is not None and at <= own.at and (name, at) not in self.unreadable else None
        if own is None or own.whole is None or found is None:
            return Received(sample_of_line(line))
        return Received(own.whole, at, found[2], ranks=own.ranks_at(at), make=partial(self._decoded, line))

    # What the rules make of it.

    def judge(
        self,
        stopped: threading.Event,
        on_progress: Callable[[], object],
        expectations: Expectations,
        reports: Callable[[], Sequence[JobReport]] = tuple,
        told: Sequence[Incident] = (),
    ) -> None:
        """Go over all samples. ``reports``: what the recorded stacks say, asked for at the end; ``told``: what was told
        there then.
        """
        alone = frozenset(node for node, own in self._samples.items() if len(own) == 1)
        diagnosis = Diagnosis(Health(expectations, eager=alone))
        firsts = (self._decoded(next(own.lines())[1]) for own in self._samples.values())
        diagnosis.health.compare([first for first in firsts if first is not None])
        step_s = SHORT_STEP_S if len(self._samples) <= FEW_NODES else LONG_STEP_S
        due_at, told_at = self._samples.oldest_at + step_s, 0.0
        for at, line, node in self._samples.lines_by_time():
            if stopped.is_set():
                return
            if (sample := self._decoded(line)) is None:
                self.unreadable.add((node, at))
                self._judged.discard(node)  # what was wrong with it then is not known
                continue
            if at >= due_at:
                self._tell(self._judged_by(diagnosis, due_at))
                due_at = max(due_at + step_s, at)
            self._see(diagnosis, node, sample)
            if self.judged_share >= told_at + TOLD_EVERY:
                told_at = self.judged_share
                on_progress()
        diagnosis.health.settle()
        last = self._judged_by(diagnosis, self.newest_at, guarded("the recorded stacks", reports, ()))
        self._tell(replace(last, incidents=tuple(with_told(last.incidents, told))))
        self.judged_until = math.inf
        on_progress()

    def _see(self, diagnosis: Diagnosis, node: str, sample: Sample) -> None:
        self._take(node, sample, sample.sampled_at, pack_row(row_of(sample)))
        self._judged.discard(node)
        if sample.kernel_events or sample.deaths:
            self._events[node] = happened_by(sample, self._events.get(node, ()))

        def judge() -> None:
            diagnosis.see(sample)
            self._judged.add(node)

        guarded(f"judging {node}", judge, None)

    def _judged_by(self, diagnosis: Diagnosis, at: float, reports: Sequence[JobReport] = ()) -> Picture:
        """What is told at this time; its nodes have no samples."""
        seen = [(name, self._nodes[name]) for name in self._order if name in self._nodes]
        nodes = tuple(NodeView(state_by_age(name, at - own.at, own.interval_s)) for name, own in seen)
        everything = diagnosis.health.findings()
        return Picture(
            FleetView(at, nodes),
            (
                *(state_findings(nodes, at) if len(self._order) > 1 else ()),
                *(one for one in everything if one.until is None),
            ),
            frozenset([name for name, _ in seen if name not in self._judged]),
            tuple(one for one in everything if one.until is not None),
            tuple((name, event) for name, own in self._events.items() for event in own),
            tuple(diagnosis.incidents(reports)),
            tuple(diagnosis.motions.motions()),
            reports=tuple(reports),
        )

    def _decoded(self, line: bytes) -> Sample | None:
        """None where it cannot be read."""
        try:
            return decode_sample(line, "sample")
        except BadRecording:
            return None

    def _tell(self, picture: Picture) -> None:
        with self._lock:
            self._add(picture.view)
            self._told.see(picture)
            self.judged_until = picture.view.taken_at
