"""Breaking sentences of cells into lines of a given width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from mltop.tui.render.cells import Cell, line_width, printable

_WORDS = re.compile(r"\s*\S+|\s+$")


def wrap(cells: Iterable[Cell], width: int, indent: int = 0) -> list[list[Cell]]:
    """Lines of at most ``width`` cells, broken between words; all but the first start with ``indent`` blanks.

    A word longer than a line is cut into pieces. At least one line is returned.
    """
    width = max(width, indent + 1)
    lines: list[list[Cell]] = [[]]
    used = 0
    for cell in cells:
        for word in _WORDS.findall(printable(cell.text)):
            if used + cell_len(word) > width and used > indent * (len(lines) > 1):
                lines.append([Cell(" " * indent)] if indent else [])
                used, word = indent, word.lstrip()  # noqa: PLW2901 - the blank before a broken word goes
            while used + cell_len(word) > width:
                head, word = _cut(word, width - used, fresh=used <= indent)  # noqa: PLW2901 - piece by piece
                _append(lines[-1], head, cell.style)
                lines.append([Cell(" " * indent)] if indent else [])
                used = indent
            _append(lines[-1], word, cell.style)
            used += cell_len(word)
    return lines


def _cut(word: str, room: int, fresh: bool) -> tuple[str, str]:
    """As many characters as fit into ``room`` cells, and the rest; on a fresh line at least one."""
    used = end = 0
    for end, char in enumerate(word):  # noqa: B007 - where it stopped
        used += cell_len(char)
        if used > room:
            break
    end = max(end, int(fresh))
    return word[:end], word[end:]


def _append(line: list[Cell], text: str, style: str) -> None:
    if line and line[-1].style == style:
        line[-1] = Cell(line[-1].text + text, style)
    elif text:
        line.append(Cell(text, style))


def flow(parts: Sequence[tuple[int, Sequence[Cell]]], width: int, gap: str = "  ") -> list[Cell]:
    """(priority, cells) parts of one status line, in order; the highest priorities go until the rest fits."""
    kept = [index for index, (_, cells) in enumerate(parts) if cells]

    def total() -> int:
        return sum(line_width(parts[index][1]) for index in kept) + len(gap) * (len(kept) - 1)

    while len(kept) > 1 and total() > width:
        kept.remove(max(kept, key=lambda index: (parts[index][0], index)))
    line: list[Cell] = []
    for index in kept:
        if line:
            line.append(Cell(gap))
        line.extend(parts[index][1])
    return line
