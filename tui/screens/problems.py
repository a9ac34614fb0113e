"""The lines of what is wrong, on the first screens: selectable, and first under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model import Finding, Incident
from mltop.tui.render.cells import Cell
from mltop.tui.render.problems import Told, lines_of, tells_of
from mltop.tui.widgets.cell_lines import CellLines


class Problems(CellLines):
    """``told``: what is wrong, in the order of its lines."""

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.told: Sequence[Told] = ()

    def show(self, told: Sequence[Told], now: float, width: int, room: int, last: Sequence[Cell] = ()) -> int:
        """At most ``room`` lines, below them ``last``; returns how many these are. What comes first to a pane that the
        user has not touched has the cursor; where it goes, the cursor goes on.
        """
        came = bool(told) and not self.told
        self.told = told
        shown = lines_of(told, now, width, room - bool(last))
        lines, keys = [*shown.lines], [*shown.keys]
        if last and room > 0:
            lines.append([*last])
            keys.append(None)
        self.display = bool(lines)
        self.styles.height = len(lines)
        self.set_lines(lines, keys)
        focused = self.screen.focused
        if came and (focused is None or getattr(focused, "at_top", False)):
            self.focus(scroll_visible=False)
        elif self.has_focus and not told:
            self.screen.focus_next("LineTable, Heatmap")
        return len(lines)

    @property
    def at_cursor(self) -> Told | None:
        return next((one for one in self.told if one.key == self.cursor_key), None)

    def is_at(self, subject: Incident | Finding | None) -> bool:
        """Whether Enter opens this one."""
        told = self.at_cursor if self.has_focus else None
        return told is not None and subject is not None and tells_of(told, subject)
