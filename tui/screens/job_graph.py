"""The last ten minutes of one job, or of all nodes, in the lines that a pane has left; and since when it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.model import Incident, JobKey
from mltop.probes.model.units import clock_time, count, kilowatts, percent
from mltop.tui.app.past.sums import Sums
from mltop.tui.render.cells import Cell
from mltop.tui.render.graph import (
    LABEL_WIDTH,
    Event,
    Scale,
    Series,
    Span,
    Values,
    begins,
    last_known,
    shares_of_most,
    stacked,
)
from mltop.tui.render.incidents import kind_cell

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp
    from mltop.tui.app.feed import Picture

LEAST_ROWS = 3
_WAITS = ("hang", "crash")


def job_graph(app: MltopApp, job: JobKey | None, incident: Incident | None, width: int, room: int) -> list[list[Cell]]:
    """SM activity (where that is not known GPU-Util), power and network, as many and as high as ``room`` lines allow;
    [] where nothing was kept. ``job``: None: of all nodes.
    """
    columns = width - LABEL_WIDTH
    if columns < 1 or room < 1 + LEAST_ROWS or app.picture is None:
        return []
    until = app.graphs_until
    sums = app.history.of_job(job, columns, until) if job is not None else app.history.of_nodes(columns, until)
    if sums is None or not sums.most_nodes or sums.began >= columns:
        return []
    last = sums.until - 1.0 if app.moment is None and _is_silent(app.picture, job) else None
    scale = Scale(round(sums.until / sums.column_s) - 1, sums.column_s, 1, columns, app.moment, last=last)
    spans, events = [], []
    if incident is not None and incident.since is not None:
        style = "waits" if incident.kind in _WAITS else "warn"
        spans = [Span(incident.since, incident.until, f"graph-{style}")]
        events = [Event(incident.since, f"{clock_time(incident.since)} {kind_cell(incident).text.lower()}", style)]
    events += begins(scale.time_of(sums.began), scale)
    return stacked(_series(sums, scale.looked_at + 1), scale, spans, events, room)


def _is_silent(picture: Picture, job: JobKey | None) -> bool:
    """Whether none of the job's nodes tells anything any more; of all nodes where it is None."""
    names = {name for motion in picture.motions if motion.job_key == job for name in motion.nodes}
    nodes = [view for view in picture.view.nodes if job is None or view.node in names]
    return bool(nodes) and not any(view.state.state == "live" for view in nodes)


def _series(sums: Sums, end: int) -> list[Series]:
    """``end``: the column after the one that is looked at. What nothing tells of has no graph."""
    name, values = sums.activity
    series = [Series(f"{name} active" if name == "SM" else name, percent(last_known(values[:end])), "10 min", values)]
    watts, rates = sums.whole(sums.power_w), sums.whole(sums.network_bytes_per_s)
    if (now := last_known(watts[:end])) is not None and (most := _most(watts)):
        series.append(Series("power", kilowatts(now), f"max {kilowatts(most)}", shares_of_most(watts, most)))
    if (now := last_known(rates[:end])) is not None and (most := _most(rates)):
        series.append(Series("network", f"{count(now)}B/s", f"max {count(most)}B/s", shares_of_most(rates, most)))
    return series


def _most(values: Values) -> float:
    return max((value for value in values if value is not None), default=0.0)
