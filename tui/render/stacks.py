"""Stacks on the screen: the merged tree, the classes, one rank's stack. The verdict is in ``verdicts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.advice import to_do
from mltop.probes.model import Frame, StackClass, StackDigest
from mltop.tui.render.cells import Cell, Column, Row, clip, line_width
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.units import UNKNOWN
from mltop.tui.render.verdicts import verdict_lines
from mltop.tui.render.wrap import wrap

if TYPE_CHECKING:
    from mltop.probes.judge.tree import TreeLine

__all__ = [
    "CLASS_COLUMNS",
    "DIGEST_COLUMNS",
    "class_row",
    "digest_row",
    "place",
    "stack_lines",
    "tree_lines",
    "verdict_lines",
]

MOST_INDENT = 24  # cells: deep trees stay readable at 80 columns
RANKS_WIDTH = 24

CLASS_COLUMNS = (
    Column("count", "RANKS", 5, right=True),
    Column("ranks", "WHICH", 20),
    Column("waiting", "WAITS IN", 14),
    Column("leaf", "AT", 28, stretch=True),
)

DIGEST_COLUMNS = (
    Column("rank", "RANK", 4, right=True),
    Column("node", "NODE", 12, priority=1),
    Column("pid", "PID", 7, right=True),
    Column("thread", "THREAD", 12, priority=3),
    Column("state", "STATE", 11),
    Column("waiting", "WAITS IN", 14, priority=2),
    Column("leaf", "AT", 28, stretch=True),
)


def place(frame: Frame) -> str:
    """function (file:line)"""
    return f"{frame.function} ({spot(frame.file, frame.line)})"


def spot(file: str, line: int) -> str:
    """file:line; of a native frame the line may not be known"""
    return f"{file}:{line}" if line else file


def _leaf(frames: Sequence[Frame]) -> str:
    """The innermost Python frame, which --native does not change"""
    frame = next((frame for frame in frames if not frame.native), frames[0] if frames else None)
    return place(frame) if frame else UNKNOWN


def class_row(index: int, made: StackClass) -> Row:
    """One row of CLASS_COLUMNS, key: the index of the class as text."""
    cells = (
        Cell(str(made.count)),
        Cell(made.ranks or UNKNOWN),
        Cell(made.waiting_in or ""),
        Cell(_leaf(made.frames)),
    )
    return Row(str(index), cells)


def digest_row(digest: StackDigest) -> Row:
    """One row of DIGEST_COLUMNS, key "node/pid/thread". Why there is no stack stands in place of the leaf."""
    state = Cell(state_word(digest.state), STATE_STYLE.get(digest.state[:1], ""))
    leaf = Cell(_leaf(digest.frames)) if digest.frames else Cell(digest.error or UNKNOWN, "warn")
    cells = (
        Cell("?" if digest.rank is None else str(digest.rank)),
        Cell(digest.node or UNKNOWN),
        Cell(str(digest.pid)),
        Cell(digest.thread),
        state,
        Cell(digest.waiting_in or ""),
        leaf,
    )
    return Row(f"{digest.node}/{digest.pid}/{digest.thread}", cells)


def tree_lines(lines: Sequence[TreeLine], width: int, world_size: int | None = None) -> list[list[Cell]]:
    """One line per tree line, each ``width`` cells: function, file:line, then count and ranks on the right.

    Branches that not all ranks (``world_size``, or those of the first line) take have bold ranks.
    """
    everybody = world_size or max((line.count for line in lines if line.depth == 0), default=0)
    ranks_width = min(RANKS_WIDTH, max(12, width // 3))
    return [_tree_line(line, width, ranks_width, everybody) for line in lines]


def _tree_line(line: TreeLine, width: int, ranks_width: int, everybody: int) -> list[Cell]:
    indent = " " * min(line.depth * 2, MOST_INDENT, max(0, width // 3))
    if line.elided:
        left = [Cell(f"{indent}{GLYPHS.ellipsis} {line.elided} more", "dim")]
    else:
        left = [Cell(f"{indent}- ", "dim"), Cell(line.function, "accent" if line.waiting_in else "")]
    if line.waiting_in:
        same = line.waiting_in == line.function
        left.append(Cell("  waits" if same else f"  waits in {line.waiting_in}", "accent"))
    if line.file:
        left.append(Cell(f"  {spot(line.file, line.line)}", "dim"))
    right = f"{line.count} [{line.ranks}]" if line.ranks else str(line.count)
    room = max(0, width - ranks_width - 1)
    ranks = Cell(clip(right, ranks_width, right=True), "bold" if line.count < everybody else "dim")
    return [*_cut(left, room), Cell(" "), ranks]


def _cut(cells: Sequence[Cell], width: int) -> list[Cell]:
    """The cells in exactly ``width`` terminal cells."""
    line: list[Cell] = []
    left = width
    for cell in cells:
        if left <= 0:
            break
        taken = min(left, line_width([cell]))
        line.append(Cell(clip(cell.text, taken), cell.style))
        left -= taken
    return [*line, Cell(" " * left)] if left > 0 else line


def stack_lines(digest: StackDigest, width: int, root_first: bool = False) -> list[list[Cell]]:
    """One thread of one rank: a title, then its frames (leaf first unless told) with their integer locals.

    Without frames: why, and what would help.
    """
    lines = wrap(_stack_title(digest), width, indent=2)
    if not digest.frames:
        lines += wrap([Cell(f"  no stack: {digest.error or 'the reason is not known'}", "warn")], width, indent=2)
        if digest.fix:
            label, text = to_do(digest.fix)
            lines += wrap([Cell(f"  {label}", "dim"), Cell(text, "accent")], width, indent=2)
        return lines
    frames = list(enumerate(digest.frames))  # the model's order: leaf first
    for number, frame in reversed(frames) if root_first else frames:
        lines += wrap(_frame(frame, leaf=number == 0), width, indent=6)
    return lines


def _stack_title(digest: StackDigest) -> list[Cell]:
    who = f"rank {'?' if digest.rank is None else digest.rank}"
    if digest.node:
        who += f" on {digest.node}"
    who += f" pid {digest.pid}"
    if digest.child_of is not None:
        who += f" (child of {digest.child_of})"
    cells = [Cell(who, "title"), Cell(f"  {digest.thread}")]
    if digest.state:
        cells.append(Cell(f"  {state_word(digest.state)}", STATE_STYLE.get(digest.state[:1], "")))
    if digest.wchan:
        cells.append(Cell(f"  kernel: {digest.wchan}", "dim"))
    if digest.waiting_in:
        cells.append(Cell(f"  waits in {digest.waiting_in}", "accent"))
    if digest.samples > 1:
        cells.append(Cell(f"  same in {digest.samples} dumps", "dim"))
    return cells


def _frame(frame: Frame, leaf: bool) -> list[Cell]:
    mark = ">" if leaf else " "
    cells = [
        Cell(f"  {mark} "),
        Cell(frame.function, "bold" if leaf else ""),
        Cell(f"  {spot(frame.file, frame.line)}", "dim"),
    ]
    if frame.ints:
        values = " ".join(f"{name}={value}" for name, value in sorted(frame.ints.items()))
        cells.append(Cell(f"  {values}", "accent"))
    return cells
