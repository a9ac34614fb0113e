"""Bus bandwidth over size, drawn by plotext; it is imported when the first curve is drawn. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mltop.probes.model.probe import CollectiveResult
from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.probe_units import GIGA, size_text

LEAST_SIZES = 3
LEAST_WIDTH, LEAST_HEIGHT = 40, 8
MOST_WIDTH, MOST_HEIGHT = 110, 16
# Quadrant blocks: fonts without braille draw that in other widths, which bends the frame.
MEASURED, EXPECTED = ("*", ".") if GLYPHS.ascii_only else ("hd", "·")
LABEL_WIDTH = 6
_TO_ASCII = str.maketrans("│┤├─┬┴┼┐┌┘└", "||+-++++++" + "+")


def curve_lines(results: Sequence[CollectiveResult], width: int, height: int) -> list[list[Cell]]:
    """Title and curve of the first collective that has enough sizes; nothing where there is no room or no curve."""
    points = sorted(
        {one.size_bytes: one for one in results if one.busbw_bytes_per_s is not None}.values(),
        key=lambda one: one.size_bytes,
    )
    width, height = min(width, MOST_WIDTH), min(height - 1, MOST_HEIGHT)
    if len(points) < LEAST_SIZES or width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return []
    expected = [one for one in points if one.expected_busbw_bytes_per_s]
    title = [Cell("Bus bandwidth over size", "title"), Cell("  GB/s", "dim")]
    if len(expected) >= 2:
        source = f" ({expected[-1].expected_source})" if expected[-1].expected_source else ""
        title += [Cell(f"   {EXPECTED * 3} expected{source}", "dim")]
    return [title, *(_styled(line) for line in _drawn(points, expected, width, height))]


def _drawn(
    points: Sequence[CollectiveResult], expected: Sequence[CollectiveResult], width: int, height: int
) -> list[str]:
    """plotext has one figure for the whole program: it is cleared before and after."""
    import plotext  # type: ignore[import-untyped]

    most = max(max(one.busbw_bytes_per_s or 0.0, one.expected_busbw_bytes_per_s or 0.0) for one in points) / GIGA
    plotext.clf()
    plotext.theme("clear")
    plotext.limitsize(False, False)  # not to the size of whatever terminal it finds itself in
    plotext.plotsize(width, height)
    plotext.xscale("log")
    if len(expected) >= 2:
        sizes = [one.size_bytes for one in expected]
        plotext.plot(sizes, [(one.expected_busbw_bytes_per_s or 0.0) / GIGA for one in expected], marker=EXPECTED)
    sizes = [one.size_bytes for one in points]
    plotext.plot(sizes, [(one.busbw_bytes_per_s or 0.0) / GIGA for one in points], marker=MEASURED)
    plotext.xticks(*_ticks(sizes, width))
    steps = round_steps(most, 6 if height >= 12 else 3)
    plotext.yticks(steps, [f"{step:>{LABEL_WIDTH}g}" for step in steps])
    plotext.ylim(0, steps[-1])
    text: str = plotext.uncolorize(plotext.build())
    plotext.clf()
    lines = [line.rstrip() for line in text.splitlines()]
    return [line.translate(_TO_ASCII) for line in lines] if GLYPHS.ascii_only else lines


def _ticks(sizes: Sequence[int], width: int) -> tuple[list[int], list[str]]:
    """As many sizes as there is room for, always the first and the last."""
    every = max(1, -(-len(sizes) * 7 // max(1, width - LABEL_WIDTH)))
    shown = [*sizes[: -every or None : every], sizes[-1]] if every > 1 else list(sizes)
    return shown, [size_text(size) for size in shown]


def round_steps(most: float, count: int) -> list[float]:
    """At most ``count`` equal steps of a round size, from 0 to the first that is not below ``most``."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * count >= most)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def _styled(line: str) -> list[Cell]:
    """The measured curve stands out from frame, labels and what was expected."""
    cells: list[Cell] = []
    for char in line:
        style = "accent" if _is_curve(char) else "dim"
        if cells and (cells[-1].style == style or char == " "):
            cells[-1] = Cell(cells[-1].text + char, cells[-1].style)
        else:
            cells.append(Cell(char, style))
    return cells


def _is_curve(char: str) -> bool:
    return char == MEASURED or "\u2580" <= char <= "\u259f"
