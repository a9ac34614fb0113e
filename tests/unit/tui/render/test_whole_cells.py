"""Every column of every table with a value larger than it was made for: whole, or cut with an ellipsis."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from mltop.tui.render.cells import Cell, Column, MeteredCell, Row, columns_line, layout, needs, plain, table_lines
from mltop.tui.render.fleet.nodes import NODE_COLUMNS
from mltop.tui.render.gpus.table import GPU_COLUMNS, LINK_COLUMNS
from mltop.tui.render.links import LINK_COLUMNS as PORT_COLUMNS
from mltop.tui.render.links import PCI_COLUMNS
from mltop.tui.render.probes.kinds import TABLES
from mltop.tui.render.ranks import RANK_COLUMNS
from mltop.tui.report.page import Page
from mltop.tui.screens.gpu.screen import PROCESS_COLUMNS

ALL = {
    "gpus": GPU_COLUMNS,
    "nvlinks": LINK_COLUMNS,
    "ranks": RANK_COLUMNS,
    "nodes": NODE_COLUMNS,
    "ports": PORT_COLUMNS,
    "pci": PCI_COLUMNS,
    "processes": PROCESS_COLUMNS,
    **{f"probe {name}": table.columns for name, table in TABLES.items()},
}
WIDTHS = (80, 120, 200)
DIGITS = "123456789" * 4
WORDS = "wants a reset of this device and more of it"


def large(columns: Sequence[Column], more: int) -> Row:
    """A row whose cells are ``more`` cells too long for their columns; one of each kind of cell."""
    cells: list[Cell] = []
    for at, column in enumerate(columns):
        text = (DIGITS if column.right else WORDS)[: column.width + more].strip()
        cells.append(MeteredCell(text, "", (Cell(text[:3]), Cell(text[3:]))) if at % 2 else Cell(text))
    return Row("key", tuple(cells))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("more", [0, 1, 2, 9])
@pytest.mark.parametrize("name", ALL)
def test_no_cell_reads_as_less_than_it_says(name: str, more: int, width: int) -> None:
    columns = ALL[name]
    row = large(columns, more)
    shown = layout(columns, width, (), needs(columns, [row]))
    assert shown
    line, start = plain(columns_line(columns, row, shown)), 0
    for place, (index, cells) in enumerate(shown):
        text = line[start : start + cells]
        start += cells + columns[index].gap
        whole = row.cells[index].text
        assert text.strip() == whole or "…" in text, (columns[index].key, text)
        if columns[index].right and more < 3:
            assert text.strip() == whole, "figures take the room of other columns"
        assert place + 1 < len(shown) or len(line) == start - columns[index].gap


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ALL)
def test_titles_are_whole(name: str, width: int) -> None:
    columns = ALL[name]
    usual = Row("key", tuple(Cell("1" * min(column.width, 3)) for column in columns))
    assert "…" not in plain(table_lines(columns, [usual], width)[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_shows_at_least_the_columns_of_the_screen(width: int) -> None:
    for columns in ALL.values():
        row = Row("key", tuple(Cell("1" * min(column.width, 5)) for column in columns))
        printed = io.StringIO()
        left_out = Page(Console(file=printed, width=width)).table(columns, [row])
        assert left_out.isdisjoint(index for index, _ in layout(columns, width, (), needs(columns, [row])))
