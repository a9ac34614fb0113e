"""What is wrong, the gravest first, and what is over; or all that is known of one, and what it was opened from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import Incident, JobKey, StackDigest
from mltop.tui.app.feed import Picture
from mltop.tui.app.keys import ASKS
from mltop.tui.app.navigation import Location, incident_location
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.answer import Answer
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.empty import empty_text
from mltop.tui.render.stacks.verdict import digests_of
from mltop.tui.render.story import Line, Scope, Story, ended_stories, lines_of, spaced
from mltop.tui.screens.graphs import LEAST_ROWS, with_job_graph
from mltop.tui.screens.incidents.page import Known, Page
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.tables import ranks_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

_ALL = 10_000  # lines, which are scrolled


class IncidentsScreen(Pane):
    """``Location.incident``: the one that is shown whole, by its id or its line's key; "": all, some lines each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "neighbour(1)", "next", show=False, tooltip="to the next incident"),
        Binding("i", "ask_ras", "ras", tooltip=f"ask NCCL's RAS about this job, once{ASKS}"),
        Binding("N", "neighbour(-1)", "before", show=False, tooltip="to the incident before"),
    ]
    lines_are = "lines of incidents"
    AUTO_FOCUS = "#all"
    DEFAULT_CSS = "IncidentsScreen #all { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._stories: Sequence[Story] = ()
        self._lines: Sequence[Line] = ()
        self._shown = ""  # Location.incident when it was last drawn
        self._last: Incident | None = None  # the one that is or was shown whole

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="all", stays_first=True, classes="gap-above", empty_text=empty_text("incidents"))

    @property
    def _here(self) -> str:
        return self.mltop.trail.here.incident

    def opens(self, answer: Answer) -> tuple[str, str]:
        if self._here:
            return KEYCAPS["back"], "back"
        at_cursor = self._at_cursor
        on_it = at_cursor is not None and answer.about is not None and at_cursor.is_about(answer.about)
        return (KEYCAPS["open"], "opens") if on_it else (KEYCAPS["top"], "to the first")

    def titles(self, picture: Picture) -> list[str]:
        if not self._here or self._last is None:
            return super().titles(picture)
        keys = [one.key for one in self._stories]
        place = f"incident {keys.index(self._here) + 1} of {len(keys)}" if self._here in keys else "incident"
        kind = self._last.kind if self._last.kind != "node" else "affects no job"
        return [f"{place}: {kind}, confidence {self._last.confidence}", place, "incident"]

    def node_at_cursor(self) -> str:
        """That of what the cursor's line is about."""
        key = self.query_one("#all", CellLines).cursor_key
        if self._here:
            places = [line.opens for line in self._lines if line.key == key and isinstance(line.opens, Location)]
            named = [one.node for one in self._last.culprits] if self._last is not None else []
            return next(filter(None, [*(place.node for place in places[:1]), *named]), "")
        story = self._at_cursor
        return story.nodes[0] if story is not None and story.nodes else ""

    @property
    def _at_cursor(self) -> Story | None:
        key = self.query_one("#all", CellLines).cursor_key
        return next((one for one in self._stories if one.key == key), None)

    # Drawing.

    def fill(self, picture: Picture) -> None:
        scope = Scope(one=len(picture.view.nodes) == 1, acts=self.acts)
        self._stories = [*self.stories(picture), *ended_stories(picture.incidents, scope)]
        self._lines = self._of_one(picture) if self._here else self._with_graph(self._of_all(picture))
        shown = [line for line in self._lines if self.filter.empty or self.keeps(plain(line.cells))]
        text = self.query_one("#all", CellLines)
        text.set_lines([line.cells for line in shown], [line.key for line in shown])
        if self._shown != self._here:
            self._shown = self._here
            text.action_edge(False)

    def _of_all(self, picture: Picture) -> list[Line]:
        now, width = picture.view.taken_at, self.size.width - 1
        firing = [lines_of([one], now, width, _ALL) for one in self._stories if one.until is None]
        over = lines_of([one for one in self._stories if one.until is not None], now, width, _ALL)
        return spaced([*firing, [Line([Cell("  OVER", "head")]), *over] if over else []])

    def _with_graph(self, lines: list[Line]) -> list[Line]:
        """In the lines that all of them leave: how the job went that the gravest is of, else all nodes."""
        first = next((one.incident for one in self._stories if one.until is None and one.incident is not None), None)
        job = JobKey(first.job, first.uid) if first is not None and first.job else None
        return with_job_graph(self, lines, job, first if job is not None else None)

    def _of_one(self, picture: Picture) -> list[Line]:
        incident = next((one.incident for one in self._stories if one.key == self._here), None)
        incident = incident or next((one for one in picture.incidents if one.id == self._here), None)
        if incident is not None:
            self._last = incident
        if self._last is None or (incident is None and self._last.id != self._here):
            return [Line([Cell("this is over, and nothing is kept of it", "dim")])]
        known = self._known(picture, self._last)
        lines = Page(self._last, known, self.size.width - 1).lines()
        over = [Line([Cell("it is over; below is what was known of it last", "dim")])] if incident is None else []
        lines, job = spaced([over, lines]), JobKey(self._last.job, self._last.uid)
        return with_job_graph(self, lines, job, self._last, least=LEAST_ROWS + 1) if job.name else lines

    def _known(self, picture: Picture, incident: Incident) -> Known:
        accused = {one.node for one in incident.culprits if one.pid is not None}
        views = [node for node in picture.view.nodes if node.node in accused]
        users = {(node.node, rank.pid): rank.user for node in views for rank in ranks_of(node)}
        shown = {self._here, incident.id}
        explained = {finding.identity for finding in incident.findings}
        firing = [one for one in self._stories if one.until is None and one.key not in shown]
        apart = [one for one in firing if explained.isdisjoint(finding.identity for finding in one.findings)]
        here = frozenset(node.node for node in picture.view.nodes)
        now = picture.view.taken_at
        ras = self.mltop.ras_cells(JobKey(incident.job, incident.uid), now) if incident.job else ()
        return Known(now, here, users, self._stacks(incident), apart, self.acts, ras)

    def _stacks(self, incident: Incident) -> list[StackDigest]:
        """Those of its job in the newest dump, main threads first."""
        result = self.mltop.investigation.result
        digests = digests_of(result.reports, JobKey(incident.job, incident.uid)) if result is not None else []
        return sorted(digests, key=lambda digest: digest.thread != "MainThread")

    # Keys.

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """To what the line is about: one incident, a rank, a GPU, a node, the stacks."""
        found = (line.opens for line in self._lines if line.key == event.key and line.opens is not None)
        opens = next(found, None) if self._here else incident_location(event.key)
        if opens is not None:
            self.mltop.drill(opens)

    def action_ask_ras(self) -> None:
        """About the job of the incident that is shown; of all: that the cursor is on, else the gravest that hangs."""
        stories = [*filter(None, [self._at_cursor]), *self._stories]
        listed = [self._last] if self._here else [one.incident for one in stories]
        hung = (one for one in listed if one is not None and one.kind == "hang" and one.until is None)
        incident = next(hung, None)
        self.mltop.ask_ras(JobKey(incident.job, incident.uid) if incident is not None else None)

    def action_neighbour(self, step: int) -> None:
        """Of the one that is shown whole; from the last to the first."""
        keys = [one.key for one in self._stories]
        if self._here and keys:
            at = keys.index(self._here) if self._here in keys else -step
            self.mltop.trail.replace(incident_location(keys[(at + step) % len(keys)]))
            self.draw()
