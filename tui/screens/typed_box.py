"""A line of text that gets also what was typed before it had the focus."""

from __future__ import annotations

from textual.events import Key
from textual.widgets import Input

from mltop.probes.model.text import clean


class TypedBox(Input):
    """Give it the focus by ``Screen.set_focus``: it is there at once then, ``focus()`` comes too late for the Enter."""

    def validate_value(self, value: str) -> str:
        """What is pasted is cleaned as all that is drawn."""
        return clean(value)

    def take(self, event: Key) -> bool:
        """A key that went elsewhere because it was typed before this line had the focus; False: it is no text."""
        if event.is_printable and event.character is not None:
            self.insert_text_at_cursor(event.character)
            return True
        return False
