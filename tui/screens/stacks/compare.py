"""The stacks of two ranks side by side, the root first: what they share is dim, where they part is marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from mltop.probes.model import Frame, StackDigest
from mltop.tui.render.cells import Cell, line_width
from mltop.tui.render.stacks.frames import ints_cells, own_frames, spot
from mltop.tui.render.stacks.tree import cut
from mltop.tui.render.states import state_word

GUTTER = 3  # cells between the two
DIFFERS = "≠"


def compared_lines(left: StackDigest, right: StackDigest, width: int) -> list[list[Cell]]:
    half = max(8, (width - GUTTER) // 2)
    lines = [_row(_title(left), _title(right), half, ""), []]
    pairs = list(zip_longest(_frames(left), _frames(right)))
    differs = False
    for one, other in pairs:
        differs = differs or one is None or other is None or one[0] != other[0]
        lines.append(_row(_cells(one, differs), _cells(other, differs), half, DIFFERS if differs else ""))
    if not pairs:
        lines.append([Cell("neither has a stack", "dim")])
    elif not differs:
        lines += [[], [Cell("both stand in the same place", "dim")]]
    return lines


_Shown = tuple[tuple[str, str, int], Frame, bool]


def _frames(digest: StackDigest) -> list[_Shown]:
    """Root first: what makes it the same as another, the frame, and whether it is the user's."""
    shown = zip(digest.frames, own_frames(digest.frames), strict=True)
    return [((frame.function, frame.file, frame.line), frame, own) for frame, own in shown][::-1]


def _title(digest: StackDigest) -> list[Cell]:
    who = f"rank {'?' if digest.rank is None else digest.rank}"
    cells = [Cell(who, "title"), Cell(f"  {digest.node} pid {digest.pid}")]
    if digest.waiting_in:
        return [*cells, Cell("  "), Cell(f"waits in {digest.waiting_in}", "waits")]
    if digest.error:
        return [*cells, Cell(f"  {digest.error}", "warn")]
    return [*cells, Cell(f"  {state_word(digest.state)}" if digest.state else "", "dim")]


def _cells(shown: _Shown | None, differs: bool) -> list[Cell]:
    if shown is None:
        return []
    _, frame, own = shown
    cells = [
        Cell(frame.function, ("title" if own else "") if differs else "dim"),
        Cell(f"  {spot(frame.file, frame.line)}", "dim"),
    ]
    return [*cells, *(ints_cells(frame) if differs else [])]


def _row(left: Sequence[Cell], right: Sequence[Cell], half: int, mark: str) -> list[Cell]:
    shown = cut(left, half)
    blank = Cell(" " * (half - line_width(shown)))
    return [*shown, blank, Cell(f" {mark:<{GUTTER - 1}}", "warn"), *cut(right, half)]
