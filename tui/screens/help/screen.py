"""All keys, made from the bindings themselves, and what "/" takes; on the next page what words and marks mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.render.cells import Cell
from mltop.tui.screens.help.lines import Line, drawable, filter_blocks, help_lines, key_blocks
from mltop.tui.screens.help.terms import TERMS
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.widgets.cell_lines import CellLines

PAGES = ("keys and filters", "words and marks")


class HelpScreen(Pane):
    """A filter looks for lines of both pages."""

    AUTO_FOCUS = "#keys-list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "tab,right,left", "next_page", "other page", tooltip="keys, or what words and marks mean", priority=True
        )
    ]
    DEFAULT_CSS = """
    HelpScreen #keys-list { height: 1fr; }
    HelpScreen #pages { height: 1; }
    """
    lines_are = "lines of the help"

    def __init__(self) -> None:
        super().__init__()
        self._page = 0

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="pages")
        yield CellLines(id="keys-list", classes="gap-above", empty_text="no line of the help matches")

    def fill(self, picture: Picture) -> None:
        """The keys do not depend on what is watched."""

    def draw(self) -> None:
        super().draw()
        if self.is_composed:
            shown = [Cell(name, "title" if at == self._page else "dim") for at, name in enumerate(PAGES)]
            pages = [shown[0], Cell("   "), shown[1], Cell("   "), Cell("Tab", "keys"), Cell(" other page   ", "dim")]
            self.query_one("#pages", TextLines).set_lines([[*pages, Cell("/", "keys"), Cell(" search", "dim")]])
            self.query_one("#keys-list", CellLines).set_lines(drawable(self._lines()))

    def _lines(self) -> list[Line]:
        pane, keys = self.mltop.trail.before.pane, self.mltop.config.keys
        blocks, width = [*key_blocks(pane, len(self.nodes) > 1, keys), *filter_blocks()], self.size.width - 1
        if self.filter.empty:
            return help_lines(TERMS if self._page else blocks, width)
        found = [
            (title, [row for row in rows if self.keeps(f"{title} {' '.join(row)}")])
            for title, rows in (*blocks, *TERMS)
        ]
        return help_lines([block for block in found if block[1]], width)

    def action_next_page(self) -> None:
        self._page = 1 - self._page
        self.query_one("#keys-list", CellLines).action_edge(False)
        self.draw()
