"""What `mltop probe` prints: the verdict first, then figures, what was not measured, settings, and the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.pairs import Levels
from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    CollectiveResult,
    DeviceResult,
    PairResult,
    PastResult,
    ProbeReport,
    Suspect,
)
from mltop.probes.model.units import bandwidth, seconds, short_time, size_text
from mltop.tui.render.cells import Cell, with_widths
from mltop.tui.render.probes.collectives import (
    PAIR_COLUMNS,
    RANK_COLUMNS,
    SIZE_COLUMNS,
    by_lag,
    failed_pairs,
    pair_matrix,
    pair_row,
    rank_row,
    size_row,
    usual_busbw,
    worst_first,
)
from mltop.tui.render.probes.kinds import LEGENDS
from mltop.tui.render.probes.summary import failure_lines, listed, verdict_parts
from mltop.tui.report.page import Page, span
from mltop.tui.report.probe_devices import WIDE, print_devices

if TYPE_CHECKING:
    from rich.console import Console

MOST_RANKS = 10
MOST_PAIRS = 20
# On 80 columns the share of what is expected says more than the expected figure.
_PRIORITIES = {"expected": 5, "best": 6}
_PAIR_COLUMNS = tuple(column for column in PAIR_COLUMNS if column.key != "why")  # the last one; reasons stand below
_COLUMNS = tuple(replace(column, priority=_PRIORITIES.get(column.key, column.priority)) for column in SIZE_COLUMNS)


def print_collectives(
    results: Sequence[CollectiveResult], suspects: Sequence[Suspect], page: Page, verbose: bool
) -> None:
    for collective in dict.fromkeys(result.collective for result in results):
        of_kind = [result for result in results if result.collective == collective]
        first = of_kind[0]
        nodes = f"{len(first.nodes)} nodes, {folded(first.nodes)}" if len(first.nodes) > 1 else folded(first.nodes)
        ranks = max(result.ranks for result in of_kind)
        page.line()
        where = f" of {ranks} ranks on {nodes}, {first.path or first.backend}"
        page.sentence(Cell(collective, "title"), Cell(where))
        columns = _COLUMNS if page.width >= WIDE else tuple(replace(column, gap=1) for column in _COLUMNS)
        page.whole_table(columns, [size_row(result) for result in of_kind])
        _sources(of_kind, page)
        if verbose or any(suspect.rank is not None for suspect in suspects):
            _ranks(of_kind, suspects, page, verbose)
    if verbose:
        page.paragraph(Cell(f"{LEGENDS['sizes'].removesuffix(' Enter: all ranks.')} {LEGENDS['ranks']}", "dim"))


def _sources(results: Sequence[CollectiveResult], page: Page) -> None:
    """Whose figures are expected."""
    sizes: dict[str, list[str]] = {}
    for result in results:
        if result.expected_source:
            sizes.setdefault(result.expected_source, []).append(size_text(result.size_bytes))
    for source, of_source in sizes.items():
        at = f" at {', '.join(of_source)}" if len(sizes) > 1 else ""
        page.sentence(Cell(f"expected{at}: {source}", "dim"))


def _ranks(results: Sequence[CollectiveResult], suspects: Sequence[Suspect], page: Page, verbose: bool) -> None:
    """Who comes last first, at the size at which the accused's lag is the largest part of the collective's time."""
    accused = {suspect.rank for suspect in suspects if suspect.rank is not None}
    result = max(results, key=lambda result: _worst_share(result, accused))
    ranks = by_lag(result)
    shown = [late for at, late in enumerate(ranks) if verbose or at < MOST_RANKS or late.rank in accused]
    if not shown:
        return
    page.paragraph(Cell(f"ranks at {size_text(result.size_bytes)}", "title"), Cell(", who comes last first"))
    width = max(len("NODE"), *(len(arrival.node) for arrival in shown))
    columns = with_widths(RANK_COLUMNS, node=width)
    page.whole_table(columns, [rank_row(arrival, result) for arrival in shown])
    rest = [arrival for arrival in ranks if arrival not in shown]
    most = short_time(max((arrival.lag_s for arrival in rest), default=None))
    page.more(len(rest), f"ranks, at most {most} after the first", "dim")


def _worst_share(result: CollectiveResult, accused: set[int]) -> float:
    lags_s = (arrival.lag_s for arrival in result.arrivals if not accused or arrival.rank in accused)
    return max(lags_s, default=0.0) / result.time_s if result.time_s else 0.0


def print_pairs(pairs: Sequence[PairResult], page: Page, verbose: bool) -> None:
    """The bad pairs, the worst first, and a sentence of the good ones."""
    levels = Levels(sorted({node for pair in pairs for node in pair.nodes}), pairs)
    bad = [pair for pair in pairs if pair.why or len(pair.nodes) != 2 or not levels.is_good(*pair.nodes)]
    usual, most = usual_busbw(pairs)
    listed = worst_first(pairs if verbose else bad)
    shown = listed if verbose else listed[:MOST_PAIRS]
    if shown:
        width = max(len("NODE"), *(len(node) for pair in shown for node in pair.nodes))
        columns = with_widths(_PAIR_COLUMNS, first=width, second=width)
        page.whole_table(columns, [pair_row(pair, usual, most, columns) for pair in shown])
        for why, of_pairs in failed_pairs(shown).items():  # in whole, and once: the table has no room for it
            more = f" (and {len(of_pairs) - 1} more pairs)" if len(of_pairs) > 1 else ""
            page.sentence(Cell(f"{' and '.join(of_pairs[0])}{more}: ", "bold"), Cell(why))
    page.more(len(listed) - len(shown), "bad pairs (--verbose shows them)")
    _good_pairs(pairs, bad, page)
    if verbose:
        page.lines([[], *pair_matrix(pairs, page.width)])
        page.sentence(Cell(LEGENDS["pairs"], "dim"))


def _good_pairs(pairs: Sequence[PairResult], bad: Sequence[PairResult], page: Page) -> None:
    set_apart = {id(pair) for pair in bad}
    good = [pair for pair in pairs if id(pair) not in set_apart]
    rounds = len({pair.round for pair in pairs})
    sizes = ", ".join(dict.fromkeys(size_text(pair.size_bytes) for pair in good))
    rates = span((pair.busbw_bytes_per_s for pair in good), bandwidth)
    figures = f": {rates} at {sizes}" if rates else ""
    text = f"{len(good)} of {len(pairs)} pairs are good{figures}, measured in {rounds} round{'s' * (rounds != 1)}"
    page.paragraph(Cell(text))


MOST_SUSPECTS = 20
MOST_FAILURES = 20  # kinds of them


def print_probe(
    report: ProbeReport,
    nodes: Sequence[NodeState],
    console: Console,
    verbose: bool = False,
    past: Sequence[PastResult] = (),
) -> None:
    """The whole report. ``nodes``: all that were asked. ``past``: earlier results, for the column AGAINST.

    ``verbose``: every device, suspect and failure by itself, and what the columns mean.
    """
    page = Page(console)
    _headline(report, page)
    width = page.width
    for lines in verdict_parts(report.verdict, width, None if verbose else MOST_SUSPECTS, whole=True):
        page.lines(lines)
    page.not_well([state for state in nodes if state.state != "live"])
    if any(isinstance(result, DeviceResult) for result in report.results):
        print_devices(report, past, page, verbose)
    sizes = [result for result in report.results if isinstance(result, CollectiveResult)]
    if sizes:
        print_collectives(sizes, report.verdict.suspects, page, verbose)
    pairs = [result for result in report.results if isinstance(result, PairResult)]
    if pairs:
        print_pairs(pairs, page, verbose)
    most = None if verbose else MOST_FAILURES
    failed = failure_lines(report.failures, width, most, each=verbose, whole=True)
    page.lines([[], *failed] if failed else [])
    if report.settings:
        page.lines([[], *listed("Settings", report.settings, width)])
    if report.command:
        page.title("The same without mltop")
        page.line(Cell(report.command))


def _headline(report: ProbeReport, page: Page) -> None:
    cells = [Cell("SIMULATED  ", "warn")] if report.simulated else []
    took = f", {seconds(report.took_s)}" if report.took_s else ""
    page.sentence(*cells, Cell(report.probe, "title"), Cell(took, "dim"))
