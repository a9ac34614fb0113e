"""What happened on all nodes, or on one: findings as they come and go, and what the kernels said."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.filters import Subject
from mltop.tui.render.cells import values_of
from mltop.tui.render.findings import EVENT_COLUMNS, EventLine, Happening, event_row, happenings
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.rows import SubjectRows
from mltop.tui.widgets.line_table import LineTable


class EventsScreen(Pane):
    DEFAULT_CSS = "EventsScreen LineTable { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[Happening] = []

    def body(self) -> Iterable[Widget]:
        yield LineTable(empty_text="nothing happened that mltop knows of")

    def node_at_cursor(self) -> str:
        key = self.query_one(LineTable).cursor_key
        return next((happening.node for happening in self._shown if happening.key == key), "")

    def fill(self, picture: Picture) -> None:
        views = {view.node: view for view in picture.view.nodes}
        everything = happenings(picture.findings, picture.ended, picture.events, self.mltop.trail.here.node)
        shown = self._shown = [happening for happening in everything if happening.node in views]
        rows = SubjectRows(
            [happening.key for happening in shown],
            lambda index: event_row(shown[index], picture.view.taken_at),
            subject=lambda index: Subject(views[shown[index].node]),
            value=values_of(EVENT_COLUMNS, [EventLine(happening, picture.view.taken_at) for happening in shown]),
        )
        self.put(self.query_one(LineTable), EVENT_COLUMNS, rows)

    def on_cursor_view_selected(self) -> None:
        node = self.node_at_cursor()
        if node:
            self.mltop.drill(Location("node", node))
