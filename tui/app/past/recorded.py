"""The past of a recording or a capture: its samples as they are, and what the health rules make of all of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from mltop.probes.investigate.diagnosis import Diagnosis, with_told
from mltop.probes.judge.health import Expectations, Health
from mltop.probes.model import Finding, Incident, JobReport, KernelEvent, NodeState, RankDeath, Sample
from mltop.probes.model.units import duration_words
from mltop.probes.reach.courtesy import give_way
from mltop.probes.reach.receiving import UNREADABLE, summary_of_line, why_unreadable
from mltop.probes.reach.records import STALE_INTERVALS, STALE_MIN_S
from mltop.probes.reach.view import FleetView, NodeView, Received, summary_of
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
        self.judged_until = -math.inf
        self.unreadable = 0  # samples that the rules had to pass by

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
            give_way()
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
    def nodes(self) -> Sequence[str]:
        return self._order

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
            silent = told is not None and own is None and told.state not in ("live", "stale")
            state = (
                told if told is not None and silent else NodeState(name, "connecting", "nothing was recorded so far")
            )
            return NodeView(state)
        at, line = found
        before = self._shown.get(name)
        if before is not None and before[0] == at:
            return NodeView(state_then(name, moment - at, before[1].summary.interval_s), before[1])
        try:
            summary = summary_of_line(line)
        except UNREADABLE as error:
            return NodeView(NodeState(name, "stale", f"its sample is {why_unreadable(error)}", moment - at))
        newest = Received(b"", summary, lambda *_: self._decoded(line))
        self._shown[name] = at, newest
        return NodeView(state_then(name, moment - at, summary.interval_s), newest)

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
        judging = Judging(diagnosis, self._order, step_s)
        told_at = 0.0
        for _, line, node in self._samples.lines_by_time():
            if stopped.is_set():
                return
            if (sample := self._decoded(line)) is None:
                self.unreadable += 1
                judging.passed_by(node)
                continue
            with self._lock:
                self._take(NodeView(NodeState(sample.node, "live")), summary_of(sample), sample.sampled_at)
            for picture in judging.see(sample):
                self._tell(picture)
            if self.judged_share >= told_at + TOLD_EVERY:
                told_at = self.judged_share
                on_progress()
        diagnosis.health.settle()
        last = judging.picture(self.newest_at, guarded("the recorded stacks", reports, ()))
        self._tell(replace(last, incidents=tuple(with_told(last.incidents, told))))
        self.judged_until = math.inf
        on_progress()

    def _decoded(self, line: bytes) -> Sample | None:
        """None where it cannot be read."""
        try:
            return decode_sample(line, "sample")
        except BadRecording:
            return None

    def _tell(self, picture: Picture) -> None:
        with self._lock:
            self._told.see(picture)
            self.judged_until = picture.view.taken_at


def state_then(name: str, age_s: float, interval_s: float) -> NodeState:
    """Of a node whose newest sample was so old."""
    if age_s <= max(STALE_MIN_S, STALE_INTERVALS * interval_s):
        return NodeState(name, "live", age_s=age_s)
    return NodeState(name, "stale", f"no sample for {duration_words(round(age_s))}", age_s)


class Judging:
    """From samples, in the order of time, to what was told at each step of ``step_s``."""

    def __init__(self, diagnosis: Diagnosis, nodes: Sequence[str], step_s: float) -> None:
        self._diagnosis, self._nodes, self._step_s = diagnosis, nodes, step_s
        self._due_at: float | None = None
        self._newest: dict[str, tuple[float, float]] = {}  # of each node the time, and the interval
        self._events: dict[str, tuple[KernelEvent | RankDeath, ...]] = {}
        self._incidents: tuple[Incident, ...] = ()
        self._judged: set[str] = set()  # nodes of which the newest sample was

    def see(self, sample: Sample) -> Iterator[Picture]:
        """What was told until this sample came, if a step is over."""
        if self._due_at is None:
            self._due_at = sample.sampled_at + self._step_s
        elif sample.sampled_at >= self._due_at:
            yield self.picture(self._due_at)
            self._due_at = max(self._due_at + self._step_s, sample.sampled_at)
        judged = guarded(f"judging {sample.node}", partial(self._judge, sample), False)
        (self._judged.add if judged else self._judged.discard)(sample.node)
        self._newest[sample.node] = sample.sampled_at, sample.interval_s
        if sample.kernel_events or sample.deaths:
            self._events[sample.node] = tuple(happened_by(sample, self._events.get(sample.node, ())))

    def _judge(self, sample: Sample) -> bool:
        self._diagnosis.see(sample)
        return True

    def passed_by(self, node: str) -> None:
        """A sample of it could not be read: what was wrong with it then is not known."""
        self._judged.discard(node)

    def picture(self, at: float, reports: Sequence[JobReport] = ()) -> Picture:
        """What is told at this time; its nodes have no samples."""
        nodes = tuple(
            NodeView(state_then(name, at - self._newest[name][0], self._newest[name][1]))
            for name in self._nodes
            if name in self._newest
        )
        view = FleetView(at, nodes)
        silent = state_findings(nodes, at) if len(self._nodes) > 1 else []
        everything = self._diagnosis.health.findings()
        firing: list[Finding] = [*silent, *(one for one in everything if one.until is None)]
        ended = tuple(one for one in everything if one.until is not None)
        events = tuple((name, event) for name, own in self._events.items() for event in own)
        incidents = tuple(self._diagnosis.incidents(reports))
        motions = tuple(self._diagnosis.motions.motions())
        not_judged = frozenset([node.node for node in nodes if node.node not in self._judged])
        return Picture(view, tuple(firing), not_judged, ended, events, incidents, motions, reports=tuple(reports))
