"""What the rows of GPUs and ranks are made of beside their samples: states, findings, history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mltop.probes.judge.states import is_working
from mltop.probes.model import GpuSample, RankSample
from mltop.probes.model.incident import IDLE, STANDING_STATES, WORKS, Doing
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.past.track import Track, Values
from mltop.tui.filters.fields import gpu_bytes_of, gpus_of, users_of
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.fleet.heat import FINE, Trouble, troubles
from mltop.tui.render.gpus.lanes import activity_of, held_shares, held_spans, shares_of
from mltop.tui.render.gpus.table import GpuLine
from mltop.tui.render.graph import GraphCell, Span
from mltop.tui.render.ranks import RankLine

Tracks = Callable[[NodeView, int], "Track | None"]


class RowContext:
    """Of one picture. ``track``: the last ten minutes of a GPU, None where nothing was kept of it."""

    def __init__(
        self, picture: Picture, earlier: EarlierRanks, track: Tracks, past: bool = False, settled: bool = True
    ) -> None:
        """``past``: the picture is of a moment of the past; ``settled``: nothing more comes to be known of it."""
        self._past = past
        self.settled = settled
        self.picture = picture
        self.earlier = earlier
        self.now = picture.view.taken_at
        self.track = track
        self._troubles: Mapping[str, Trouble] | None = None

    def moment(self, node: NodeView) -> float | None:
        """That of the past which is shown, by the node's clock; None: now is shown."""
        return node.sample.sampled_at if self._past and node.sample is not None else None

    @property
    def troubles(self) -> Mapping[str, Trouble]:
        """By node: what findings say of it and its GPUs."""
        if self._troubles is None:
            self._troubles = troubles(self.picture.findings)
        return self._troubles

    def doing_of_gpu(self, node: NodeView, gpu: GpuSample, ranks: Sequence[RankSample]) -> Doing:
        return self.picture.states.gpu(node.node, gpu, ranks, gpu.processes)

    def gpu_line(self, node: NodeView, gpu: GpuSample, graph: bool = True) -> GpuLine:
        """``graph``: with its last ten minutes."""
        ranks = users_of(node, gpu)
        doing = self.doing_of_gpu(node, gpu, ranks)
        simulated = node.sample is not None and node.sample.simulated
        line = GpuLine(gpu, ranks, simulated, doing, self.now, self.mark(node, gpu, doing))
        track = self.track(node, gpu.index) if graph else None
        return line if track is None else self._with_graphs(line, node, track)

    def mark(self, node: NodeView, gpu: GpuSample, doing: Doing) -> str:
        """The style of the gravest that is wrong with this GPU: "stands" of what holds a job up, crit, warn or ""."""
        if doing.state == "stands":
            return "stands"
        if gpu.state != "ok":
            return "crit"
        trouble = self.troubles.get(node.node, FINE)
        styles = (trouble.gpus.get(gpu.index, ""), trouble.all_gpus)
        return "crit" if "crit" in styles else "warn" if "warn" in styles else ""

    def _with_graphs(self, line: GpuLine, node: NodeView, track: Track) -> GpuLine:
        held = held_spans(track)

        def graph(spans: tuple[Span, ...], values: Callable[[], Values]) -> GraphCell:
            return GraphCell("", "", track.slot, track.step_s, spans, self.moment(node), values)

        clocks = graph(held, lambda: shares_of(track.clock_mhz, line.gpu.sm_clock_max_mhz))
        activity = graph((*held, *self.spans(line.doing, line.ranks)), lambda: activity_of(track)[1])
        return line._replace(graph=activity, clocks=clocks, shares=held_shares(track))

    def spans(self, doing: Doing, ranks: Sequence[RankSample]) -> tuple[Span, ...]:
        """When it waited, or held others up."""
        spans = [
            Span(incident.since, incident.until, "graph-waits")
            for incident in self.picture.incidents
            if incident.kind in ("hang", "crash") and incident.since is not None and incident.until is not None
            if any((rank.job, rank.uid) == (incident.job, incident.uid) for rank in ranks)
        ]
        if doing.since is not None and doing.state in STANDING_STATES | {"alone"}:
            spans.append(Span(doing.since, None, "graph-crit" if doing.state in ("stands", "alone") else "graph-waits"))
        return tuple(spans)

    def rank_line(self, node: NodeView, rank: RankSample) -> RankLine:
        """Without its rates."""
        doing = self.picture.states.rank(node.node, rank, rank.state)
        if doing.state in ("unknown", "works"):
            doing = self._by_its_gpus(node, rank, doing)
        return RankLine(node.node, rank, None, doing, self.now, gpu_bytes_of(node, rank))

    def _by_its_gpus(self, node: NodeView, rank: RankSample, doing: Doing) -> Doing:
        """Of a rank that works, whether it is held down; of one of which nothing is known, whether anything runs."""
        gpus = gpus_of(node, rank)
        held = [self.doing_of_gpu(node, gpu, [rank]) for gpu in gpus]
        throttled = next((one for one in held if one.state == "throttled"), None)
        if throttled is not None:
            return throttled
        works = [is_working(gpu) for gpu in gpus]
        if doing.state != "unknown" or not works or None in works:
            return doing
        return WORKS if any(works) else IDLE
