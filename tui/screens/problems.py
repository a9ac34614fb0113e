"""The lines of what is wrong, on every pane that has some, selectable; and what gives way to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from mltop.probes.model import Finding, Incident
from mltop.tui.app.navigation import Location, incident_location
from mltop.tui.render.cells import Cell
from mltop.tui.render.story import Line, Story, height_of, lines_of
from mltop.tui.screens.tabled import TabledScreen
from mltop.tui.widgets.cell_lines import CellLines

Lines = Sequence[Sequence[Cell]]


class Problems(CellLines):
    """``stories``: what is wrong, in the order of its lines. ``first``: what comes to a pane that the user has not
    touched has the cursor.
    """

    def __init__(self, *, first: bool = True, **options: str) -> None:
        super().__init__(stays_first=True, **options)
        self._first = first
        self.stories: Sequence[Story] = ()

    def show(self, stories: Sequence[Story], now: float, width: int, room: int, last: Lines = ()) -> int:
        """At most ``room`` lines, below them ``last``; returns how many these are. Where all of it goes, the cursor
        goes on.
        """
        came = bool(stories) and not self.stories
        self.stories = stories
        lines = lines_of(stories, now, width, max(1, room - len(last)) if room > 0 else 0)
        lines += map(Line, last[: max(0, room - len(lines))])
        self.display = bool(lines)
        self.styles.height = len(lines)
        self.set_lines([line.cells for line in lines], [line.key for line in lines])
        focused = self.screen.focused
        if came and self._first and (focused is None or getattr(focused, "at_top", False)):
            self.focus(scroll_visible=False)
        elif self.has_focus and not stories:
            self.screen.focus_next("LineTable, Heatmap")
        return len(lines)

    def fit(self, stories: Sequence[Story], now: float, width: int, room: int, others: int) -> int:
        """In as many of ``room`` lines as the ``others`` on the pane leave; returns how many."""
        wanted = height_of(stories, now, width)
        return self.show(stories, now, width, lines_for(stories, wanted, room, others))

    def select(self, key: str) -> None:
        """Open all of it; of what cannot be read (its key begins with "?") the node."""
        pane = cast("TabledScreen", self.screen)
        pane.mltop.drill(Location("node", pane.node_at_cursor()) if key.startswith("?") else incident_location(key))

    @property
    def at_cursor(self) -> Story | None:
        return next((one for one in self.stories if one.key == self.cursor_key), None)

    def is_at(self, subject: Incident | Finding | None) -> bool:
        """Whether Enter opens this one."""
        story = self.at_cursor if self.has_focus else None
        return story is not None and subject is not None and story.is_about(subject)


# What gives way, and down to how many lines: blank lines have gone by then. Healthy rows go before the text of what is
# wrong, a line of which is the last that stays.
_STEPS = (
    ("tips", 0),
    ("ranks", 4),
    ("gpus", 5),
    ("host", 0),
    ("ranks", 0),
    ("gpus", 3),
)


def lines_for(stories: Sequence[Story], wanted: int, room: int, others: int) -> int:
    """How many of ``room`` lines what is wrong has where it needs ``wanted`` and something else shares them: of which
    healthy rows give way down to ``others`` lines before the text of a critical line does. Where nothing is critical
    a third, and always a line of each, if there are so many.
    """
    most = room - others if any(one.critical for one in stories) else room // 3
    return max(0, min(wanted, max(most, min(len(stories), room - others // 2))))


def squeezed(wanted: Mapping[str, int], room: int, least_problems: int) -> dict[str, int]:
    """The lines of each part where there is not room for all. ``least_problems``: a line of each."""
    heights = dict(wanted)
    for part, least in (*_STEPS, ("problems", least_problems), ("gpus", 2), ("problems", 1)):
        over = sum(heights.values()) - room
        if over <= 0:
            break
        if part in heights:
            heights[part] = max(min(least, heights[part]), heights[part] - over)
    if 0 < heights.get("ranks", 0) < 2:
        heights["ranks"] = 0
    return heights
