"""The last ten minutes of one job, and since when it has been as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.model import Incident, JobKey
from mltop.probes.model.units import clock_time, percent
from mltop.tui.render.cells import Cell
from mltop.tui.render.graph import LABEL_WIDTH, Event, Scale, Series, Span, stacked

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp

LEAST_ROWS, MOST_ROWS = 3, 5
_WAITS = ("hang", "crash")


def job_graph(app: MltopApp, job: JobKey, incident: Incident | None, width: int, room: int) -> list[list[Cell]]:
    """SM activity, where that is not known GPU-Util, in at most ``room`` lines; [] where nothing was kept of it."""
    columns = width - LABEL_WIDTH
    if columns < 1 or room < 1 + LEAST_ROWS or app.picture is None:
        return []
    sums = app.history.of_job(job, columns, app.graphs_until)
    if sums is None or sums.began >= columns:
        return []
    name, values = sums.activity
    scale = Scale(round(sums.until / sums.column_s) - 1, sums.column_s, 1, columns, app.moment)
    now = next((value for value in reversed(values[: scale.looked_at + 1]) if value is not None), None)
    series = Series(f"{name} active" if name == "SM" else name, percent(now), "10 min", values)
    spans, events = [], []
    if incident is not None and incident.since is not None:
        style = "waits" if incident.kind in _WAITS else "warn"
        spans = [Span(incident.since, incident.until, f"graph-{style}")]
        events = [Event(incident.since, clock_time(incident.since), style)]
    return stacked([series], scale, spans, events, min(room, 1 + MOST_ROWS))
