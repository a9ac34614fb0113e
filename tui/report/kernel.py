"""What `mltop kernel` prints: every new kind of line with an example, what the fewest nodes have first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.folding import folded
from mltop.probes.judge.kernel_lines import KernelLine
from mltop.tui.render.cells import Cell, Column, Row, columns_line, header_line, layout, line_width
from mltop.tui.render.units import UNKNOWN, count, seconds
from mltop.tui.report.page import print_lines, print_sentence

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_COLUMNS = (
    Column("level", "LEVEL", 6),
    Column("nodes", "NODES", 16),
    Column("count", "COUNT", 5, right=True),
    Column("last", "LAST", 7, right=True),
)
_WIDE_NAMES = 16  # cells: folded names that are longer get a line of their own


def print_kernel(
    lines: Sequence[KernelLine], shown: Sequence[KernelLine], console: Console, *, most: int, nodes: int, now: float
) -> None:
    """``lines``: all that ``nodes`` nodes have; of ``shown`` the first ``most`` are listed; ``now``: unix s."""
    shown, hidden = shown[:most], len(shown) - most
    if shown:
        columns = layout(_COLUMNS, console.width)
        print_lines([[*header_line(_COLUMNS, columns), Cell(" LINE", "title")]], console)
        for line in shown:
            _print_line(line, now, console)
    if hidden > 0:
        print_lines([[Cell(f"and {hidden} more (--all shows them)", "dim")]], console)
    print_lines([[Cell(summary(lines, nodes))]], console)


def summary(lines: Sequence[KernelLine], nodes: int) -> str:
    """ "2 of 1216 kinds of lines are new (1200 known, 14 on most of 32 nodes)"."""
    new, known = sum(line.is_new for line in lines), sum(line.known for line in lines)
    others = [f"{known} known"] if known else []
    common = len(lines) - new - known
    others += [f"{common} on most of {nodes} nodes"] if common else []
    return f"{new or 'none'} of {len(lines)} kinds of lines new" + (f" ({', '.join(others)})" if others else "")


def _print_line(line: KernelLine, now: float, console: Console) -> None:
    names = folded(line.nodes)
    style = "crit" if line.level <= 3 else "warn" if line.level == 4 else ""
    last = UNKNOWN if line.last_at is None else seconds(max(0.0, now - line.last_at))
    cells = (Cell(LEVELS[line.level & 7], style), Cell(names), Cell(count(line.count)), Cell(last))
    if len(names) > _WIDE_NAMES:
        print_sentence([Cell(names)], console)
        cells = (cells[0], Cell(f"{len(line.nodes)} nodes"), *cells[2:])
    start = columns_line(_COLUMNS, Row("", cells), layout(_COLUMNS, console.width))
    indent = line_width(start) + 1
    print_sentence([*start, Cell(" " + line.example)], console, indent if indent < console.width * 2 // 3 else 4)
