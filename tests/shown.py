"""What a terminal emulator shows, to be compared: letters and how they look."""

from __future__ import annotations

import pyte


def shown(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """Line by line, cell by cell; of blanks only what is seen of them."""
    return [[_cell(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]


def _cell(char: pyte.screens.Char) -> tuple[object, ...]:
    # pyte knows no faint letters, and reads colour 39 and 49 as "default".
    lines = char.underscore, char.strikethrough, char.reverse
    if char.data == " " and not any(lines):
        return " ", char.bg
    return char.data, char.fg, char.bg, char.bold, char.italics, *lines


def differences(one: pyte.Screen, other: pyte.Screen) -> list[tuple[int, int, object, object]]:
    """Line, column and both cells, where they do not show the same."""
    return [
        (y, x, mine, others)
        for y, (line, other_line) in enumerate(zip(shown(one), shown(other), strict=True))
        for x, (mine, others) in enumerate(zip(line, other_line, strict=True))
        if mine != others
    ]
