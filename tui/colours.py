"""Which colours the terminal can tell apart."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from textual.theme import BUILTIN_THEMES

# Dark blue on black cannot be read; cyan can.
TERMINAL_THEME = replace(BUILTIN_THEMES["ansi-dark"], name="terminal", primary="ansi_cyan")


def few_colours() -> bool:
    """Whether only the terminal's own 16 colours, or none, can be told apart.

    In 16 colours the other themes' warning and error become one and the same red; NO_COLOR leaves them grey.
    """
    console = Console(force_terminal=True, legacy_windows=False)
    return console.no_color or console.color_system in (None, "standard")
