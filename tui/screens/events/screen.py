"""What happened on all nodes, or on one: findings as they come and go, what the kernels said; or all of one event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Cell
from mltop.tui.render.empty import empty_text
from mltop.tui.render.findings import Happening, happenings
from mltop.tui.render.story import Line
from mltop.tui.screens.events.lines import MOST_DRAWN, event_lines, page_of
from mltop.tui.screens.graphs import with_job_graph
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView


class EventsScreen(Pane):
    """``Location.event``: the key of the one that is shown whole; "": all, of ``Location.node`` or of all nodes."""

    AUTO_FOCUS = "#events"
    DEFAULT_CSS = """
    EventsScreen #events { height: 1fr; }
    EventsScreen #titles { height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: Sequence[Happening] = ()
        self._lines: Sequence[Line] = ()
        self._last: Happening | None = None  # the one that is or was shown whole
        self._was = ""

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="titles", classes="gap-above")
        yield CellLines(id="events", empty_text=empty_text("events"))

    def node_at_cursor(self) -> str:
        if self.mltop.trail.here.event:
            return self._last.node if self._last is not None else ""
        key = self.query_one("#events", CellLines).cursor_key
        return next((event.node for event in self._events if event.key == key), "")

    # Drawing.

    def fill(self, picture: Picture) -> None:
        views = {view.node: view for view in picture.view.nodes}
        here = self.mltop.trail.here
        listed = happenings(picture.findings, picture.ended, picture.events, here.node, self.mltop.acting.said)
        everything = [event for event in listed if event.node in views]
        keep = self.filter
        self._events = [
            event
            for event in everything
            if keep.empty or keep.keeps(Subject(views[event.node], text=_words(event), happening=event))
        ]
        self.counts = (len(self._events), len(everything))
        titles, text = self.query_one("#titles", TextLines), self.query_one("#events", CellLines)
        titles.display = not here.event
        self._lines = self._of_one(picture) if here.event else self._of_all(len(views), titles)
        text.set_lines([line.cells for line in self._lines], [line.key for line in self._lines])
        text.empty_text = f"no event matches {keep.text.strip()!r}" if everything else empty_text("events")
        if self._was != here.event:
            self._was = here.event
            if here.event:
                text.action_edge(False)

    def _of_all(self, nodes: int, titles: TextLines) -> list[Line]:
        width = self.size.width - 1
        several = nodes > 1 and not self.mltop.trail.here.node
        title, lines = event_lines(self._events[:MOST_DRAWN], width, with_nodes=several)
        titles.set_lines([title])
        left = len(self._events) - MOST_DRAWN
        if left > 0:
            return [*lines, Line([Cell(f"{left} more are older: / looks for them", "dim")])]
        return with_job_graph(self, lines, None, above=1)

    def _of_one(self, picture: Picture) -> list[Line]:
        key = self.mltop.trail.here.event
        found = next((event for event in self._events if event.key == key), None)
        self._last = found or (self._last if self._last is not None and self._last.key == key else None)
        if self._last is None:
            return [Line([Cell("this is not listed any more", "dim")])]
        return page_of(self._last, picture.incidents, picture.view.taken_at, self.size.width - 1, self.acts)

    # Keys.

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """To all of it; from there to its GPU or node, or to the incident that it is part of."""
        if self.mltop.trail.here.event:
            opens = next((line.opens for line in self._lines if line.key == event.key and line.opens is not None), None)
            if opens is not None:
                self.mltop.drill(opens)
        else:
            self.mltop.drill(Location("events", self.mltop.trail.here.node, event=event.key, label="event"))


def _words(event: Happening) -> str:
    return f"{event.node} {event.kind} {event.subject} {event.text}"
