"""The line in which a filter is typed; Up brings back earlier ones of this session."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from mltop.tui.screens.typed_box import TypedBox

PLACEHOLDER = "filter: words, !word, node=gpu0*, sm<20% & power>300W"
MOST_KEPT = 50


class FilterHistory:
    """Filters that were kept with Enter, the newest last."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        if text.strip():
            self._texts = [*(known for known in self._texts if known != text), text][-MOST_KEPT:]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> str:
        """0 is the newest."""
        return self._texts[len(self._texts) - 1 - place]


class FilterBox(TypedBox):
    """What is typed goes where Input sends it: ``Changed`` and ``Submitted``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(1)", "earlier", show=False),
        Binding("down", "recall(-1)", "later", show=False),
    ]
    DEFAULT_CSS = "FilterBox { height: 1; border: none; padding: 0; display: none; background: $background; }"

    def __init__(self, history: FilterHistory, **options: Any) -> None:
        super().__init__(placeholder=PLACEHOLDER, compact=True, **options)
        self._history = history
        self._place = -1  # in the history; -1: what is being typed
        self._typed = ""

    def open_with(self, text: str) -> None:
        self._place, self.value, self.display = -1, text, True
        self.cursor_position = len(text)

    def action_recall(self, step: int) -> None:
        """Go to an earlier filter, or back towards what was being typed."""
        place = self._place + step
        if not -1 <= place < len(self._history):
            return
        if self._place == -1:
            self._typed = self.value
        self._place = place
        self.value = self._typed if place == -1 else self._history[place]
        self.cursor_position = len(self.value)
