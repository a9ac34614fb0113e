"""The lines of what is wrong, on every pane that has some, selectable; and what gives way to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from mltop.probes.model import Finding, Incident
from mltop.tui.app.navigation import Location, incident_location
from mltop.tui.render.cells import Cell
from mltop.tui.render.problems import Told, lines_of, tells_of
from mltop.tui.screens.tabled import TabledScreen
from mltop.tui.widgets.cell_lines import CellLines

Lines = Sequence[Sequence[Cell]]


class Problems(CellLines):
    """``told``: what is wrong, in the order of its lines. ``first``: what comes to a pane that the user has not touched
    has the cursor.
    """

    def __init__(self, *, first: bool = True, **options: str) -> None:
        super().__init__(stays_first=True, **options)
        self._first = first
        self.told: Sequence[Told] = ()

    def show(self, told: Sequence[Told], now: float, width: int, room: int, last: Lines = ()) -> int:
        """At most ``room`` lines, below them ``last``; returns how many these are. Where all of it goes, the cursor
        goes on.
        """
        came = bool(told) and not self.told
        self.told = told
        shown = lines_of(told, now, width, max(1, room - len(last)) if room > 0 else 0)
        lines, keys = [*shown.lines], [*shown.keys]
        for line in last[: max(0, room - len(lines))]:
            lines.append([*line])
            keys.append(None)
        self.display = bool(lines)
        self.styles.height = len(lines)
        self.set_lines(lines, keys)
        focused = self.screen.focused
        if came and self._first and (focused is None or getattr(focused, "at_top", False)):
            self.focus(scroll_visible=False)
        elif self.has_focus and not told:
            self.screen.focus_next("LineTable, Heatmap")
        return len(lines)

    def select(self, key: str) -> None:
        """Open all of it; of what cannot be read (its key begins with "?") the node."""
        pane = cast("TabledScreen", self.screen)
        pane.mltop.drill(Location("node", pane.node_at_cursor()) if key.startswith("?") else incident_location(key))

    @property
    def at_cursor(self) -> Told | None:
        return next((one for one in self.told if one.key == self.cursor_key), None)

    def is_at(self, subject: Incident | Finding | None) -> bool:
        """Whether Enter opens this one."""
        told = self.at_cursor if self.has_focus else None
        return told is not None and subject is not None and tells_of(told, subject)


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


def lines_for(told: Sequence[Told], wanted: int, room: int, others: int) -> int:
    """How many of ``room`` lines what is wrong has where it needs ``wanted`` and something else shares them: of which
    healthy rows give way down to ``others`` lines before the text of a critical line does. Where nothing is critical
    a third, and always a line of each, if there are so many.
    """
    most = room - others if any(one.critical for one in told) else room // 3
    return max(0, min(wanted, max(most, min(len(told), room - others // 2))))


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
