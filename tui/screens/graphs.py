"""Graphs of the last ten minutes: of one job, of all nodes or of one node, on one axis; and what fills free rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING

from mltop.probes.judge.values import mean_of
from mltop.probes.model import GpuSample, Incident, JobKey
from mltop.probes.model.incident import STANDING_STATES
from mltop.probes.model.units import clock_time, count, counted, kilowatts, known, percent
from mltop.probes.reach.view import NodeView
from mltop.tui.app.past.sums import Sums
from mltop.tui.app.past.track import Track
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import happenings
from mltop.tui.render.fleet.jobs import Group
from mltop.tui.render.gpus.details import side_by_side
from mltop.tui.render.gpus.lanes import lane_lines
from mltop.tui.render.gpus.table import rate_of
from mltop.tui.render.graph import (
    LABEL_WIDTH,
    Event,
    Graphs,
    Scale,
    Series,
    Span,
    Values,
    begins,
    fell_still,
    last_known,
    most_of,
    shares_of_most,
    span_of,
    width_beside,
)
from mltop.tui.render.story import Line, kind_cell, spaced
from mltop.tui.screens.events.lines import event_lines
from mltop.tui.screens.help.lines import drawable, help_lines, shared_blocks
from mltop.tui.screens.help.terms import TERMS
from mltop.tui.screens.pane import Memo, Pane
from mltop.tui.screens.tables import RowContext

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp


LEAST_ROWS = 3
_NODE_ROWS = 4
NETWORK_FLOOR = 1e6  # bytes/s at full height at least: what is less is noise
_HEADROOM = 0.9  # of the full height, where no limit is known


# Of a job, or of all nodes.


def job_graph(app: MltopApp, job: JobKey | None, incident: Incident | None, width: int, room: int) -> list[list[Cell]]:
    """As many and as high as ``room`` lines allow; [] where nothing was kept. ``job`` None: of all nodes."""
    picture = app.picture
    if picture is None or room < 1 + LEAST_ROWS:
        return []
    names = {name for motion in picture.motions if motion.job_key == job for name in motion.nodes}
    nodes = [view for view in picture.view.nodes if job is None or view.node in names]
    since = incident.since if incident is not None else None
    graphs = _graphs_of(app, job, nodes, width - LABEL_WIDTH, since)
    if graphs is not None and incident is not None and since is not None:
        style = "waits" if incident.kind in ("hang", "crash") else "warn"
        fell = Event(since, f"{clock_time(since)} {kind_cell(incident).text.lower()}", style)
        span = Span(since, incident.until, f"graph-{style}")
        graphs = replace(graphs, spans=(span,), events=(fell, *graphs.events))
    return graphs.stacked(room) if graphs is not None else []


def with_job_graph(
    pane: Pane,
    lines: Sequence[Line],
    job: JobKey | None,
    incident: Incident | None = None,
    *,
    least: int = 0,
    above: int = 0,
) -> list[Line]:
    """The ``lines`` of a pane that scrolls, and in those that they leave, of at ``least`` so many, ``job_graph``.
    ``above``: lines of the pane's other parts.
    """
    room = max(least, pane.size.height - pane.chrome_height() - 1 - above - len(lines))
    graph = job_graph(pane.mltop, job, incident, pane.size.width - 1, room) if lines else []
    return spaced([lines, [*map(Line, graph)]])


def group_graphs(app: MltopApp, group: Group, columns: int) -> Graphs | None:
    """Of a job in the fleet, or of all nodes; None where nothing has been kept of it."""
    since = group.still_since
    graphs = _graphs_of(app, group.job, group.nodes, columns, since)
    if graphs is None:
        return None
    first, *others = graphs.series
    first = replace(first, of="", about=group.title if group.job is not None else "")
    spans = (Span(since, None, "graph-waits"),) if since is not None else ()
    events = fell_still(group.still) if group.still is not None else []
    return replace(graphs, series=(first, *others), spans=spans, events=(*events, *graphs.events))


def _graphs_of(
    app: MltopApp, job: JobKey | None, nodes: Sequence[NodeView], columns: int, since: float | None
) -> Graphs | None:
    """Without a state. ``since``: when it fell, if it did."""
    until = app.graphs_until
    if columns < 1:
        return None
    sums = app.history.sums(job, columns, until)
    if sums is None or not sums.most_nodes or sums.began >= columns:
        return None
    span_s = span_of((columns - sums.began) * sums.column_s, columns)
    sums = app.history.sums(job, columns, until, span_s) or sums
    silent = app.moment is None and nodes and not any(view.state.state == "live" for view in nodes)
    last = sums.until - 1.0 if silent else None
    scale = Scale(round(sums.until / sums.column_s) - 1, sums.column_s, 1, columns, app.moment, last=last)
    fell_at, end = scale.column(since) if since is not None else columns, scale.looked_at + 1
    limits = [sum([gpu.power_limit_w or 0.0 for gpu in view.gpus]) for view in nodes]
    series = _series_of(sums, sum(filter(isfinite, limits)), fell_at, end)  # the limit as far as it is known
    return Graphs(series, scale, events=tuple(begins(scale.time_of(sums.began), scale)))


def _series_of(sums: Sums, limit: float, fell_at: int, end: int) -> tuple[Series, ...]:
    """``fell_at``: the column in which it fell; ``end``: that after the one that is looked at."""

    def series(
        names: tuple[str, str], values: Values, words: Callable[[float | None], str], limit: float, floor: float = 0.0
    ) -> Series:
        now, before, most = last_known(values[:end]), mean_of(values[: min(fell_at, end)]), most_of(values)
        fell = before is not None and now is not None and now < before / 2
        of = f"of {words(limit)}" if limit else f"max {words(most)}" if most else ""
        shares = shares_of_most(values, limit or max(most / _HEADROOM, floor))
        full = words(limit) if limit else None
        return Series(names[0], words(now), of, shares, names[1], words(before) if fell else "", limit=full)

    name, activity = sums.activity
    watts, rates = sums.whole(sums.power_w), sums.whole(sums.network_bytes_per_s)
    span = f"{len(activity) * sums.column_s / 60:.0f} min"
    return (
        replace(series((f"{name} active" if name == "SM" else name, name), activity, percent, 1.0), of=span),
        series(("power", "power"), watts, kilowatts, limit),
        series(("network", "net"), rates, lambda value: f"{count(value)}B/s", 0.0, NETWORK_FLOOR),
    )


# Of one node.


class NodeGraphs(Memo["Graphs | None"]):
    """Keeps what was worked out of one sample until the next one."""

    def lines(
        self, node: NodeView, context: RowContext, width: int, rows: int, *, beside: bool = False
    ) -> list[list[Cell]]:
        """SM activity, power and NVLink in ``rows`` lines; [] where these are few, or nothing was kept of this node."""
        if rows < _NODE_ROWS:
            return []
        source = (
            node.node,
            node.sample.sampled_at if node.sample else 0.0,
            width,
            beside,
            context.picture.states,
            context.moment(node),
            context.picture.not_judged,
            context.settled,
        )
        graphs = self.get(source, lambda: _node_graphs(node, context, width, beside))
        if graphs is None:
            return []
        return graphs.beside(rows) if beside else graphs.stacked(rows)


def _node_graphs(node: NodeView, context: RowContext, width: int, beside: bool) -> Graphs | None:
    sample = node.sample
    pairs = [(gpu, context.track(node, gpu.index)) for gpu in sample.gpus] if sample is not None else []
    tracks = [(gpu, track) for gpu, track in pairs if track is not None]
    if sample is None or not tracks:
        return None
    first = tracks[0][1]
    span_s = span_of((first.length - first.began) * first.step_s)
    used = [(gpu, track) for gpu, track in tracks if users_of(node, gpu) or gpu.processes] or tracks
    series = [_activity(used), *(one for one in (_power(tracks), *_nvlink(used)) if any(one.values) or not beside)]
    columns = width_beside(width, len(series)) if beside else width - LABEL_WIDTH
    scale = Scale.of(first.slot, first.step_s, columns, span_s, context.moment(node))
    if node.state.state != "live" and scale.moment is None:
        scale = replace(scale, last=sample.sampled_at)
    spans: list[Span] = []
    events: list[Event] = []
    for job in dict.fromkeys((rank.job, rank.uid) for rank in sample.ranks):
        states = context.picture.states.job(node.node, *job)
        if states is not None and states.usual.state in STANDING_STATES and states.usual.since is not None:
            spans.append(Span(states.usual.since, None, "graph-waits"))
            events += fell_still(states.usual)
    events += begins((first.slot - first.length + 1 + first.began) * first.step_s, scale)
    return Graphs(tuple(series), scale, tuple(spans), tuple(events))


Tracks = Sequence[tuple[GpuSample, Track]]


def _activity(tracks: Tracks) -> Series:
    sm = any(gpu.sm_active is not None for gpu, _ in tracks)
    lanes = [track.sm_active if sm else track.busy for _, track in tracks]
    now = [value for gpu, _ in tracks if (value := gpu.sm_active if sm else gpu.busy) is not None]
    means = list(map(mean_of, zip(*lanes, strict=True)))
    name = "SM active" if sm else "busy"
    return Series(name, percent(mean_of(now)), counted(len(tracks), "GPU"), means, limit=percent(1.0))


def _power(tracks: Tracks) -> Series:
    limit = sum(gpu.power_limit_w for gpu, _ in tracks if gpu.power_limit_w is not None and known(gpu.power_limit_w))
    now = [gpu.power_w for gpu, _ in tracks if gpu.power_w is not None and known(gpu.power_w)]
    total = _total([track.power_w for _, track in tracks])
    shares = shares_of_most(total, limit or most_of(total))
    most = kilowatts(limit) if limit else None
    return Series("power", kilowatts(sum(now) if now else None), f"of {most}" if most else "", shares, limit=most)


def _nvlink(tracks: Tracks) -> list[Series]:
    """[] where no GPU says."""
    total = _total([track.nvlink_bytes_per_s for _, track in tracks])
    now = [rate for gpu, _ in tracks if (rate := rate_of(gpu.nvlink)) is not None]
    if not now or not most_of(total):
        return []
    return [Series("NVLink", f"{count(sum(now))}B/s", "", shares_of_most(total, most_of(total) / _HEADROOM))]


def _total(lanes: Sequence[Values]) -> list[float | None]:
    """Only where all are known: a sum of some looks like a fall."""
    return [None if None in values else sum(values) for values in zip(*lanes, strict=True)]


Lines = list[list[Cell]]
ROOM_FOR_GPUS = 16  # lines: with less there are only the node's graphs
BAND = 6  # lines of these at least, above those of GPUs
GPU_WIDTH = 48  # cells at least
GPU_LINES = 6  # of each at least
REDRAWN_S = 5.0  # of the graphs of GPUs, whose columns are longer: all of them take 20 ms
MOST_EVENTS = 6
LEFT_OUT = 3  # lines of the help at a time


class Spare:
    """Graphs of the node are made anew when there is a newer sample. ``fleet``: what happened on all nodes is shown."""

    def __init__(self, *, fleet: bool = False) -> None:
        self._fleet = fleet
        self._graphs = NodeGraphs()
        self._gpus = Memo[Lines]()

    def lines(self, node: NodeView, context: RowContext, width: int, rows: int) -> Lines:
        """At most ``rows`` lines, and as many where the past of the node is known."""
        if rows < ROOM_FOR_GPUS:
            return self._graphs.lines(node, context, width, rows)
        events = _events("" if self._fleet else node.node, context, width)
        room = rows - (len(events) + 1 if events else 0) - BAND - 1
        at = (node.sampled_at or 0.0) // REDRAWN_S
        source = (node.node, at, width, room, context.moment(node))
        gpus = self._gpus.get((*source, context.settled), lambda: _gpus(node, context, width, room))
        blocks = [gpus, events]
        left = rows - sum(len(block) + 1 for block in blocks if block)
        return _stacked([self._graphs.lines(node, context, width, left, beside=bool(gpus)), *blocks])


def keys_and_terms(keys: Mapping[str, str], width: int, rows: int) -> Lines:
    """Where there are no GPUs to show: what the keys do and the words mean, as much as fits into ``rows`` lines.
    ``keys``: that the user gives to actions.
    """
    return _keys_and_terms(tuple(keys.items()), width, rows)


@lru_cache(maxsize=1)
def _keys_and_terms(keys: tuple[tuple[str, str], ...], width: int, rows: int) -> Lines:
    blocks = [*shared_blocks(dict(keys)), *TERMS]
    while len(lines := help_lines(blocks, width)) > rows:
        title, last = blocks.pop()
        blocks += [(title, last[:-LEFT_OUT])] if len(last) > LEFT_OUT else []
    return drawable(lines)


def _stacked(blocks: Sequence[Lines]) -> Lines:
    """With a blank line between two."""
    return [line for block in blocks if block for line in ([], *block)][1:]


def _events(node: str, context: RowContext, width: int) -> Lines:
    """The newest ones of this node, "": of all."""
    picture = context.picture
    events = happenings(picture.findings, picture.ended, picture.events, node)[:MOST_EVENTS]
    title, lines = event_lines(events, width, with_nodes=not node)
    return [title, *([*line.cells] for line in lines[:MOST_EVENTS])] if lines else []


def _gpus(node: NodeView, context: RowContext, width: int, room: int) -> Lines:
    """Each GPU's last ten minutes, of as many as there is room for: first what something is wrong with, then what is
    used.
    """
    sample = node.sample
    alive = [gpu for gpu in sample.gpus if gpu.state == "ok"] if sample is not None else []
    tracks = [(gpu, track) for gpu in alive if (track := context.track(node, gpu.index)) is not None]
    used = [(gpu, track) for gpu, track in tracks if users_of(node, gpu)] or tracks
    across = max(1, min(width // GPU_WIDTH, len(used)))
    rows = min(-(-len(used) // across), (room + 1) // (GPU_LINES + 1))
    if rows < 1:
        return []
    marks = {gpu.index: context.gpu_line(node, gpu, graph=False).mark for gpu, _ in used}
    shown = sorted(used, key=lambda pair: not marks[pair[0].index])[: across * rows]
    shown.sort(key=lambda pair: pair[0].index)
    high, each = (room + 1) // rows - 1, width // across
    panels: list[Lines] = []
    for gpu, track in shown:
        users = users_of(node, gpu)
        waits = context.spans(context.doing_of_gpu(node, gpu, users), users)
        name, moment = f"GPU {gpu.index}", context.moment(node)
        panels.append(lane_lines(track, gpu, each - 2, high, waits=waits, moment=moment, name=name))
    return _stacked([side_by_side(panels[at : at + across], each) for at in range(0, len(panels), across)])
