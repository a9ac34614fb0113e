"""Parts of the printed probe: a table that says what it left out, and a span of figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mltop.tui.render.cells import Cell, Column, Row, layout, unknown_columns
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.units import known
from mltop.tui.report.page import print_sentence, print_table

if TYPE_CHECKING:
    from rich.console import Console

_UNIT = re.compile(r"[^\d.]*$")


def print_whole_table(title: str, columns: Sequence[Column], rows: Sequence[Row], console: Console) -> None:
    """As ``print_table``; the columns for which there was no room are named below it."""
    print_table(title, columns, rows, console)
    hidden = unknown_columns(columns, rows)
    shown = {index for index, _ in layout(columns, console.width, hidden)} | hidden
    left_out = [column.title for index, column in enumerate(columns) if index not in shown and column.title]
    if left_out:
        text = f"not shown at this width: {', '.join(left_out)} (--json has everything)"
        print_sentence([Cell(text, "dim")], console)


def span(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """ "655-682T" of 655.1 to 681.7; "" where nothing is known."""
    found = [value for value in values if value is not None and known(value)]
    if not found:
        return ""
    least, most = text(min(found)), text(max(found))
    if least == most:
        return least
    unit = _UNIT.search(most)
    end = unit.group() if unit is not None else ""
    return f"{least.removesuffix(end) if end else least}{GLYPHS.dash}{most}"
