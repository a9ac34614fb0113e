"""The devices of a probe as rows of a table: how far each is, its result, and in which order. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.model.probe import CopiesResult, DeviceResult, MatmulResult, MemoryResult
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import bar
from mltop.tui.render.probe_against import Against, main_value
from mltop.tui.render.probe_lines import nameless
from mltop.tui.render.units import known, percent

STAGE_WIDTH = 14
GAUGE_WIDTH = 20
SortValue = float | str | None


@dataclass(frozen=True)
class Line:
    """One device: how far it is, its result once there is one, and what that is compared with.

    ``name``: what stands in the first column; ``past``: its own earlier main values, the oldest first.
    ``refused``: it was left out on purpose.
    """

    progress: DeviceProgress
    name: str
    result: DeviceResult | None = None
    against: Callable[[DeviceResult], Against | None] = lambda _: None
    past: Callable[[DeviceResult], Sequence[float]] = lambda _: ()
    refused: bool = False


@dataclass(frozen=True)
class Shown:
    """A column, its cell, and what it is sorted by. Both get a result of the table's kind."""

    column: Column
    cell: Callable[[Line, Any], Cell]
    value: Callable[[Line, Any], SortValue]


def columns_of(shown: Sequence[Shown], first_width: int, first_title: str) -> tuple[Column, ...]:
    return (Column("gpu", first_title, first_width, right=first_title == "GPU"), *(one.column for one in shown))


def device_row(shown: Sequence[Shown], line: Line, key: str) -> Row:
    """One row of ``columns_of(shown)``; while there is no result, how far it is or why there is none."""
    if line.result is None:
        cells = (Cell(line.name), *([Cell("")] * len(shown)))
        return Row(key, cells, banner_of(line))
    return Row(key, (Cell(line.name), *(one.cell(line, line.result) for one in shown)))


def banner_of(line: Line) -> Cell:
    """ "sustained      ━━━━━━━━━━━━──────── 62%", or why it is not measured."""
    progress = line.progress
    if progress.problem:
        word = "left out" if line.refused else "failed"
        return Cell(f"{word}: {nameless(progress.problem, progress.gpu)}", "warn" if line.refused else "crit")
    if progress.result is not None:
        return Cell("measured", "ok")
    if not progress.stage:
        return Cell("waits", "dim")
    gauge = "" if progress.fraction is None else f" {bar(progress.fraction, GAUGE_WIDTH)} {percent(progress.fraction)}"
    return Cell(f"{progress.stage:<{STAGE_WIDTH}}{gauge}", "accent")


def value_of(shown: Mapping[str, Shown], column: str, line: Line) -> SortValue:
    """What a row is sorted by; None: unknown."""
    if line.result is None or column not in shown:
        return None
    value = shown[column].value(line, line.result)
    return value if isinstance(value, str) or known(value) else None


def slowest_first(line: Line) -> tuple[int, float]:
    """The order without a choice of the user: wrong results, failures, the slowest, those under way, those left out."""
    if line.result is None:
        return (4 if line.refused else 1, 0.0) if line.progress.problem else (3, 0.0)
    if is_wrong(line.result):
        return 0, 0.0
    value = main_value(line.result)
    return 2, value if value is not None else -1.0


def is_wrong(result: DeviceResult) -> bool:
    if isinstance(result, MatmulResult):
        return result.corrupt_iterations > 0 or result.upload_intact is False
    return isinstance(result, (MemoryResult, CopiesResult)) and result.intact is False
