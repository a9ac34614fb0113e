"""Frames: whose they are, and a stack as one line of calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from mltop.probes.judge.hang.frames import is_internal
from mltop.probes.model import Frame
from mltop.probes.model.units import counted
from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import GLYPHS

if TYPE_CHECKING:
    from mltop.probes.judge.hang.classes import TreeLine

_FEWEST = 2  # frames of a library from which on they are only counted


def spot(file: str, line: int) -> str:
    """The ``file:line`` of a frame; of a native one the line may not be known."""
    return f"{file}:{line}" if line else file


def own_frames(frames: Sequence[Frame]) -> list[bool]:
    """Which are the user's; where the node has marked none, those that are not torch's nor the standard library's."""
    if any(frame.user for frame in frames):
        return [frame.user for frame in frames]
    return [not is_internal(frame) for frame in frames]


def library_of(file: str) -> str:
    """ "torch.utils.data" of "torch/utils/data/_utils/fetch.py": at most three parts of it, none that is private."""
    *folders, name = file.split("/")
    parts = [part for part in folders[:3] if not part.startswith("_")]
    return ".".join(parts) or name.removesuffix(".py")


def frame_cells(
    frame: Frame | TreeLine, style: str = "", *, gap: str = "  ", place: str = "dim", ints: bool = True
) -> list[Cell]:
    """``train  train.py:41  step=3``. ``place``: the style of the file and line; ``ints``: with integer locals."""
    cells = [Cell(frame.function, style)]
    cells += [Cell(f"{gap}{spot(frame.file, frame.line)}", place)] if frame.file else []
    return [*cells, *(ints_cells(frame) if ints else [])]


def chain_cells(frames: Sequence[Frame], what: Cell) -> list[Cell]:
    """``main train.py:214 → 3 frames of torch.utils.data → DS.__getitem__ data.py:53  stands  index=3`` of ``frames``,
    the leaf first. ``what``: what it does, behind the leaf.
    """
    pairs = list(zip(reversed(frames), reversed(own_frames(frames)), strict=True))
    leaf, _ = pairs.pop()
    arrow = Cell(f" {GLYPHS.arrow} ", "dim")
    cells: list[Cell] = []
    for own, run in groupby(pairs, key=lambda pair: pair[1]):
        part = [frame for frame, _ in run]
        if not own and len(part) >= _FEWEST:
            cells += [Cell(f"{counted(len(part), 'frame')} of {library_of(part[-1].file)}", "dim"), arrow]
            continue
        for frame in part:
            cells += [*frame_cells(frame, "" if own else "dim", gap=" ", ints=False), arrow]
    return [*cells, *frame_cells(leaf, "title", gap=" ", place="", ints=False), Cell("  "), what, *ints_cells(leaf)]


def ints_cells(frame: Frame | TreeLine) -> list[Cell]:
    """The integer locals of a frame."""
    values = " ".join(f"{name}={value}" for name, value in sorted(frame.ints.items()))
    return [Cell(f"  {values}", "dim")] if values else []
