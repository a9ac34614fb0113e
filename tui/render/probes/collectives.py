"""Collectives by size, their ranks by lag, and pairs of nodes or GPUs: as rows, as squares, as a curve. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mltop.probes.judge.probes.devices import NEAR_FIGURE
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.probe import CollectiveResult, CopiesResult, PairResult, RankArrival
from mltop.probes.model.units import UNKNOWN, bandwidth, digits, percent, short_time, signed_percent, size_text
from mltop.tui.app.selection import first_of
from mltop.tui.render.cells import Cell, Column, clip, runs
from mltop.tui.render.glyphs import GLYPHS, bar
from mltop.tui.render.probes.devices import SLOW_WAY, listed
from mltop.tui.render.units import middle

BAR_WIDTH = 16
LATE = 0.2  # of the collective's time: a lag that is no noise


def size_key(result: CollectiveResult) -> str:
    return f"{result.collective}/{result.size_bytes}"


def is_late(arrival: RankArrival, result: CollectiveResult) -> bool:
    return bool(result.time_s) and arrival.lag_s > LATE * (result.time_s or 0.0)


def _last(result: CollectiveResult) -> Cell:
    """Who comes last: "rank 5 +30.1ms node02/1"; of one node "rank 5 +30.1ms GPU 1"."""
    arrival = next(iter(by_lag(result)), None)
    if arrival is None:
        return Cell(UNKNOWN, "dim")
    where = place_of(arrival.node, arrival.gpu)
    if len(result.nodes) == 1:
        where = "" if arrival.gpu is None else f"GPU {arrival.gpu}"
    text = f"rank {arrival.rank} +{short_time(arrival.lag_s)} {where}"
    return Cell(text, "warn" if is_late(arrival, result) else "dim")


def place_of(node: str, gpu: int | None) -> str:
    return node if gpu is None else f"{node}/{gpu}"


def by_lag(result: CollectiveResult) -> list[RankArrival]:
    """The arrivals, the latest first: its own collective is the shortest."""
    return sorted(result.arrivals, key=lambda arrival: -arrival.lag_s)


def _share(share: float | None) -> Cell:
    return Cell(percent(share), "warn" if share is not None and share < NEAR_FIGURE else "")


def _most_lag_s(result: CollectiveResult) -> float | None:
    return max((arrival.lag_s for arrival in result.arrivals), default=None)


def _expected(bytes_per_s: float | None) -> Cell:
    return Cell(bandwidth(bytes_per_s), "dim")


_of = Column.of
SIZE_COLUMNS = (
    _of("size", "SIZE", 5, "size_bytes", size_text, right=True),
    _of("time", "TIME", 7, "time_s", short_time, right=True),
    _of("p95", "P95", 7, "p95_s", short_time, right=True, priority=3),
    _of("best", "BEST", 7, "best_s", short_time, right=True, priority=6),
    _of("algbw", "ALGBW", 8, "algbw_bytes_per_s", bandwidth, right=True, priority=4),
    _of("busbw", "BUSBW", 8, "busbw_bytes_per_s", lambda rate: Cell(bandwidth(rate), "bold"), right=True),
    # On 80 columns the share of what is expected says more.
    _of(
        "expected",
        "EXPECTED",
        8,
        "expected_busbw_bytes_per_s",
        lambda rate: Cell(bandwidth(rate), "dim"),
        right=True,
        priority=5,
        optional=True,
    ),
    _of("share", "SHARE", 5, "share_of_expected", _share, right=True, priority=1, optional=True),
    _of("wrong", "WRONG", 7, "wrong", lambda wrong: Cell(f"{wrong} WRONG", "crit") if wrong else Cell("none", "dim")),
    Column("last", "LAST TO COME", 24, stretch=True, most=40, cell=_last, value=_most_lag_s),
    _of("ranks", "RANKS", 5, "ranks", str, right=True, priority=6),
    _of("iterations", "TIMES", 5, "iterations", str, right=True, priority=7),
    _of("path", "OVER", 16, "over", lambda over: Cell(over, "dim"), priority=8, stretch=True),
)


class ArrivalLine(NamedTuple):
    """What a row of RANK_COLUMNS is about."""

    arrival: RankArrival
    result: CollectiveResult

    @property
    def style(self) -> str:
        return "warn" if is_late(self.arrival, self.result) else ""


def _lag_bar(line: ArrivalLine) -> Cell:
    most = _most_lag_s(line.result) or 0.0
    share = max(0.0, line.arrival.lag_s) / most if most > 0 else 0.0
    return Cell(bar(share, BAR_WIDTH), line.style or "dim")


RANK_COLUMNS = (
    _of("rank", "RANK", 5, "arrival.rank", str, right=True),
    _of("node", "NODE", 12, "arrival.node", str),
    _of("gpu", "GPU", 3, "arrival.gpu", lambda gpu: "" if gpu is None else str(gpu), right=True),
    _of(
        "lag", "LAG", 8, "arrival.lag_s", cell=lambda line: Cell(short_time(line.arrival.lag_s), line.style), right=True
    ),
    _of("gauge", "", BAR_WIDTH, "arrival.lag_s", cell=_lag_bar, priority=2),
    _of("median", "WAITS", 8, "arrival.median_s", short_time, right=True),
    _of("work", "OWN WORK", 8, "arrival.work_s", short_time, right=True, optional=True),
)


class PairLine(NamedTuple):
    """What a row of PAIR_COLUMNS is about. ``usual``: the median of all pairs, ``most``: the fastest."""

    pair: PairResult
    usual: float | None
    most: float | None

    @property
    def share(self) -> float | None:
        """The pair's part of what is usual."""
        busbw = self.pair.busbw_bytes_per_s
        return busbw / self.usual if busbw is not None and self.usual else None

    @property
    def height(self) -> float:
        """Its part of the fastest pair."""
        return (self.pair.busbw_bytes_per_s or 0.0) / self.most if self.most else 0.0

    @property
    def style(self) -> str:
        if self.pair.busbw_bytes_per_s is None:
            return "crit"
        return "warn" if self.share is not None and self.share < SLOW_WAY else ""

    @property
    def glyph(self) -> str:
        failed = self.pair.busbw_bytes_per_s is None or not self.most
        return GLYPHS.lost if failed else GLYPHS.height(self.height)

    def node(self, index: int) -> str:
        return self.pair.nodes[index] if index < len(self.pair.nodes) else ""


def _busbw(line: PairLine) -> Cell:
    busbw = line.pair.busbw_bytes_per_s
    return Cell("failed" if busbw is None else bandwidth(busbw), line.style or "bold")


def _against(line: PairLine) -> Cell:
    return Cell(UNKNOWN if line.share is None else f"{signed_percent(line.share - 1)} median", line.style)


_BUSBW = "pair.busbw_bytes_per_s"
PAIR_COLUMNS = (
    _of("round", "ROUND", 5, "pair.round", str, right=True, priority=2),
    Column("first", "NODE", 14, cell=lambda line: line.node(0), value=lambda line: line.node(0)),
    Column("second", "NODE", 14, cell=lambda line: line.node(1), value=lambda line: line.node(1)),
    _of("busbw", "BUSBW", 8, _BUSBW, cell=_busbw, right=True),
    _of("gauge", "", BAR_WIDTH, _BUSBW, cell=lambda of: Cell(bar(of.height, BAR_WIDTH), of.style or "dim"), priority=3),
    _of("against", "AGAINST", 11, _BUSBW, cell=_against, right=True, priority=1),
    _of("why", "WHY", 20, "pair.why", lambda why: Cell(why, "crit" if why else ""), stretch=True, optional=True),
)


def pair_lines(pairs: Sequence[PairResult], among: Sequence[PairResult] = ()) -> list[PairLine]:
    """The pairs that failed, then the slowest; ``among``: those to compare with, none: these."""
    rates = known(pair.busbw_bytes_per_s for pair in among or pairs)
    usual, most = middle(rates), max(rates, default=None)
    ordered = sorted(pairs, key=lambda pair: -1.0 if pair.busbw_bytes_per_s is None else pair.busbw_bytes_per_s)
    return [PairLine(pair, usual, most) for pair in ordered]


def pair_pictures(lines: Sequence[PairLine], size: tuple[int, int]) -> list[list[list[Cell]]]:
    """Which pairs failed and why, and the square of all."""
    pairs = [line.pair for line in lines]
    failed = grouped((pair for pair in pairs if pair.why), lambda pair: pair.why).items()
    reasons = [f"{first_of([' - '.join(pair.nodes) for pair in alike], MOST_PAIRS)}: {why}" for why, alike in failed]
    return [listed("Pairs that failed", reasons, size[0]), pair_matrix(pairs, size[0])]


MOST_PAIRS = 6  # named of one reason
MATRIX_LABEL = 14
PEER_WIDTH = 7


def pair_matrix(pairs: Sequence[PairResult], width: int) -> list[list[Cell]]:
    """A square, node by node, of how fast each pair was: the height of a glyph is the share of the fastest.

    Nothing where it is too wide, or has fewer than three nodes.
    """
    nodes = sorted({node for pair in pairs for node in pair.nodes}, key=lambda node: (len(node), node))
    label = min(MATRIX_LABEL, max(map(len, nodes), default=0))
    each = 2 if label + 1 + 2 * len(nodes) <= width else 1
    if len(nodes) < 3 or label + 1 + each * len(nodes) > width:
        return []
    by_round = sorted(pair_lines(pairs), key=lambda line: line.pair.round)
    of_pair = {frozenset(line.pair.nodes): line for line in by_round}  # the last round counts
    scale = f"{GLYPHS.ramp[0]} 0, {GLYPHS.ramp[-1]} {bandwidth(by_round[0].most)}"
    legend = f"  {scale}; {GLYPHS.lost} failed, {GLYPHS.unknown} not measured"

    def square(row: str, column: str) -> Cell:
        line = of_pair.get(frozenset((row, column)))
        glyph, style = (GLYPHS.unknown, "dim") if line is None else (line.glyph, line.style)
        return Cell(" " * each) if row == column else Cell(glyph.ljust(each), style)

    lines = [[Cell(clip(row, label, tail=True) + " "), *(square(row, column) for column in nodes)] for row in nodes]
    return [[Cell("Pairs", "title"), Cell(legend, "dim")], *lines]


def peer_matrix(results: Sequence[CopiesResult], width: int) -> list[list[Cell]]:
    """From GPU (rows) to GPU (columns) of one node, GB/s; "!": 15 % below the median; dim: through the host."""
    rates = {(result.gpu, peer.to_gpu): peer for result in results for peer in result.peers}
    rows = sorted({from_gpu for from_gpu, _ in rates if from_gpu is not None})
    columns = sorted({to_gpu for _, to_gpu in rates})
    if not rates or PEER_WIDTH * (len(columns) + 1) > width:
        return []
    usual = middle(peer.bytes_per_s for peer in rates.values())

    def square(row: int, column: int) -> Cell:
        peer = rates.get((row, column))
        if row == column or peer is None:
            return Cell(f"{'' if row == column else UNKNOWN:>{PEER_WIDTH}}", "dim")
        slow = peer.bytes_per_s is not None and usual is not None and peer.bytes_per_s < SLOW_WAY * usual
        text = UNKNOWN if peer.bytes_per_s is None else digits(peer.bytes_per_s / GIGA)
        text += "h" * (peer.direct is False) + "!" * slow
        return Cell(f"{text:>{PEER_WIDTH}}", "warn" if slow else "dim" if peer.direct is False else "")

    title = f"{results[0].node}: from GPU (row) to GPU"
    return [
        [Cell(title, "title"), Cell("  GB/s, ! slow, h through the host", "dim")],
        [Cell(" " * PEER_WIDTH), *(Cell(f"{column:>{PEER_WIDTH}}", "dim") for column in columns)],
        *([Cell(f"{row:>{PEER_WIDTH}}", "dim"), *(square(row, column) for column in columns)] for row in rows),
    ]


GIGA = 1e9
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
        {result.size_bytes: result for result in results if result.busbw_bytes_per_s is not None}.values(),
        key=lambda point: point.size_bytes,
    )
    width, height = min(width, MOST_WIDTH), min(height - 1, MOST_HEIGHT)
    if len(points) < LEAST_SIZES or width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return []
    expected = [point for point in points if point.expected_busbw_bytes_per_s]
    title = [Cell("Bus bandwidth over size", "title"), Cell("  GB/s", "dim")]
    if len(expected) >= 2:
        source = f" ({expected[-1].expected_source})" if expected[-1].expected_source else ""
        title += [Cell(f"   {EXPECTED * 3} expected{source}", "dim")]
    # The measured curve stands out from frame, labels and what was expected.
    drawn = _drawn(points, expected, width, height)
    of_curve = {MEASURED, *map(chr, range(0x2580, 0x25A0))}
    return [title, *(runs(line, ["accent" if char in of_curve else "dim" for char in line]) for line in drawn)]


def _drawn(
    points: Sequence[CollectiveResult], expected: Sequence[CollectiveResult], width: int, height: int
) -> list[str]:
    """plotext has one figure for the whole program: it is cleared before and after."""
    import plotext  # type: ignore[import-untyped]

    most = max(max(point.busbw_bytes_per_s or 0.0, point.expected_busbw_bytes_per_s or 0.0) for point in points) / GIGA
    plotext.clf()
    plotext.theme("clear")
    plotext.limitsize(False, False)  # not to the size of whatever terminal it finds itself in
    plotext.plotsize(width, height)
    plotext.xscale("log")
    if len(expected) >= 2:
        rates = [(point.expected_busbw_bytes_per_s or 0.0) / GIGA for point in expected]
        plotext.plot([point.size_bytes for point in expected], rates, marker=EXPECTED)
    sizes = [point.size_bytes for point in points]
    plotext.plot(sizes, [(point.busbw_bytes_per_s or 0.0) / GIGA for point in points], marker=MEASURED)
    # As many sizes as there is room for, always the first and the last.
    every = max(1, -(-len(sizes) * 7 // max(1, width - LABEL_WIDTH)))
    shown = [*sizes[: -every or None : every], sizes[-1]] if every > 1 else sizes
    plotext.xticks(shown, [size_text(size) for size in shown])
    steps = round_steps(most, 6 if height >= 12 else 3)
    plotext.yticks(steps, [f"{step:>{LABEL_WIDTH}g}" for step in steps])
    plotext.ylim(0, steps[-1])
    text: str = plotext.uncolorize(plotext.build())
    plotext.clf()
    lines = [line.rstrip() for line in text.splitlines()]
    return [line.translate(_TO_ASCII) for line in lines] if GLYPHS.ascii_only else lines


def round_steps(most: float, count: int) -> list[float]:
    """At most ``count`` equal steps of a round size, from 0 to the first that is not below ``most``."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * count >= most)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]
