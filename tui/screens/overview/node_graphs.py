"""The last ten minutes of one node as a whole: SM activity of the GPUs in use, and power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mltop.probes.judge.values import mean_of
from mltop.probes.model import GpuSample
from mltop.probes.model.incident import STANDING_STATES
from mltop.probes.model.units import count, counted, kilowatts, known, percent
from mltop.probes.reach.view import NodeView
from mltop.tui.app.past.track import Track
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell
from mltop.tui.render.gpus.table import rate_of
from mltop.tui.render.graph import LABEL_WIDTH, Event, Scale, Series, Span, begins, fell_still, stacked
from mltop.tui.screens.pane import Memo
from mltop.tui.screens.row_context import RowContext

Lane = Sequence["float | None"]
LEAST_ROWS = 4


@dataclass(frozen=True)
class Drawn:
    series: tuple[Series, ...]
    scale: Scale
    spans: tuple[Span, ...]
    events: tuple[Event, ...]


class NodeGraphs(Memo["Drawn | None"]):
    """Keeps what was worked out of one sample until the next one."""

    def lines(self, node: NodeView, context: RowContext, width: int, rows: int) -> list[list[Cell]]:
        """SM activity, power and NVLink in ``rows`` lines; [] where these are few, or nothing was kept of this node."""
        if rows < LEAST_ROWS:
            return []
        columns = width - LABEL_WIDTH
        source = (
            node.node,
            node.sample.sampled_at if node.sample else 0.0,
            columns,
            context.picture.states,
            context.moment(node),
            context.picture.not_judged,
            context.settled,
        )
        drawn = self.get(source, lambda: _drawn(node, context, columns))
        return stacked(drawn.series, drawn.scale, drawn.spans, drawn.events, rows) if drawn is not None else []


def _drawn(node: NodeView, context: RowContext, width: int) -> Drawn | None:
    sample = node.sample
    pairs = [(gpu, context.track(node, gpu.index)) for gpu in sample.gpus] if sample is not None else []
    tracks = [(gpu, track) for gpu, track in pairs if track is not None]
    if not tracks:
        return None
    first = tracks[0][1]
    scale = Scale.of(first.slot, first.step_s, width, moment=context.moment(node))
    if sample is not None and node.state.state != "live" and scale.moment is None:
        scale = replace(scale, last=sample.sampled_at)
    first_at = (first.slot - first.length + 1 + first.began) * first.step_s
    used = [(gpu, track) for gpu, track in tracks if _in_use(node, gpu)] or tracks
    spans, events = _standing(node, context)
    links = _nvlink(used)
    series = (_activity(used), _power(tracks), *([links] if links is not None else []))
    return Drawn(series, scale, spans, (*events, *begins(first_at, scale)))


def _in_use(node: NodeView, gpu: GpuSample) -> bool:
    return bool(users_of(node, gpu)) or bool(gpu.processes)


def _activity(tracks: Sequence[tuple[GpuSample, Track]]) -> Series:
    sm = any(gpu.sm_active is not None for gpu, _ in tracks)
    lanes = [track.sm_active if sm else track.busy for _, track in tracks]
    now = [value for gpu, _ in tracks if (value := gpu.sm_active if sm else gpu.busy) is not None]
    return Series(
        "SM active" if sm else "busy",
        percent(mean_of(now)),
        counted(len(tracks), "GPU"),
        list(map(mean_of, zip(*lanes, strict=True))),
    )


def _power(tracks: Sequence[tuple[GpuSample, Track]]) -> Series:
    limit = sum(gpu.power_limit_w for gpu, _ in tracks if gpu.power_limit_w is not None and known(gpu.power_limit_w))
    now = [gpu.power_w for gpu, _ in tracks if gpu.power_w is not None and known(gpu.power_w)]
    total = _total([track.power_w for _, track in tracks])
    most = limit or max((value for value in total if value is not None), default=1.0) or 1.0
    shares = [None if value is None else value / most for value in total]
    return Series(
        "power", kilowatts(sum(now)) if now else kilowatts(None), f"of {kilowatts(limit)}" if limit else "", shares
    )


def _nvlink(tracks: Sequence[tuple[GpuSample, Track]]) -> Series | None:
    """None where no GPU says."""
    total = _total([track.nvlink_bytes_per_s for _, track in tracks])
    most = max((value for value in total if value is not None), default=0.0)
    now = [rate for gpu, _ in tracks if (rate := rate_of(gpu.nvlink)) is not None]
    if not now or not most:
        return None
    shares = [None if value is None else 0.9 * value / most for value in total]
    return Series("NVLink", f"{count(sum(now))}B/s", "", shares)


def _total(lanes: Sequence[Lane]) -> list[float | None]:
    """Only where all are known: a sum of some looks like a fall."""
    return [None if None in values else sum(values) for values in zip(*lanes, strict=True)]


def _standing(node: NodeView, context: RowContext) -> tuple[tuple[Span, ...], tuple[Event, ...]]:
    """Since when the node's jobs stand still."""
    sample = node.sample
    spans, events = [], []
    for job in dict.fromkeys((rank.job, rank.uid) for rank in sample.ranks) if sample is not None else ():
        states = context.picture.states.job(node.node, *job)
        if states is not None and states.usual.state in STANDING_STATES and states.usual.since is not None:
            spans.append(Span(states.usual.since, None, "graph-waits"))
            events += fell_still(states.usual)
    return tuple(spans), tuple(events)
