"""What tables, texts and maps are: lines of cells that become strips, and a cursor on their items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mltop.tui.render.cells import Cell, cut, printable
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.guarded import FAILURES
from mltop.tui.render.palette import RAMP, Depth, Palette, palette

About = Literal["", "node", "gpu", "rank"]


class FailSafe(MessagePump):
    """A part of the screen whose handlers may fail: Textual would end the program at the first one.

    One that fails while it is being made would stay empty, and say nothing: that does end the program.
    """

    async def _dispatch_message(self, message: Any) -> None:
        try:
            await super()._dispatch_message(message)
        except Exception as error:
            if isinstance(message, events.Compose | events.Mount):
                raise
            FAILURES.take(f"{type(self).__name__} at {type(message).__name__}", error)


def _move(keys: str, action: str, name: str, what: str) -> Binding:
    """``name`` is also what the configuration gives other keys by: "page_up"."""
    return Binding(keys, action, name, show=False, tooltip=what, id=name.replace(" ", "_"))


MOVES: list[BindingType] = [
    _move("up,k", "cursor(-1)", "up", "one line up"),
    _move("down,j", "cursor(1)", "down", "one line down"),
    _move("pageup,ctrl+b", "page(-1)", "page up", "one page up"),
    _move("pagedown,ctrl+f", "page(1)", "page down", "one page down"),
    _move("ctrl+u", "half(-1)", "half up", "half a page up"),
    _move("ctrl+d", "half(1)", "half down", "half a page down"),
    _move("home,g", "edge(False)", "top", "to the first line"),
    _move("end,G", "edge(True)", "end", "to the last line"),
    _move("enter", "select", "open", "open what the cursor is on"),
]


_GLYPH_OF_TINT = {"graph-waits": GLYPHS.waits, "graph-crit": GLYPHS.ramp[0]}


def palette_of(app: App[Any]) -> Palette:
    """What the terminal can show, and whether the theme is a dark one."""
    depth: Depth = "true"
    if app.native_ansi_color:
        depth = "none" if app.no_color else "16"
    elif app.console.color_system == "256":
        depth = "256"
    return palette(depth, app.current_theme.dark, getattr(app, "ramp", RAMP))


def literal(text: str) -> Content:
    """For what Textual takes markup for: it may name nodes."""
    return Content(printable(text))


class CursorScreen(Screen[None]):
    """A screen of several views with a cursor, of which one is seen: that of the view which had the focus last."""

    def __init__(self) -> None:
        super().__init__()
        self.active_view: CursorView | None = None

    def activate(self, view: CursorView) -> None:
        before, self.active_view = self.active_view, view
        if before is not None and before is not view:
            before.repaint_changes()

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """Enter or a double click."""

    def graph_clicked(self, at: float) -> None:
        """The part of a graph that is of this time (unix s)."""

    def cursor_moved(self, view: CursorView, key: str) -> None:
        """The user, or the mouse, has put the cursor of ``view`` on this item."""


class CursorView(FailSafe, ScrollView, can_focus=True):
    """Lines that scroll, with items under a cursor: rows of a table, lines that can be opened, nodes of a map.

    Subclasses give lines and the items' keys to ``show_lines``, and say which line an item is on and of which cells a
    line is. Only screen lines whose content has changed are painted again. The cursor belongs to its item's key: it
    goes with the item when the order changes, and stays at its place when the item goes.
    """

    DEFAULT_CSS = """
    CursorView {
        background: $background;
        color: $foreground;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = MOVES
    HEADER: ClassVar[int] = 0  # screen lines above those that scroll
    about: About = ""  # what its items are
    over = ""  # what lies over all lines, of palette.OVERS

    class OfItem(Message):
        """About the item ``key`` of ``view``."""

        def __init__(self, view: CursorView, key: str) -> None:
            super().__init__()
            self.view = view
            self.key = key

    class Selected(OfItem):
        """Enter or a double click on the item ``key``."""

    class Highlighted(OfItem):
        """The cursor is now on the item ``key``."""

    def __init__(self, *, empty_text: str = "", **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self.empty_text, self.why_empty = empty_text, ""  # what is drawn when there is nothing else; the latter wins
        self._styles_by_name: dict[tuple[str, str], Style] = {}
        self._lines: Sequence[Any] = ()
        self._keys: Sequence[str] = ()
        self._cursor = 0
        self.cursor_key: str | None = None  # of the item under the cursor; None where there is no item
        self._painted: dict[int, object] = {}  # what each screen line was last made of

    # What subclasses say.

    def line_of(self, index: int) -> int:
        """The content line of item ``index``."""
        return index

    def item_at(self, x: int, line: int) -> int | None:  # noqa: ARG002 - of maps, where several are on a line
        """The item at a cell of a content line."""
        return line if line < len(self._keys) else None

    def cells_of(self, line: Any) -> Sequence[Cell]:
        """The cells of one of the lines that were given."""
        cells: Sequence[Cell] = line
        return cells

    def content(self, y: int) -> Any:
        """Everything that screen line ``y`` is made of, to be compared and drawn: the line and what lies over it; where
        there is none None, and what is written there.
        """
        line = self.content_line(y)
        if y < self.HEADER or line >= len(self._lines):
            text = "" if self._lines else self.why_empty or self.empty_text
            return None, "".join(text.split("\n")[y : y + 1])
        is_cursor = self.cursor_key is not None and self.item_at(0, line) == self._cursor
        return self._lines[line], self.cursor_style if is_cursor else self.over

    def draw(self, y: int, content: Any) -> Strip:  # noqa: ARG002 - of headers
        """Screen line ``y``, made of ``content``."""
        line, over = content
        width = self.scrollable_content_region.width
        return self.strip([Cell(over, "dim")], width) if line is None else self.strip(self.cells_of(line), width, over)

    def show_lines(self, lines: Sequence[Any], keys: Sequence[Any]) -> None:
        """New lines, and the keys of the items on them."""
        lines_before, cursor_was_visible = len(self._lines), self.cursor_is_visible()
        self._lines = lines
        self.set_items(keys)
        if len(self._lines) != lines_before:
            self.virtual_size = Size(0, self.HEADER + len(self._lines))
        if cursor_was_visible:
            self.scroll_to_cursor()
        self.lay_out()
        self.repaint_changes()

    def lay_out(self) -> None:
        """Where everything on a line is; for subclasses that decide that for all lines together."""

    # The cursor.

    @property
    def at_top(self) -> bool:
        """Whether the cursor is where it starts."""
        return self._cursor == 0

    def move_cursor(self, key: str) -> bool:
        """Put the cursor on the item ``key``; False when there is none."""
        index = self.index_of(key)
        if index is not None:
            self.place_at(index)
        return index is not None

    def text_at_cursor(self) -> str:
        """All that the item under the cursor says, as it is copied; "" where there is none."""
        return ""

    def texts(self) -> list[str]:
        """All lines, as they are exported."""
        return []

    def index_of(self, key: str) -> int | None:
        """The place of ``key`` in the order; looks where the cursor is first."""
        if self._cursor < len(self._keys) and self._keys[self._cursor] == key:
            return self._cursor
        try:
            return self._keys.index(key)
        except ValueError:
            return None

    def set_items(self, keys: Sequence[Any]) -> None:
        """New items: the cursor stays on its key, or where its key was."""
        self._keys = keys
        key = self.cursor_key
        index = self.index_of(key) if key is not None and self.follows_key else None
        self._cursor = self.place_without_key() if index is None else index
        self._notice_move()

    @property
    def follows_key(self) -> bool:
        """Whether the cursor goes with its item."""
        return True

    def place_without_key(self) -> int:
        """Where the cursor goes when its item is gone."""
        return min(self._cursor, max(0, len(self._keys) - 1))

    def _notice_move(self) -> None:
        key = self._keys[self._cursor] if self._keys else None
        if key != self.cursor_key:
            self.cursor_key = key
            if key is not None:
                self.report_move(key)

    def report_move(self, key: str) -> None:
        """Report that the cursor is on another item."""
        self.post_message(self.Highlighted(self, key))

    def move_to(self, index: int) -> None:
        """Where the user wants it."""
        self.place_at(index)
        if self.cursor_key is not None and self.is_attached and isinstance(self.screen, CursorScreen):
            self.screen.cursor_moved(self, self.cursor_key)

    def step_around(self, step: int) -> None:
        """To the next item, from the last to the first."""
        if self._keys:
            self.move_to((self._cursor + step) % len(self._keys))

    def place_at(self, index: int) -> None:
        if self._keys:
            self._cursor = min(max(index, 0), len(self._keys) - 1)
            self._notice_move()
            self.scroll_to_cursor()
            self.repaint_changes()

    # Keys and mouse.

    def action_cursor(self, step: int) -> None:
        if 0 <= self._cursor + step < len(self._keys) or not self.leave(step):
            self.move_to(self._cursor + step)

    def leave(self, step: int) -> bool:
        """Go on in the next part of the pane, beyond the first or the last item; False where there is none."""
        parts = [part for part in self.screen.query(CursorView) if part.display and part.focusable and part._keys]
        at = parts.index(self) + (1 if step > 0 else -1) if self in parts else -1
        if not 0 <= at < len(parts):
            return False
        if (moved := getattr(self.screen, "user_moved", None)) is not None:
            moved()
        parts[at].move_to(0 if step > 0 else len(parts[at]._keys) - 1)
        parts[at].focus(scroll_visible=False)
        return True

    def action_page(self, step: int) -> None:
        self.by_lines(step * max(1, self.page - 1))

    def action_half(self, step: int) -> None:
        self.by_lines(step * max(1, self.page // 2))

    def by_lines(self, lines: int) -> None:
        self.move_to(self._cursor + lines)

    def action_edge(self, end: bool) -> None:
        self.move_to(len(self._keys) - 1 if end else 0)

    def action_select(self) -> None:
        if self.cursor_key is not None:
            self.select(self.cursor_key)

    def select(self, key: str) -> None:
        """Have the screen open an item at once: what is pressed next may lead elsewhere."""
        selected = self.Selected(self, key)
        if isinstance(self.screen, CursorScreen):
            self.screen.on_cursor_view_selected(selected)
        else:
            self.post_message(selected)

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None or spot.y < self.HEADER:
            return
        index = self.item_at(spot.x, self.content_line(spot.y))
        if index is not None:
            self.move_to(index)
            if event.chain == 2:
                self.action_select()

    # Scrolling and painting.

    @property
    def page(self) -> int:
        """Lines that fit below the header."""
        return max(0, self.scrollable_content_region.height - self.HEADER)

    def content_line(self, y: int) -> int:
        """The content line at screen line ``y``."""
        return y - self.HEADER + round(self.scroll_y)

    def cursor_is_visible(self) -> bool:
        return not self._keys or 0 <= self.line_of(self._cursor) - round(self.scroll_y) < self.page

    def scroll_to_cursor(self) -> None:
        if self.page > 0 and not self.cursor_is_visible():
            line, top = self.line_of(self._cursor), round(self.scroll_y)
            self.scroll_to(y=line if line < top else line - self.page + 1, animate=False, force=True)

    @property
    def cursor_style(self) -> str:
        """The component that lies over what the cursor is on; none over that of a view in which the user is not."""
        if self.has_focus:
            return "cursor"
        elsewhere = isinstance(self.screen, CursorScreen) and self.screen.active_view is not self
        return "" if elsewhere else "cursor-blurred"

    def paint_line(self, y: int) -> Strip:
        content = self._painted[y] = self.content(y)
        return self.draw(y, content)

    def repaint_changes(self) -> None:
        self.refresh_screen_lines([y for y, painted in self._painted.items() if painted != self.content(y)])

    def on_resize(self) -> None:
        """Runs after the new size was painted: what is painted is known and must stay so."""
        self._painted = {y: painted for y, painted in self._painted.items() if y < self.size.height}
        self.scroll_to_cursor()

    def on_focus(self) -> None:
        if isinstance(self.screen, CursorScreen):
            self.screen.activate(self)
        self.repaint_changes()

    def on_blur(self) -> None:
        self.repaint_changes()

    # Styles.

    def notify_style_update(self) -> None:
        """The theme, or a class that styles depend on, changed."""
        self._styles_by_name.clear()
        self.drop_strips()
        super().notify_style_update()

    def drop_strips(self) -> None:
        """Forget drawn lines; for subclasses that keep them."""

    @property
    def palette(self) -> Palette:
        """The colours of this terminal and theme."""
        return palette_of(self.app)

    def cell_style(self, name: str, over: str = "") -> Style:
        """The full style (foreground and background, so that a line paints its own background) of a cell.

        ``over``: what lies over the line, of palette.OVERS. Unknown names draw like plain text.
        """
        key = (name, over)
        if key not in self._styles_by_name:
            self._styles_by_name[key] = self.rich_style + self.palette.style(name, over)
        return self._styles_by_name[key]

    def render_line(self, y: int) -> Strip:
        try:
            return self.paint_line(y)
        except Exception as error:  # noqa: BLE001 - one line is lost, not the screen
            sentence = FAILURES.take("this line", error)
            return self.strip([Cell(sentence, "crit")], self.scrollable_content_region.width)

    def strip(self, cells: Sequence[Cell], width: int, over: str = "") -> Strip:
        """A line of cells, cut or filled to ``width``. Every segment has a style: colour filters need one."""
        segments: list[Segment] = []
        left = width
        for cell in map(self._without_tint, cells):
            segment = Segment(printable(cell.text), self.cell_style(cell.style, over))
            left -= segment.cell_length
            segments.append(segment)
        if left < 0:
            return self.strip(cut(cells, width), width, over)
        if left > 0:
            segments.append(Segment(" " * left, self.cell_style("", over)))
        return Strip(segments, width)

    def _without_tint(self, cell: Cell) -> Cell:
        """Where there are no backgrounds, what a graph's background would say its glyphs say."""
        if cell.style not in _GLYPH_OF_TINT or self.palette.tints:
            return cell
        return Cell("".join(" " if glyph == " " else _GLYPH_OF_TINT[cell.style] for glyph in cell.text), cell.style)

    def refresh_screen_lines(self, lines: Iterable[int]) -> None:
        """Repaint single lines (0 is the top of the widget), one region each, full width.

        Textual sends every region from the widget's left edge (textual#5625), so narrower ones cost more.
        """
        width = self.size.width
        if regions := [Region(0, y, width, 1) for y in lines]:
            self.refresh(*regions)
