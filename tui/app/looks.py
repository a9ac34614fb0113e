"""Which colours the screen can have: the palette on a dark and on a light background, and the terminal's own."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

from rich.console import Console
from textual.scrollbar import ScrollBarRender
from textual.theme import BUILTIN_THEMES, Theme

from mltop.tui.render.palette import BACKGROUND, FOREGROUND, accents


def _theme(name: str, dark: bool) -> Theme:
    """For what Textual draws itself: the line of a filter, scrollbars, questions."""
    key, ok, warn, crit, panel = accents(dark)
    return Theme(
        name,
        primary=key,
        secondary=key,
        accent=key,
        success=ok,
        warning=warn,
        error=crit,
        foreground=FOREGROUND[not dark],
        background=BACKGROUND[not dark],
        surface=BACKGROUND[not dark],
        panel=panel,
        dark=dark,
    )


THEMES = {"dark": _theme("dark", dark=True), "light": _theme("light", dark=False)}
# Dark blue on black cannot be read; cyan can.
TERMINAL_THEME = replace(BUILTIN_THEMES["ansi-dark"], name="terminal", primary="ansi_cyan")
TERMINAL_LIGHT = replace(BUILTIN_THEMES["ansi-light"], name="terminal-light")


class AsciiScrollBar(ScrollBarRender):
    """Whole cells only, which are blanks in two colours."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


def few_colours() -> bool:
    """Whether only the terminal's own 16 colours, or none, can be told apart."""
    console = Console(force_terminal=True, legacy_windows=False)
    return console.no_color or console.color_system in (None, "standard")


def is_light() -> bool:
    """Whether the terminal says that its background is a light one (COLORFGBG, as rxvt, konsole and others set it)."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")
