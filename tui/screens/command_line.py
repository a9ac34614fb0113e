""" ":" at the bottom: our own command line, with what can be typed in a list above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from mltop.tui.app.resources import BY_NAME, Offer, Order, Scene, offers, order_of
from mltop.tui.config.settings import Wrong
from mltop.tui.render.cells import Cell, clip
from mltop.tui.screens.bars import LineHistory, LineOfScreen
from mltop.tui.widgets.cell_lines import CellLines

MOST_LINES = 8
TEXT_WIDTH = 24  # cells


class CommandList(CellLines, can_focus=False):
    DEFAULT_CSS = "CommandList { dock: bottom; layer: notice; margin-bottom: 1; height: 1; display: none; }"


class CommandBox(LineOfScreen):
    """Completes, and does what it says. Up and Down choose in the list, or bring earlier lines where nothing is typed
    yet. ``run`` obeys an order; ``closed`` is called when the line has gone.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+p", "choose(-1)", "one up", show=False),
        Binding("down,ctrl+n", "choose(1)", "one down", show=False),
        Binding("tab", "complete", "complete", show=False),
    ]
    DEFAULT_CSS = "CommandBox { layer: notice; }"
    prompt = ":"

    def __init__(
        self, history: LineHistory, run: Callable[[Order], None], closed: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(history, **options)
        self._obey, self._after = run, closed
        self._scene = Scene()
        self._offers: list[Offer] = []
        self._chosen = -1  # in them; -1: what is typed
        self._offered_for = ""  # the line that they fit to

    def open_on(self, text: str, scene: Scene) -> None:
        self._scene = scene
        self.open_with(text)
        self.screen.set_focus(self)
        self._offer()

    def _offer(self) -> None:
        self._offered_for, self._chosen = self.value, -1
        most = min(MOST_LINES, max(1, self.screen.size.height - 4))
        self._offers = offers(self.value.removeprefix(self.prompt), self._scene, most)
        self._show()

    def _show(self, refused: str = "") -> None:
        """The list, and below it what is wrong with the line."""
        shown = self.screen.query_one(CommandList)
        lines = [_line(offer, at == self._chosen, self.screen.size.width) for at, offer in enumerate(self._offers)]
        lines += [[Cell(f" {refused}", "warn")]] if refused else []
        shown.display = bool(lines)
        shown.styles.height = max(1, len(lines))
        shown.set_lines(lines)

    def on_input_changed(self, event: LineOfScreen.Changed) -> None:
        event.stop()
        if not self.display:
            return
        if event.value.startswith(self.prompt):
            self._offer()
        else:
            self.close()  # as in vi: the ":" itself was deleted

    def take_typed(self) -> None:
        if self._offered_for != self.value:  # the last letter may not have been reported yet
            self._offer()
        typed = self.value.removeprefix(self.prompt)
        chosen = self._offers[self._chosen].text if self._chosen >= 0 else typed
        try:
            try:
                order = order_of(chosen, self._scene)
            except Wrong:
                first = self._offers[0].text if self._offers and self._chosen < 0 else ""
                known = typed.strip() in BY_NAME
                if known or " " in typed or not first.startswith(typed.strip()) or not typed.strip():
                    raise
                order, chosen = order_of(first, self._scene), first
        except Wrong as why:
            self._show(str(why))
            return
        self.history.add(chosen)
        self.close()
        self._obey(order)

    def action_choose(self, step: int) -> None:
        if self.age >= 0 or (step < 0 and self.value == self.prompt and len(self.history)):
            self.action_recall(-step)
        elif self._offers:
            count = len(self._offers)
            self._chosen = (self._chosen + step) % count if self._chosen >= 0 else (0 if step > 0 else count - 1)
            self._show()

    def action_complete(self) -> None:
        """Take the chosen line of the list, or the first."""
        if self._offers:
            self.write(self._offers[max(0, self._chosen)].text + " ")

    def close(self) -> None:
        self.display = self.screen.query_one(CommandList).display = False
        self._after()


def _line(offer: Offer, chosen: bool, width: int) -> list[Cell]:
    text = f" {offer.text:<{TEXT_WIDTH}}  "
    return [Cell(text, "key" if not chosen else "title"), Cell(clip(offer.meaning, width - len(text)), "dim")]
