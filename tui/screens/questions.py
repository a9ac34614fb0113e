"""Questions before something is done to processes or machines: what, where, whose; No unless y is pressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from mltop.probes.investigate.acting import Facts, RankProcess
from mltop.probes.model.acts import SignalName
from mltop.tui.render.acts import MENU, menu_lines, question_lines
from mltop.tui.render.cells import Cell, flow
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.slurm import SlurmLines, box_lines
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import literal

if TYPE_CHECKING:
    from mltop.probes.investigate.session import LiveSession

WIDTH, LEAST_BESIDE = 76, 10  # cells; where less than this would be left beside the box, it takes all
FRAME = 4  # cells: border and padding

Answer = TypeVar("Answer")
Lines = list[list[Cell]]


class Box(ModalScreen[Answer]):
    """Lines in a box over the pane, and the keys below them. Subclasses say both."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "up"),
        Binding("pagedown", "scroll(1)", "down"),
    ]
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    Box { align: center middle; }
    Box #box {
        width: 100%; height: auto; max-height: 100%; padding: 0 1;
        border: round $primary; background: $background;
    }
    Box.-ascii #box { border: ascii $primary; }
    Box #text { height: 1; }
    Box #keys { height: 1; }
    """

    title_text = ""
    chrome = 3  # lines beside the text: border and keys

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield CellLines(id="text")
            yield CellLines(id="keys")

    def on_mount(self) -> None:
        for part in self.query(CellLines):
            part.can_focus = False
        self.set_class(GLYPHS.ascii_only, "-ascii")
        self.query_one("#box").border_title = literal(self.title_text)
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def lines(self, width: int) -> Lines:
        raise NotImplementedError

    def keys(self) -> Sequence[tuple[str, str]]:
        """(key, what it does), the most important first."""
        raise NotImplementedError

    def draw(self) -> None:
        if not self.is_mounted or not self.query("#keys"):
            return
        box, text = self.query_one("#box"), self.query_one("#text", CellLines)
        outer = WIDTH if self.size.width >= WIDTH + LEAST_BESIDE else self.size.width
        box.styles.width = outer
        lines = self.lines(outer - FRAME)
        text.styles.height = max(1, min(len(lines), self.size.height - self.chrome))
        text.set_lines(lines)
        parts = [
            (index, [Cell(key, "accent"), Cell(f" {what}", "dim")]) for index, (key, what) in enumerate(self.keys())
        ]
        self.query_one("#keys", CellLines).set_lines([flow(parts, outer - FRAME)])

    def action_scroll(self, step: int) -> None:
        self.query_one("#text", CellLines).action_page(step)


class Ask(Box[bool]):
    """A question of yes or no. ``verb``: what y does; ``text``: the lines of the question, for a width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("escape,n,q,enter", "answer(False)", "cancel"),
    ]

    def __init__(self, title: str, verb: str, text: Callable[[int], Lines]) -> None:
        super().__init__()
        self.title_text, self._verb, self._text = title, verb, text

    def lines(self, width: int) -> Lines:
        return self._text(width)

    def keys(self) -> Sequence[tuple[str, str]]:
        return (("y", self._verb), ("Esc", "cancel"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class SlurmBox(Box[None]):
    """The lines for Slurm, to be copied."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy(0)", "copy"),
        Binding("e", "copy(1)", "copy the exclude list"),
        Binding("escape,n,q,enter", "leave", "close"),
    ]

    def __init__(self, slurm: SlurmLines, title: str) -> None:
        super().__init__()
        self._slurm, self.title_text = slurm, title
        self._copied = ""

    def lines(self, width: int) -> Lines:
        return box_lines(self._slurm, self._copied, width)

    def keys(self) -> Sequence[tuple[str, str]]:
        both = bool(self._slurm.drain)
        copy = (("y", "copy the drain line"), ("e", "copy the exclude list")) if both else (("y", "copy the list"),)
        return (*(copy if self._slurm.best else ()), ("Esc", "close"))

    def action_copy(self, which: int) -> None:
        """To the terminal's clipboard (OSC 52); what was copied is shown, as not every terminal takes it."""
        line = self._slurm.exclude if which else self._slurm.best
        if line:
            self.app.copy_to_clipboard(line)
            self._copied = line
            self.draw()

    def action_leave(self) -> None:
        self.dismiss(None)


class AskSignal(Box[SignalName | None]):
    """First which signal, as htop's F9 does, then whether it is really to be sent. Dismissed with it, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "next", "choose"),
        Binding("y", "send", "send"),
        Binding("escape,n,q", "refuse", "cancel"),
        Binding("up,k", "move(-1)", "signal before"),
        Binding("down,j", "move(1)", "next signal"),
    ]
    title_text = "send a signal?"

    def __init__(self, live: LiveSession, processes: Sequence[RankProcess]) -> None:
        super().__init__()
        self._live, self._processes = live, processes
        self._at, self._asking = 0, False
        self._facts: Facts | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self._live.signal_facts(self._processes, self._bring)

    def _bring(self, facts: Facts) -> None:
        """Called by another thread."""
        self.call_later(self._show, facts)

    def _show(self, facts: Facts) -> None:
        self._facts = facts
        self.draw()

    def lines(self, width: int) -> Lines:
        if self._asking:
            return question_lines(self._processes, self._facts, MENU[self._at], width)
        return menu_lines(self._processes, self._facts, self._at, width)

    def keys(self) -> Sequence[tuple[str, str]]:
        if self._asking:
            return (("y", "send"), ("Esc", "cancel"))
        return (("Enter", "choose"), ("Esc", "cancel"), ("Up Down", "signal"))

    def action_move(self, step: int) -> None:
        if not self._asking:
            self._at = (self._at + step) % len(MENU)
            self.draw()

    def action_next(self) -> None:
        """On the question Enter means No: whoever presses it twice has sent nothing."""
        if self._asking:
            self.dismiss(None)
        else:
            self._asking = True
            self.draw()

    def action_send(self) -> None:
        if self._asking:
            self.dismiss(MENU[self._at])

    def action_refuse(self) -> None:
        if self._asking:
            self._asking = False
            self.draw()
        else:
            self.dismiss(None)
