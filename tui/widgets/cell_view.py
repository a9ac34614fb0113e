"""Parts of the screen that survive what fails in them.

What the table and the text view share: cells become strips, styles come from CSS and are cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message_pump import MessagePump
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mltop.tui.app.mishaps import MISHAPS
from mltop.tui.render.cells import STYLES, Cell, clip, printable


class Unbroken(MessagePump):
    """A part of the screen whose handlers may fail: Textual would end the program at the first one."""

    async def _dispatch_message(self, message: Any) -> None:
        try:
            await super()._dispatch_message(message)
        except Exception as error:  # noqa: BLE001 - likewise
            MISHAPS.take(f"{type(self).__name__} at {type(message).__name__}", error)


MOVES: list[BindingType] = [
    Binding("up,k", "cursor(-1)", "up", show=False, tooltip="one line up"),
    Binding("down,j", "cursor(1)", "down", show=False, tooltip="one line down"),
    Binding("pageup", "page(-1)", "page up", show=False, tooltip="one page up"),
    Binding("pagedown", "page(1)", "page down", show=False, tooltip="one page down"),
    Binding("home,g", "edge(False)", "top", show=False, tooltip="to the first line"),
    Binding("end,G", "edge(True)", "end", show=False, tooltip="to the last line"),
    Binding("enter", "select", "open", show=False, tooltip="open what the cursor is on"),
]


class CellView(Unbroken, ScrollView):
    """Draws lines of cells. Subclasses say in ``paint_line`` which line of cells stands at each screen line."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"cell--{name}" for name in STYLES if name} | {
        "cell--header",
        "cell--cursor",
        "cell--cursor-blurred",
    }
    # In ANSI themes a background may not be visible (NO_COLOR removes it): there the cursor is reversed.
    DEFAULT_CSS = """
    CellView {
        background: $background;
        color: $foreground;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
        & > .cell--dim { color: $foreground 60%; }
        & > .cell--ok { color: $text-success; }
        & > .cell--warn { color: $text-warning; text-style: bold; }
        & > .cell--crit { color: $text-error; text-style: bold; }
        & > .cell--accent { color: $text-primary; }
        & > .cell--title { text-style: bold; }
        & > .cell--bold { text-style: bold; }
        & > .cell--header { background: $panel; text-style: bold; }
        & > .cell--cursor { background: $primary 35%; text-style: bold; }
        & > .cell--cursor-blurred { background: $primary 15%; }
        &:light > .cell--cursor { background: $primary 20%; }
        &:ansi > .cell--dim { color: $foreground; text-style: dim; }
        &:ansi > .cell--header { background: ansi_default; text-style: bold underline; }
        &:ansi > .cell--cursor { background: ansi_default; text-style: reverse; }
        &:ansi > .cell--cursor-blurred { background: ansi_default; text-style: bold; }
    }
    """

    def __init__(self, *, empty_text: str = "", **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._empty_text = empty_text
        self._styles_by_name: dict[tuple[str, str], Style] = {}

    @property
    def empty_text(self) -> str:
        """What is drawn when there is nothing else."""
        return self._empty_text

    @empty_text.setter
    def empty_text(self, text: str) -> None:
        if text != self._empty_text:
            self._empty_text = text
            self.refresh()

    def notify_style_update(self) -> None:
        """The theme, or a class that styles depend on, changed."""
        self._styles_by_name.clear()
        self.drop_strips()
        super().notify_style_update()

    def drop_strips(self) -> None:
        """Forget drawn lines; for subclasses that keep them."""

    def cell_style(self, name: str, over: str = "") -> Style:
        """The full style (foreground and background, so that a line paints its own background) of a cell.

        ``over`` is a component on top: header, cursor or cursor-blurred. Unknown names draw like plain text.
        """
        key = (name, over)
        if key not in self._styles_by_name:
            style = self.rich_style
            for component in (name, over):
                if component and f"cell--{component}" in self.COMPONENT_CLASSES:
                    style += self._difference(f"cell--{component}")
            self._styles_by_name[key] = style
        return self._styles_by_name[key]

    def _difference(self, component: str) -> Style:
        """Only what the component's CSS sets itself: its colour, its background, its text style."""
        rules = self.get_component_styles(component)
        full = self.get_component_rich_style(component)
        return (
            Style(
                color=full.color if rules.has_rule("color") else None,
                bgcolor=full.bgcolor if rules.has_rule("background") else None,
            )
            + rules.text_style
        )

    def paint_line(self, y: int) -> Strip:
        """Screen line ``y``, 0 is the top of the widget."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        try:
            return self.paint_line(y)
        except Exception as error:  # noqa: BLE001 - one line is lost, not the screen
            sentence = MISHAPS.take("this line", error)
            return self.strip([Cell(sentence, "crit")], self.scrollable_content_region.width)

    def strip(self, cells: Iterable[Cell], width: int, over: str = "") -> Strip:
        """A line of cells, cut or filled to ``width``. Every segment has a style: colour filters need one."""
        segments: list[Segment] = []
        left = width
        for cell in cells:
            if left <= 0:
                break
            segment = _segment(cell, left, self.cell_style(cell.style, over))
            left -= segment.cell_length
            segments.append(segment)
        if left > 0:
            segments.append(Segment(" " * left, self.cell_style("", over)))
        return Strip(segments, width)

    def refresh_screen_lines(self, lines: Iterable[int]) -> None:
        """Repaint single lines (0 is the top of the widget), one region each, full width.

        Textual sends every region from the widget's left edge (textual#5625), so narrower ones cost more.
        """
        width = self.size.width
        regions: Sequence[Region] = [Region(0, y, width, 1) for y in lines]
        if regions:
            self.refresh(*regions)


def _segment(cell: Cell, room: int, style: Style) -> Segment:
    text = printable(cell.text)
    segment = Segment(text, style)
    return segment if segment.cell_length <= room else Segment(clip(text, room), style)
