"""Collectives by size, their ranks by lag, and pairs of nodes, as rows. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model.probe import CollectiveResult, PairResult, RankArrival
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import bar
from mltop.tui.render.probe_units import bandwidth, middle, short_time, signed_percent, size_text
from mltop.tui.render.units import UNKNOWN, percent

SIZE_COLUMNS = (
    Column("size", "SIZE", 5, right=True),
    Column("time", "TIME", 7, right=True),
    Column("p95", "P95", 7, right=True, priority=3),
    Column("best", "BEST", 7, right=True, priority=5),
    Column("algbw", "ALGBW", 8, right=True, priority=4),
    Column("busbw", "BUSBW", 8, right=True),
    Column("expected", "EXPECTED", 8, right=True, priority=2, optional=True),
    Column("share", "SHARE", 5, right=True, priority=1, optional=True),
    Column("wrong", "WRONG", 7),
    Column("last", "LAST TO COME", 24, stretch=True, most=40),
    Column("ranks", "RANKS", 5, right=True, priority=6),
    Column("iterations", "TIMES", 5, right=True, priority=7),
    Column("path", "OVER", 16, priority=8, stretch=True),
)
RANK_COLUMNS = (
    Column("rank", "RANK", 5, right=True),
    Column("node", "NODE", 12),
    Column("gpu", "GPU", 3, right=True),
    Column("lag", "LAG", 8, right=True),
    Column("gauge", "", 16, priority=2),
    Column("median", "WAITS", 8, right=True),
    Column("work", "OWN WORK", 8, right=True, optional=True),
)
PAIR_COLUMNS = (
    Column("round", "ROUND", 5, right=True, priority=2),
    Column("first", "NODE", 14),
    Column("second", "NODE", 14),
    Column("busbw", "BUSBW", 8, right=True),
    Column("gauge", "", 16, priority=3),
    Column("against", "AGAINST", 11, right=True, priority=1),
    Column("why", "WHY", 20, stretch=True, optional=True),
)
LITTLE_OF_EXPECTED = 0.85  # of what this hardware gives elsewhere
LATE = 0.2  # of the collective's time: a lag that is no noise
SLOW_PAIR = 0.85  # of the median of all pairs


def size_key(result: CollectiveResult) -> str:
    return f"{result.collective}/{result.size_bytes}"


def size_row(result: CollectiveResult) -> Row:
    """One row of SIZE_COLUMNS."""
    share = share_of_expected(result)
    little = share is not None and share < LITTLE_OF_EXPECTED
    wrong = Cell(f"{result.wrong} WRONG", "crit") if result.wrong else Cell("none", "dim")
    cells = (
        Cell(size_text(result.size_bytes)),
        Cell(short_time(result.time_s)),
        Cell(short_time(result.p95_s)),
        Cell(short_time(result.best_s)),
        Cell(bandwidth(result.algbw_bytes_per_s)),
        Cell(bandwidth(result.busbw_bytes_per_s), "bold"),
        Cell(bandwidth(result.expected_busbw_bytes_per_s), "dim"),
        Cell(percent(share), "warn" if little else ""),
        wrong,
        _last(result),
        Cell(str(result.ranks)),
        Cell(str(result.iterations)),
        Cell(result.path or result.backend, "dim"),
    )
    return Row(size_key(result), cells)


def share_of_expected(result: CollectiveResult) -> float | None:
    if result.busbw_bytes_per_s is None or not result.expected_busbw_bytes_per_s:
        return None
    return result.busbw_bytes_per_s / result.expected_busbw_bytes_per_s


def last_rank(result: CollectiveResult) -> RankArrival | None:
    """Who comes last: whose own collective is the shortest."""
    return max(result.arrivals, key=lambda arrival: arrival.lag_s, default=None)


def is_late(arrival: RankArrival, result: CollectiveResult) -> bool:
    return bool(result.time_s) and arrival.lag_s > LATE * (result.time_s or 0.0)


def _last(result: CollectiveResult) -> Cell:
    """ "rank 5 +30.1ms node02/1"; of one node "rank 5 +30.1ms GPU 1"."""
    arrival = last_rank(result)
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
    """Who comes last first."""
    return sorted(result.arrivals, key=lambda arrival: -arrival.lag_s)


def rank_row(arrival: RankArrival, result: CollectiveResult) -> Row:
    """One row of RANK_COLUMNS, key: the rank."""
    most = max((one.lag_s for one in result.arrivals), default=0.0)
    style = "warn" if is_late(arrival, result) else ""
    cells = (
        Cell(str(arrival.rank)),
        Cell(arrival.node),
        Cell("" if arrival.gpu is None else str(arrival.gpu)),
        Cell(short_time(arrival.lag_s), style),
        Cell(bar(max(0.0, arrival.lag_s) / most if most > 0 else 0.0, 16), style or "dim"),
        Cell(short_time(arrival.median_s)),
        Cell(short_time(arrival.work_s)),
    )
    return Row(str(arrival.rank), cells)


def worst_first(pairs: Sequence[PairResult]) -> list[PairResult]:
    """What failed, then the slowest."""
    return sorted(pairs, key=lambda pair: -1.0 if pair.busbw_bytes_per_s is None else pair.busbw_bytes_per_s)


def pair_key(pair: PairResult) -> str:
    return f"{pair.round}/{'/'.join(pair.nodes)}"


def pair_row(pair: PairResult, usual: float | None, most: float | None) -> Row:
    """One row of PAIR_COLUMNS. ``usual``: the median of all pairs, ``most``: the fastest."""
    first, second = (*pair.nodes, "", "")[:2]
    busbw = pair.busbw_bytes_per_s
    share = busbw / usual if busbw is not None and usual else None
    style = "crit" if busbw is None else "warn" if share is not None and share < SLOW_PAIR else ""
    cells = (
        Cell(str(pair.round)),
        Cell(first),
        Cell(second),
        Cell("failed" if busbw is None else bandwidth(busbw), style or "bold"),
        Cell(bar(busbw / most if busbw is not None and most else 0.0, 16), style or "dim"),
        Cell(UNKNOWN if share is None else f"{signed_percent(share - 1)} median", style),
        Cell(pair.why, "crit" if pair.why else ""),
    )
    return Row(pair_key(pair), cells)


def usual_busbw(pairs: Sequence[PairResult]) -> tuple[float | None, float | None]:
    """Median and fastest."""
    found = [pair.busbw_bytes_per_s for pair in pairs if pair.busbw_bytes_per_s is not None]
    return middle(found), max(found, default=None)
