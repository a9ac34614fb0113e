"""What `mltop probe` prints: the verdict first, then figures, what was not measured, settings, and the command.

Many devices that are alike are one sentence, the others a row each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.compare import PEER_GAP
from mltop.probes.judge.probes.pairs import Levels
from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    DeviceResult,
    MatmulResult,
    MemoryResult,
    PairResult,
    PastResult,
    ProbeReport,
    Suspect,
)
from mltop.probes.model.units import (
    bandwidth,
    celsius,
    flops,
    mhz,
    number,
    percent,
    seconds,
    short_time,
    size_text,
    watts,
    work_done,
)
from mltop.tui.render.cells import Cell, Column, with_widths
from mltop.tui.render.gpus.throttle import ALARMING
from mltop.tui.render.probes.collectives import (
    PAIR_COLUMNS,
    RANK_COLUMNS,
    SIZE_COLUMNS,
    SLOW_PAIR,
    by_lag,
    failed_pairs,
    pair_matrix,
    pair_row,
    peer_matrix,
    place_of,
    rank_row,
    size_row,
    usual_busbw,
    worst_first,
)
from mltop.tui.render.probes.comparison import Compared, main_value
from mltop.tui.render.probes.devices import (
    BRIEF,
    TABLES,
    Line,
    columns_of,
    device_row,
    is_wrong,
    load_phase,
    shape_text,
)
from mltop.tui.render.probes.kinds import LEGENDS
from mltop.tui.render.probes.summary import failure_lines, listed, ranges, verdict_parts
from mltop.tui.render.units import middle
from mltop.tui.report.page import Page, span

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


WIDE = 110  # columns of the terminal: below, cells say less
FEW = 8  # alike results: so many are shown one by one
LEAST_SHARE = 0.005  # of the time: less throttling is none
MOST_FIRST = 40  # cells of the first column


def print_devices(report: ProbeReport, past: Sequence[PastResult], page: Page, verbose: bool) -> None:
    """The report's results of devices, all of one kind, in the order of nodes and GPUs."""
    results = [result for result in report.results if isinstance(result, DeviceResult)]
    kind = _kind(results[0])
    earlier: dict[str, list[PastResult]] = {}
    for result in past:
        earlier.setdefault(result.uuid, []).append(result)
    compared = Compared(report.probe, results, earlier, report.started_at)
    groups = [] if verbose else _alike(results, report.verdict.suspects, compared)
    folded_away = {id(result) for group in groups for result in group}
    single = [result for result in results if id(result) not in folded_away]
    if single:
        lines = [_line(result, compared) for result in single]
        width = min(MOST_FIRST, max(8, *(len(line.name) for line in lines)))
        table = _brief(kind) if page.width < WIDE else TABLES[kind]
        title = "NODE/GPU" if any(result.gpu is not None for result in single) else "NODE"
        columns = columns_of(table, width, title)
        if page.width < WIDE:
            columns = tuple(replace(column, gap=1) for column in columns)
        page.whole_table(columns, [device_row(columns, line, line.name) for line in lines])
    for group in groups:
        page.paragraph(*_alike_sentence(group, more=bool(single)))
    if kind == "copies":
        _peers([result for result in results if isinstance(result, CopiesResult)], page, verbose)
    _how(results, page)
    if verbose:
        page.paragraph(Cell(LEGENDS[kind], "dim"))


def _line(result: DeviceResult, compared: Compared) -> Line:
    progress = DeviceProgress(result.node, result.gpu, result.uuid, result.name, result=result)
    return Line(progress, place_of(result.node, result.gpu), result, compared.of, compared.values)


def _brief(kind: str) -> list[Column]:
    """For narrow terminals, where the fastest clock there is would cost the temperature."""
    return [_CLOCK if column.key == "clock" else column for column in BRIEF[kind]]


_CLOCK = Column(
    "clock", "MHZ", 4, True, 2, cell=lambda line: number(None if line.phase is None else line.phase.sm_clock_mhz)
)


def _kind(result: DeviceResult) -> str:
    return "matmul" if isinstance(result, MatmulResult) else "memory" if isinstance(result, MemoryResult) else "copies"


# Which are alike.


def _alike(
    results: Sequence[DeviceResult], suspects: Sequence[Suspect], compared: Compared
) -> list[list[DeviceResult]]:
    """Groups of more than FEW devices of one model with nothing to say of any of them."""
    accused = {(suspect.node, suspect.gpu) for suspect in suspects}
    by_model: dict[tuple[str, str], list[DeviceResult]] = {}
    for result in results:
        by_model.setdefault((result.name, result.kind), []).append(result)
    groups = []
    for members in by_model.values():
        usual = middle(main_value(result) for result in members)
        group = [result for result in members if _is_usual(result, usual, compared) and not _is_named(result, accused)]
        if len(group) > FEW:
            groups.append(group)
    return groups


def _is_named(result: DeviceResult, accused: set[tuple[str, int | None]]) -> bool:
    return (result.node, result.gpu) in accused or (result.node, None) in accused


def _is_usual(result: DeviceResult, usual: float | None, compared: Compared) -> bool:
    value, against, phase = main_value(result), compared.of(result), load_phase(result)
    if value is None or not usual or abs(value / usual - 1) > PEER_GAP or is_wrong(result):
        return False
    if (against is not None and against.slow) or (isinstance(result, MatmulResult) and result.still_heating):
        return False
    shares = phase.throttle_share if phase is not None else {}
    return all(shares.get(reason, 0.0) < LEAST_SHARE for reason in ALARMING)


def _alike_sentence(group: Sequence[DeviceResult], more: bool) -> list[Cell]:
    """ "56 GPUs alike on h[01-07] (NVIDIA H100): burst 781-799T, ..."."""
    what = {"cpu": "nodes", "mig": "MIG slices"}.get(group[0].kind, "GPUs")
    gpus = {result.gpu for result in group if result.gpu is not None}
    nodes = folded(result.node for result in group)
    is_one_node = len({result.node for result in group}) == 1
    where = f" GPU {ranges(gpus)}" if is_one_node and gpus else ""
    head = f"{'and ' if more else ''}{len(group)} {what} alike"
    of = [Cell(head, "bold"), Cell(f" on {nodes}{where}"), Cell(f" ({group[0].name})" if group[0].name else "", "dim")]
    return [*of, Cell(": "), Cell(", ".join(filter(None, _spans(group))))]


def _spans(group: Sequence[DeviceResult]) -> list[str]:
    matmul = [result for result in group if isinstance(result, MatmulResult)]
    memory = [result for result in group if isinstance(result, MemoryResult)]
    copies = [result for result in group if isinstance(result, CopiesResult)]
    phases = [phase for phase in map(load_phase, group) if phase is not None]
    parts = [
        _named("burst", span((result.burst_tflops for result in matmul), flops)),
        _named("held", span((result.sustained_tflops for result in matmul), flops)),
        _named(
            "efficiency", span((result.sustained_efficiency or result.burst_efficiency for result in matmul), percent)
        ),
        _named("copy", span((result.copy_bytes_per_s for result in memory), bandwidth)),
        _named("to GPU", span((result.to_device_bytes_per_s for result in copies), bandwidth)),
        _named("to host", span((result.to_host_bytes_per_s for result in copies), bandwidth)),
        _named("all at once to GPU", span((result.to_device_together_bytes_per_s for result in copies), bandwidth)),
        _named("to host", span((result.to_host_together_bytes_per_s for result in copies), bandwidth)),
        span((phase.sm_clock_mhz for phase in phases), mhz),
        span((phase.power_w for phase in phases), watts),
        span((phase.temperature_c for phase in phases), celsius),
        _named("at the power limit for", span((phase.throttle_share.get("sw_power_cap") for phase in phases), percent)),
    ]
    checked = sum(result.checked_pflop for result in matmul)
    parts.append(f"no error in {work_done(checked)}" if checked else "")
    return [*parts, "data intact" if any(getattr(result, "intact", None) for result in group) else ""]


def _named(name: str, text: str) -> str:
    return f"{name} {text}" if text else ""


# Copies between the GPUs of a node.


def _peers(results: Sequence[CopiesResult], page: Page, verbose: bool) -> None:
    """The square of every node that has something to show; of the others one sentence."""
    of_node: dict[str, list[CopiesResult]] = {}
    for result in results:
        if result.peers:
            of_node.setdefault(result.node, []).append(result)
    usual = middle(peer.bytes_per_s for result in results for peer in result.peers)
    alone = verbose or len(of_node) == 1
    plain = {node: members for node, members in of_node.items() if not alone and _are_alike(members, usual)}
    for node, members in of_node.items():
        if node not in plain:
            too_wide = Cell(f"{node}: copies between its GPUs do not fit into this width (--json has them)", "warn")
            page.lines([[], *(peer_matrix(members, page.width) or [[too_wide]])])
    if plain:
        rates = [peer.bytes_per_s for members in plain.values() for result in members for peer in result.peers]
        alike = f"{len(rates)} copies between GPUs alike on {folded(plain)}"
        page.paragraph(Cell(f"{alike}: {span(rates, bandwidth)}, direct"))


def _are_alike(results: Sequence[CopiesResult], usual: float | None) -> bool:
    peers = [peer for result in results for peer in result.peers]
    return all(
        peer.bytes_per_s is not None and usual and peer.bytes_per_s >= SLOW_PAIR * usual and peer.direct is True
        for peer in peers
    )


# How it was measured.


def _how(results: Sequence[DeviceResult], page: Page) -> None:
    """Versions and shapes, those that are equal together; what is not known, and why."""
    ways: dict[str, list[DeviceResult]] = {}
    for result in results:
        ways.setdefault(_way(result), []).append(result)
    page.line()
    for way, members in ways.items():
        whose = f"{folded(result.node for result in members)}: " if len(ways) > 1 else ""
        page.sentence(Cell(f"{whose}{way}", "dim"))
    gaps: dict[tuple[str, str], list[DeviceResult]] = {}
    for result in results:
        for what, why in result.gaps.items():
            gaps.setdefault((what, why), []).append(result)
    for (what, why), members in gaps.items():
        alone = place_of(members[0].node, members[0].gpu)
        who = alone if len(members) == 1 else folded(result.node for result in members)
        page.sentence(Cell(f"{who}: {what} is not known: ", "warn"), Cell(why))


def _way(result: DeviceResult) -> str:
    parts = [f"{name} {version}" for name, version in result.versions.items() if version]
    if isinstance(result, MatmulResult):
        tried = f" (best of {result.shapes_tried} shapes)" if result.shapes_tried > 1 else ""
        parts += [f"{result.dtype} burst {shape_text(result.shape)}{tried}"] if result.shape else []
        parts += [f"held {shape_text(result.sustained_shape)}"] if result.sustained_shape else []
        parts += [result.code_path] if result.code_path else []
    elif isinstance(result, (MemoryResult, CopiesResult)) and result.size_bytes:
        parts.append(f"{result.iterations} copies of {size_text(result.size_bytes)}")
    return ", ".join(parts)
