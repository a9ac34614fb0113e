"""One probe over nodes, in a daemon thread of its own: asked, joined, judged, reported."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mltop.probes.investigate.probing import report as reports
from mltop.probes.investigate.probing.collective import Collective, Round, search
from mltop.probes.investigate.probing.context import END_S, Context, NodeRequests
from mltop.probes.investigate.probing.wanted import (
    BUDGET_S,
    SWEEP_BUDGET_S,
    ProbePhase,
    ProbeProgress,
    ProbeWanted,
    sizes_of,
)
from mltop.probes.investigate.progress import End, Run
from mltop.probes.judge.probes.compare import past_of
from mltop.probes.judge.probes.hardware.peaks import PEAKS
from mltop.probes.judge.probes.pairs import PairSearch
from mltop.probes.model.probe import PairResult, PastResult, ProbeEvent, ProbeReport, RankTimes
from mltop.probes.model.probe_kinds import MANY_NODES, MANY_NODES_DEADLINE_S
from mltop.probes.reach.hub import Hub


class ProbeMemory(Protocol):
    """Called in the run's thread. What goes wrong is one sentence in ``problems``, never an exception."""

    problems: list[str]

    def past(self) -> Sequence[PastResult]:
        """Everything that is remembered."""

    def keep(self, results: Sequence[PastResult]) -> None:
        """Also remember these."""


PAIR_ROUND_S = 3.0


def deadline_s(wanted: ProbeWanted, nodes: Sequence[str]) -> float:
    """The time for a whole run: what the kind needs on these nodes; of pairs with a round that is repeated."""
    row = wanted.row
    if row.in_pairs:
        return row.deadline_s + PAIR_ROUND_S * (PairSearch(nodes, wanted.round_robin).most_rounds() + 1)
    return MANY_NODES_DEADLINE_S if not row.one_gpu and len(nodes) > MANY_NODES else row.deadline_s


def options_of(wanted: ProbeWanted) -> dict[str, object]:
    """The ``options`` of the request. Nodes have no table of their own: its shapes are sent."""
    options: dict[str, object] = {}
    if wanted.row.has_dtype:
        options.update(dtype=wanted.dtype, **shapes_of(wanted.dtype))
    if wanted.sizes_bytes:
        options["size_bytes"] = wanted.sizes_bytes[0]
    return options


def shapes_of(dtype: str) -> dict[str, object]:
    """The shapes (M, N, K) of mamf-finder's figures. ``published``: by PCI device id, those that a burst is compared
    with; ``first_shapes``: all, few enough to be tried on any other model.
    """
    rows = [peak for peak in PEAKS if dtype in peak.best_shapes]
    reliable = [peak for peak in rows if peak.is_sure(f"mamf.{dtype}")]
    return {
        "published": {number: list(peak.best_shapes[dtype]) for peak in reliable for number in peak.ids},
        "first_shapes": [list(shape) for shape in dict.fromkeys(peak.best_shapes[dtype] for peak in rows)],
    }


class LocalProbe:
    """What every node does by itself, all at once. ``run`` returns when every node has answered or ``stop`` says so."""

    def __init__(self, context: Context) -> None:
        self._context, self._nodes, self._board, self._stop = context, context.nodes, context.board, context.stop
        self._requests = NodeRequests(context, self._take, self._end)
        self._stages: dict[str, str] = {}

    def run(self) -> None:
        self._requests.ask(options_of(self._context.wanted), self._nodes)
        while self._requests.open_nodes and not self._stop.now:
            self._requests.step()
            self._context.say(self._text())
        late = self._requests.open_nodes
        if late:
            self._requests.cancel(END_S)
            if not self._stop.cancelled.is_set():
                self._too_late(late)

    def _take(self, node: str, event: ProbeEvent) -> None:
        if event.event == "stage":
            self._stages[node] = event.stage
        self._board.take(node, event)

    def _end(self, node: str, why: str, fix: str) -> None:
        if why and not (self._stop.now and self._board.has_failed(node)):
            self._board.fail_node(node, why, fix)

    def _too_late(self, nodes: set[str]) -> None:
        for node in sorted(nodes):
            if not self._board.has_failed(node):
                stage = self._stages.get(node, "")
                where = f"was in stage '{stage}'" if stage else "had not begun (not reached yet?)"
                why = f"not done within {self._stop.deadline_s:.0f} s: {where}"
                self._board.fail_node(node, why, stage=stage)

    def _text(self) -> str:
        done = len(self._nodes) - len(self._requests.open_nodes)
        stages = sorted({stage for node, stage in self._stages.items() if node in self._requests.open_nodes})
        of = f"{done} of {len(self._nodes)} nodes done" if len(self._nodes) > 1 else ""
        return ", ".join(part for part in (of, " / ".join(stages[:3])) if part) or "starting"


REPORT_S = 0.2
_numbers = itertools.count(1)


class ProbeRun(Run):
    """A running probe. ``report`` is final when ``wait`` returns True.

    ``memory``: earlier results for comparison; the new ones are kept there, unless they are simulated.
    """

    name = "probe"

    def __init__(
        self,
        hub: Hub,
        wanted: ProbeWanted,
        on_progress: Callable[[ProbeProgress], None],
        memory: ProbeMemory | None = None,
    ) -> None:
        nodes = wanted.nodes or tuple(view.node for view in hub.view().nodes)
        super().__init__(wanted.deadline_s or deadline_s(wanted, nodes))
        self._wanted, self._on_progress, self._memory = wanted, on_progress, memory
        key = f"{os.uname().nodename}-{os.getpid()}-{next(_numbers)}"
        self._context = Context(hub, wanted, nodes, self._stop, key, self._say)
        self._board = self._context.board
        self._reported_at = 0.0
        self._text = ""
        self._pairs: list[PairResult] = []
        self._times: list[RankTimes] = []
        self._collective: Collective | None = None
        self._started_at = time.time()
        self.report: ProbeReport | None = None

    def _work(self) -> None:
        self._measure()
        self.report = self._judged()

    def _tell_end(self, end: End) -> None:
        self._tell(end, self.error)

    def _measure(self) -> None:
        if self._wanted.row.one_gpu:
            LocalProbe(self._context).run()
            return
        self._collective = Collective(self._context)
        try:
            self._collect(self._collective)
        finally:
            self._collective.end()

    def _collect(self, collective: Collective) -> None:
        joined = collective.assemble()
        of_cpus = any("cpu" in self._board.kinds(node) for node in joined)
        on_cpu = of_cpus or (bool(joined) and self._wanted.backend == "gloo")
        if self._wanted.row.in_pairs:
            if len(joined) > 1:
                self._pairs = search(collective, self._context, joined, on_cpu)
            return
        if sum(collective.members[node].ranks for node in joined) < 2:
            return
        wanted = self._wanted
        sizes = sizes_of(wanted, on_cpu)
        budget_s = SWEEP_BUDGET_S if wanted.sweep else BUDGET_S
        measured = collective.measure(Round((joined,), (wanted.collective,), sizes, budget_s))
        self._times = measured.times
        for node, why in measured.failures.items():
            if not self._board.has_failed(node) and not self.cancelled:
                self._board.fail_node(node, why, stage="measure")

    def _judged(self) -> ProbeReport:
        measured = reports.Measured(self._board, self._collective, self._times, self._pairs, self._context.nodes)
        disturbed = reports.disturbed(self._board)
        past = [result for result in (self._memory.past() if self._memory else ()) if result.uuid not in disturbed]
        report = reports.judged(self._wanted, measured, past, self.cancelled)
        report.started_at, report.took_s = self._started_at, round(self._stop.elapsed_s, 3)
        if self._memory is not None and not report.simulated:
            self._memory.keep([result for result in past_of(report) if result.uuid not in disturbed])
        return report

    def _say(self, text: str) -> None:
        """Called in every turn; passed on when it is news."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._tell("running" if self._board.pythons else "connecting", text)

    def _tell(self, phase: ProbePhase, text: str) -> None:
        self._on_progress(
            ProbeProgress(
                self._wanted,
                phase,
                text,
                self._stop.elapsed_s,
                self._stop.deadline_s,
                self._board.devices(),
                tuple(self._board.failures),
                self.report,
                tuple(line for _, line in self._board.notes[-8:]),
            )
        )
