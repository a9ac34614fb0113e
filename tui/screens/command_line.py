""" ":" at the bottom: our own command line, with what may stand there in a list above it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from mltop.tui.app.resources import BY_NAME, Offer, Scene, offers, order_of
from mltop.tui.config.settings import Wrong
from mltop.tui.render.cells import Cell, clip
from mltop.tui.screens.bars import FilterHistory, LineOfScreen
from mltop.tui.screens.tabled import TabledScreen
from mltop.tui.widgets.cell_lines import CellLines

PROMPT = ":"
MOST_LINES = 8
TEXT_WIDTH = 24  # cells


class CommandList(CellLines, can_focus=False):
    DEFAULT_CSS = "CommandList { dock: bottom; layer: notice; margin-bottom: 1; height: 1; display: none; }"


class CommandBox(LineOfScreen):
    """The line that is typed, with its ":". Up and Down choose in the list, or bring earlier lines where nothing is
    typed yet.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+p", "screen.choose_command(-1)", "one up", show=False),
        Binding("down,ctrl+n", "screen.choose_command(1)", "one down", show=False),
        Binding("tab", "screen.complete_command", "complete", show=False),
    ]
    DEFAULT_CSS = """
    CommandBox { dock: bottom; layer: notice; height: 1; border: none; padding: 0; display: none; }
    CommandBox { background: $background; }
    """

    def open_with(self, text: str) -> None:
        self.value, self.display = PROMPT + text, True
        self.cursor_position = len(self.value)

    def take_over(self, text: str) -> None:
        self.value = PROMPT + text
        self.cursor_position = len(self.value)


class CommandedScreen(TabledScreen):
    """Opens the line, completes, and does what it says."""

    def __init__(self) -> None:
        super().__init__()
        self._scene = Scene()
        self._offers: list[Offer] = []
        self._chosen = -1  # in them; -1: what is typed
        self._offered_for = ""  # the line that they fit to
        self._said = ""  # what is wrong with the line
        self._age = -1  # of an earlier line, in the history

    @property
    def commanding(self) -> bool:
        """Whether the line is open."""
        return self.is_composed and bool(self.query_one(CommandBox).display)

    @property
    def typing(self) -> bool:
        return self.filtering or self.commanding

    @property
    def history(self) -> FilterHistory:
        return self.mltop.command_history

    def open_command_line(self, text: str, scene: Scene) -> None:
        self._scene, self._age, self._said = scene, -1, ""
        box = self.query_one(CommandBox)
        box.open_with(text)
        self.set_focus(box)
        self._offer()

    def _offer(self) -> None:
        text = self.query_one(CommandBox).value.removeprefix(PROMPT)
        self._offered_for = self.query_one(CommandBox).value
        self._offers, self._chosen = offers(text, self._scene, min(MOST_LINES, max(1, self.size.height - 4))), -1
        self._show_offers()

    def _show_offers(self) -> None:
        shown = self.query_one(CommandList)
        lines = [_line(offer, at == self._chosen, self.size.width) for at, offer in enumerate(self._offers)]
        if self._said:
            lines.append([Cell(f" {self._said}", "warn")])
        shown.display = bool(lines)
        shown.styles.height = max(1, len(lines))
        shown.set_lines(lines)

    def on_input_changed(self, event: CommandBox.Changed) -> None:
        """Textual calls this beside that of ``TabledScreen``, which hears of its own line only."""
        if not isinstance(event.input, CommandBox) or not event.input.display:
            return
        if not event.value.startswith(PROMPT):
            self._close_command_line()  # as in vi: the ":" itself was deleted
        else:
            self._said = ""
            self._offer()

    def take_typed(self, box: LineOfScreen) -> None:
        if isinstance(box, CommandBox):
            if self._offered_for != box.value:  # the last letter may not have been told yet
                self._offer()
            self._submit(box.value.removeprefix(PROMPT))
        else:
            super().take_typed(box)

    def _submit(self, typed: str) -> None:
        chosen = self._offers[self._chosen].text if self._chosen >= 0 else typed
        try:
            order = order_of(chosen, self._scene)
        except Wrong as why:
            first = self._offers[0].text if self._offers and self._chosen < 0 else ""
            known = typed.strip() in BY_NAME
            if known or " " in typed or not first.startswith(typed.strip()) or not typed.strip():
                self._refuse(str(why))
                return
            try:
                order, chosen = order_of(first, self._scene), first
            except Wrong as why_not:
                self._refuse(str(why_not))
                return
        self.history.add(chosen)
        self._close_command_line()
        self.mltop.run_order(order)

    def _refuse(self, why: str) -> None:
        self._said = why
        self._show_offers()

    def action_choose_command(self, step: int) -> None:
        box = self.query_one(CommandBox)
        if self._age >= 0 or (step < 0 and box.value == PROMPT and len(self.history)):
            self._age = max(-1, min(self._age - step, len(self.history) - 1))
            box.take_over(self.history[self._age] if self._age >= 0 else "")
        elif self._offers:
            self._chosen = (self._chosen + step) % len(self._offers) if self._chosen >= 0 else (0 if step > 0 else -1)
            self._chosen %= len(self._offers)
            self._show_offers()

    def action_complete_command(self) -> None:
        """Take the chosen line of the list, or the first."""
        if self._offers:
            self.query_one(CommandBox).take_over(self._offers[max(0, self._chosen)].text + " ")

    def clear_filter(self) -> bool:
        """Also closes this line."""
        if self.commanding:
            self._close_command_line()
            return True
        return super().clear_filter()

    def _close_command_line(self) -> None:
        self.query_one(CommandBox).display = False
        self.query_one(CommandList).display = False
        view = self.view_at_cursor()
        if view is not None:
            self.set_focus(view)
        self.draw()


def _line(offer: Offer, chosen: bool, width: int) -> list[Cell]:
    text = f" {offer.text:<{TEXT_WIDTH}}  "
    return [Cell(text, "key" if not chosen else "title"), Cell(clip(offer.meaning, width - len(text)), "dim")]
