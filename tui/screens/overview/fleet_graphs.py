"""The last ten minutes of one job of a fleet, or of all nodes: SM activity, power and network side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from mltop.probes.judge.values import mean_of
from mltop.probes.model.units import count, kilowatts, percent
from mltop.probes.reach.view import NodeView
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.sums import Sums
from mltop.tui.render.cells import Cell, line_width
from mltop.tui.render.fleet.jobs import Group
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.graph import (
    Event,
    Scale,
    Span,
    Values,
    area,
    axis,
    begins,
    fell_still,
    last_known,
    line,
    shares_of_most,
)

GAP = 3
MOST_ROWS = 9
OTHERS_ROWS = 6  # of further jobs
FULL_ROWS = 4  # lines from which on the graphs have a title, rows and an axis of their own


@dataclass(frozen=True)
class Graph:
    """``brief``: its name where it is one line; ``about``: whose it is; ``now``, and ``before`` it fell ("" where it
    did not), ``of`` its limit; ``values`` as shares of that.
    """

    name: str
    brief: str
    about: str
    now: str
    before: str
    values: Values
    of: str = ""


@dataclass(frozen=True)
class Drawn:
    graphs: tuple[Graph, ...]
    scale: Scale
    spans: tuple[Span, ...]
    events: tuple[Event, ...] = ()


def drawn_of(past: Past, group: Group, columns: int, until: float | None, moment: float | None = None) -> Drawn | None:
    """None where nothing has been kept of it. ``moment``: of the past, which is looked at."""
    since = group.still_since
    sums = past.of_job(group.job, columns, until) if group.job is not None else past.of_nodes(columns, until)
    if sums is None or not sums.most_nodes or sums.began >= columns:
        return None
    silent = moment is None and group.nodes and not any(view.state.state == "live" for view in group.nodes)
    last = sums.until - 1.0 if silent else None
    scale = Scale(round(sums.until / sums.column_s) - 1, sums.column_s, 1, columns, moment, last=last)
    spans = (Span(since, None, "graph-waits"),) if since is not None else ()
    events = (
        *(fell_still(group.still) if group.still is not None else ()),
        *begins(scale.time_of(sums.began), scale),
    )
    at = scale.column(since) if since is not None else columns
    end = scale.looked_at + 1
    graphs = _activity(sums, group, at, end), _power(sums, group, at, end), _network(sums, at, end)
    return Drawn(graphs, scale, spans, events)


def _activity(sums: Sums, group: Group, at: int, end: int) -> Graph:
    name, values = sums.activity
    now, before = last_known(values[:end]), mean_of(values[: min(at, end)])
    about = group.title if group.job is not None else ""
    return Graph(
        f"{name} active" if name == "SM" else name, name, about, percent(now), _fell(before, now, percent), values
    )


def _power(sums: Sums, group: Group, at: int, end: int) -> Graph:
    limit = sum(map(_limit, group.nodes))
    values = sums.whole(sums.power_w)
    now, before = last_known(values[:end]), mean_of(values[: min(at, end)])
    most = limit or max((value for value in values if value is not None), default=0.0)
    of = f" of {kilowatts(most)}" if limit else ""
    shares = shares_of_most(values, most)
    return Graph("power", "power", "", kilowatts(now), _fell(before, now, kilowatts), shares, of)


def _network(sums: Sums, at: int, end: int) -> Graph:
    values = sums.whole(sums.network_bytes_per_s)
    now, before = last_known(values[:end]), mean_of(values[: min(at, end)])
    most = max((value for value in values if value is not None), default=0.0)
    return Graph("network", "net", "", _rate(now), _fell(before, now, _rate), shares_of_most(values, most / 0.9))


def _limit(view: NodeView) -> float:
    """What the node's GPUs may draw together, as far as that is known."""
    gpus = view.summary.gpus if view.summary is not None else ()
    limit = sum([gpu.power_limit_w or 0.0 for gpu in gpus])
    return limit if isfinite(limit) else 0.0


def _rate(value: float | None) -> str:
    return f"{count(value)}B/s"


def _fell(before: float | None, now: float | None, words: Callable[[float], str]) -> str:
    """What it was, where it has fallen to less than half."""
    if before is None or now is None or now >= before / 2:
        return ""
    return words(before)


# Lines.


def full_lines(drawn: Drawn, width: int, rows: int) -> list[list[Cell]]:
    """A title, ``rows`` - 2 lines of graph and an axis, three graphs beside each other."""
    cells = graph_width(width)
    styles = drawn.scale.styles(drawn.spans)
    blocks = [
        [_title(graph, cells), *area(graph.values, styles, rows - 2), axis(drawn.scale, drawn.events)]
        for graph in drawn.graphs
    ]
    gap = Cell(" " * GAP)
    return [
        [cell for place, block in enumerate(blocks) for cell in ([gap] * (place > 0) + list(block[row]))]
        for row in range(rows)
    ]


def graph_width(width: int) -> int:
    return (width - 2 * GAP) // 3


def _title(graph: Graph, width: int) -> list[Cell]:
    now = [Cell(f"{graph.before} {GLYPHS.arrow} {graph.now}" if graph.before else graph.now, "title")]
    of, about = Cell(graph.of, "dim"), Cell(f" {graph.about}" if graph.about else "", "dim")
    ways = [
        ([Cell(name), whose], [*now, limit])
        for limit in dict.fromkeys((of, Cell("")))
        for whose in dict.fromkeys((about, Cell("")))
        for name in dict.fromkeys((graph.name, graph.brief))
    ]
    left, now = next((way for way in ways if line_width(way[0]) + line_width(way[1]) < width), ways[-1])
    return [*left, Cell(" " * max(1, width - line_width(left) - line_width(now))), *now]


BRIEF_GRAPH, BRIEF_LABEL = 8, 15  # cells of a graph at least, and what its name and value take at most


def brief_width(width: int) -> int:
    """Cells of each graph where all are one line; 0 where there is no room for them."""
    cells = width // 3 - BRIEF_LABEL
    return cells if cells >= BRIEF_GRAPH else 0


def brief_line(drawn: Drawn) -> list[Cell]:
    """All in one line: ``SM 10% ▆▆▆▆▁  power 59kW ▆▆▆▆▁  net 0B/s ▃▃▃▃▁``."""
    styles = drawn.scale.styles(drawn.spans)
    cells: list[Cell] = []
    for graph in drawn.graphs:
        label = [Cell(f"{graph.brief} ", "dim"), Cell(graph.now, "title"), Cell(" ")]
        drawing = line(graph.values, styles)
        blank = BRIEF_LABEL - line_width(label)
        cells += [*label, *drawing, Cell(" " * max(1, blank))]
    return cells[:-1]
