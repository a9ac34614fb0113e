"""Facts in titled blocks, set in as many columns as there is room for. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.tui.render.cells import Cell, clip, line_width

COLUMN_WIDTH = 40
LABEL_WIDTH = 14


@dataclass(frozen=True)
class Fact:
    """``why``: why it is unknown, said in its place."""

    label: str
    text: str
    style: str = ""
    why: str = ""


@dataclass(frozen=True)
class Block:
    title: str
    facts: Sequence[Fact]


def block_lines(blocks: Sequence[Block], width: int) -> list[list[Cell]]:
    """All blocks that have facts; each goes below the shortest column so far, a blank line between two."""
    count = max(1, (width + 1) // COLUMN_WIDTH)
    each = width // count
    columns: list[list[list[Cell]]] = [[] for _ in range(count)]
    for block in blocks:
        if block.facts:
            column = min(columns, key=len)
            column += [[]] if column else []
            column += [[Cell(clip(block.title, each - 1), "title")]]
            column += [_fact_line(fact, each - 1) for fact in block.facts]
    height = max(map(len, columns))
    return [
        _side_by_side([column[row] if row < len(column) else [] for column in columns], each) for row in range(height)
    ]


def side_by_side(panels: Sequence[Sequence[Sequence[Cell]]], width: int) -> list[list[Cell]]:
    """Panels of lines beside each other, each ``width`` cells wide."""
    height = max(map(len, panels), default=0)
    return [_side_by_side([panel[row] if row < len(panel) else [] for panel in panels], width) for row in range(height)]


def _fact_line(fact: Fact, width: int) -> list[Cell]:
    label = clip(fact.label, LABEL_WIDTH - 1) + " "
    room = max(1, width - LABEL_WIDTH - 1)
    if not fact.why:
        return [Cell(f" {label}", "dim"), Cell(clip(fact.text, room).rstrip(), fact.style)]
    return [Cell(f" {label}", "dim"), Cell(clip(f"{fact.text} {fact.why}", room).rstrip(), "dim")]


def _side_by_side(parts: Sequence[Sequence[Cell]], width: int) -> list[Cell]:
    line: list[Cell] = []
    for place, part in enumerate(parts):
        line += part
        missing = width - line_width(part)
        if place < len(parts) - 1 and missing > 0:
            line.append(Cell(" " * missing))
    return line
