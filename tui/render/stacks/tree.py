"""The merged stacks as a tree: how many ranks at the left, which at the right, where they part one step further in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import counted
from mltop.tui.render.cells import Cell, cut, line_width
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.stacks.frames import frame_cells, ints_cells, library_of

if TYPE_CHECKING:
    from mltop.probes.judge.hang.classes import TreeLine

COUNT = 7  # cells of the mark and the number of ranks
MOST_RAILS = 12
LEAST_LEFT = 24  # cells of the frame, before which ranks give way


@dataclass(frozen=True)
class Odd:
    """Whom the verdict names: their ``ranks``, and of each what it does. ``waits``: for how long the others wait."""

    ranks: Ranges = field(default_factory=Ranges)
    doing: Mapping[int, Cell] = field(default_factory=dict)
    waits: str = ""

    def has(self, ranks: Ranges) -> bool:
        """Whether they are all among those that are named."""
        return bool(ranks) and not ranks.without(self.ranks)


def tree_title(width: int) -> list[Cell]:
    left, right = f"{'RANKS':>{COUNT - 1}}  MERGED STACKS, root first", "WHICH"
    blank = width - len(left) - len(right)
    return (
        [Cell(left, "head"), Cell(" " * blank), Cell(right, "head")] if blank > 1 else cut([Cell(left, "head")], width)
    )


def branch_lines(lines: Sequence[TreeLine], odd: Odd, width: int) -> list[list[Cell]]:
    """A line each, at most ``width`` cells."""
    last = {line.class_indexes: at for at, line in enumerate(lines) if not line.elided}
    ends = set(last.values())
    return [_line(line, odd, width, ends=at in ends) for at, line in enumerate(lines)]


def _line(line: TreeLine, odd: Odd, width: int, ends: bool) -> list[Cell]:
    """``ends``: it is the last one of these ranks."""
    is_odd = odd.has(line.ranks)
    marked = is_odd and (line.head or ends)
    head = [
        Cell(GLYPHS.alarm if marked else " ", "crit"),
        Cell(f"{line.count:>{COUNT - 2}}", "title" if is_odd and marked else ""),
        Cell("  "),
        Cell(_rails(line), "dim"),
    ]
    left = [*head, *_frame(line, odd, is_odd and ends)]
    if not line.begins:
        return cut(left, width)
    right = _ranks(line.ranks, line.count, width - max(LEAST_LEFT, line_width(left)) - 2)
    left = cut(left, width - len(right) - 2)
    return [*left, Cell(" " * (width - line_width(left) - len(right))), Cell(right)] if right else left


def _rails(line: TreeLine) -> str:
    """At a branch's first line where it forks off; below, what goes on beside it."""
    shown = line.rails[-MOST_RAILS:]
    marks = [f"{GLYPHS.chain} " if follows else "  " for follows in shown]
    if line.head and marks:
        marks[-1] = f"{GLYPHS.fork if shown[-1] else GLYPHS.last_fork} "
    return "".join(marks)


def _frame(line: TreeLine, odd: Odd, culprit: bool) -> list[Cell]:
    if line.elided:
        library = f" of {library_of(line.file)}" if line.file else ""
        return [Cell(f"{GLYPHS.folded} {counted(line.elided, 'frame' if library else 'line')}{library}", "dim")]
    is_collective = line.waiting_in is not None and line.waiting_in == line.function
    style = "waits" if is_collective else "title" if line.own else "dim"
    cells = frame_cells(line, style, place="" if line.own else "dim", ints=False)
    if culprit and (doing := odd.doing.get(line.ranks.first or 0)) is not None:
        cells += [Cell("  "), doing, Cell(f"  in {line.called}" if line.called else "", "dim")]
    elif line.waiting_in:
        where = "" if is_collective else f" in {line.waiting_in}"
        cells += [Cell("  "), Cell(f"waits{where} {odd.waits}".rstrip(), "waits")]
    elif line.called:
        cells.append(Cell(f"  in {line.called}", "dim"))
    return [*cells, *(ints_cells(line) if culprit else [])]


def _ranks(ranks: Ranges, count: int, room: int) -> str:
    """Which; where there is no room for all, how many."""
    text = str(ranks)
    if len(text) <= room:
        return text
    text = counted(count, "rank")
    return text if len(text) <= room else ""
