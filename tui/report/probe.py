"""What `mltop probe` prints: the verdict first, then figures, what was not measured, settings, and the command.

Many devices that are alike are one sentence, the others a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.compare import PEER_GAP
from mltop.probes.judge.probes.devices import plural
from mltop.probes.judge.probes.pairs import Levels
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import NodeState, units
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    DeviceResult,
    PairResult,
    PastResult,
    ProbeReport,
    Suspect,
)
from mltop.probes.model.ranks import fold
from mltop.tui.render.cells import Cell, Column, row_of, with_widths
from mltop.tui.render.gpus.throttle import ALARMING
from mltop.tui.render.probes import collectives, devices
from mltop.tui.render.probes.kinds import TABLES
from mltop.tui.render.probes.summary import failure_lines, verdict_parts
from mltop.tui.render.units import middle
from mltop.tui.report.page import Page, span

if TYPE_CHECKING:
    from rich.console import Console

MOST_RANKS = 10
MOST_PAIRS = 20
_PAIR_COLUMNS = collectives.PAIR_COLUMNS[:-1]  # without "why": reasons stand below


def print_collectives(
    results: Sequence[CollectiveResult], suspects: Sequence[Suspect], page: Page, verbose: bool
) -> None:
    for collective in dict.fromkeys(result.collective for result in results):
        of_kind = [result for result in results if result.collective == collective]
        first = of_kind[0]
        nodes = f"{len(first.nodes)} nodes, {folded(first.nodes)}" if len(first.nodes) > 1 else folded(first.nodes)
        ranks = max(result.ranks for result in of_kind)
        page.line()
        where = f" of {ranks} ranks on {nodes}, {first.over}"
        page.sentence(Cell(collective, "title"), Cell(where))
        columns = _close(TABLES["sizes"].columns) if page.width < WIDE else TABLES["sizes"].columns
        page.whole_table(columns, [row_of(columns, result, "") for result in of_kind])
        sizes = grouped((result for result in of_kind if result.expected_source), lambda result: result.expected_source)
        for source, of_source in sizes.items():
            at = (
                f" at {', '.join(units.size_text(result.size_bytes) for result in of_source)}" if len(sizes) > 1 else ""
            )
            page.sentence(Cell(f"expected{at}: {source}", "dim"))
        if verbose or any(suspect.rank is not None for suspect in suspects):
            _ranks(of_kind, suspects, page, verbose)
    if verbose:
        sizes_legend = TABLES["sizes"].legend.removesuffix(" Enter: all ranks.")
        page.paragraph(Cell(f"{sizes_legend} {TABLES['ranks'].legend}", "dim"))


def _ranks(results: Sequence[CollectiveResult], suspects: Sequence[Suspect], page: Page, verbose: bool) -> None:
    """Who comes last first, at the size at which the accused's lag is the largest part of the collective's time."""
    accused = {suspect.rank for suspect in suspects if suspect.rank is not None}
    result = max(results, key=lambda result: _worst_share(result, accused))
    ranks = collectives.by_lag(result)
    shown = [late for at, late in enumerate(ranks) if verbose or at < MOST_RANKS or late.rank in accused]
    if not shown:
        return
    page.paragraph(Cell(f"ranks at {units.size_text(result.size_bytes)}", "title"), Cell(", who comes last first"))
    columns = with_widths(collectives.RANK_COLUMNS, node=max(len("NODE"), *(len(arrival.node) for arrival in shown)))
    lines = (collectives.ArrivalLine(arrival, result) for arrival in shown)
    page.whole_table(columns, [row_of(columns, line, "") for line in lines])
    rest = [arrival for arrival in ranks if arrival not in shown]
    most = units.short_time(max((arrival.lag_s for arrival in rest), default=None))
    page.more(len(rest), f"ranks, at most {most} after the first", "dim")


def _worst_share(result: CollectiveResult, accused: set[int]) -> float:
    lags_s = (arrival.lag_s for arrival in result.arrivals if not accused or arrival.rank in accused)
    return max(lags_s, default=0.0) / result.time_s if result.time_s else 0.0


def print_pairs(pairs: Sequence[PairResult], page: Page, verbose: bool) -> None:
    """The bad pairs, the worst first, and a sentence of the good ones."""
    levels = Levels(sorted({node for pair in pairs for node in pair.nodes}), pairs)
    bad = [pair for pair in pairs if pair.why or len(pair.nodes) != 2 or not levels.is_good(*pair.nodes)]
    listed = collectives.pair_lines(pairs if verbose else bad, pairs)
    shown = listed if verbose else listed[:MOST_PAIRS]
    if shown:
        width = max(len("NODE"), *(len(node) for line in shown for node in line.pair.nodes))
        columns = with_widths(_PAIR_COLUMNS, first=width, second=width)
        page.whole_table(columns, [row_of(columns, line, "") for line in shown])
        # In whole, and once: the table has no room for it.
        page.lines(TABLES["pairs"].pictures(shown, (page.width, 0))[0])
    page.more(len(listed) - len(shown), "bad pairs (--verbose shows them)")
    set_apart = {id(pair) for pair in bad}
    good = [pair for pair in pairs if id(pair) not in set_apart]
    rates, sizes = span((pair.busbw_bytes_per_s for pair in good), units.bandwidth), {pair.size_bytes for pair in good}
    figures = f": {rates} at {', '.join(map(units.size_text, sorted(sizes)))}" if rates else ""
    rounds = units.counted(len({pair.round for pair in pairs}), "round")
    page.paragraph(Cell(f"{len(good)} of {len(pairs)} pairs are good{figures}, measured in {rounds}"))
    if verbose:
        page.lines([[], *collectives.pair_matrix(pairs, page.width)])
        page.sentence(Cell(TABLES["pairs"].legend, "dim"))


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
    width = page.width
    took = f", {units.seconds(report.took_s)}" if report.took_s else ""
    simulated = [Cell("SIMULATED  ", "warn")] if report.simulated else []
    page.sentence(*simulated, Cell(report.probe, "title"), Cell(took, "dim"))
    for lines in verdict_parts(report.verdict, width, None if verbose else MOST_SUSPECTS, whole=True):
        page.lines(lines)
    page.not_well([state for state in nodes if state.state != "live"])
    if report.of(DeviceResult):
        print_devices(report, past, page, verbose)
    if sizes := report.of(CollectiveResult):
        print_collectives(sizes, report.verdict.suspects, page, verbose)
    if pairs := report.of(PairResult):
        print_pairs(pairs, page, verbose)
    most = None if verbose else MOST_FAILURES
    failed = failure_lines(report.failures, width, most, each=verbose, whole=True)
    page.lines([[], *failed] if failed else [])
    if report.settings:
        page.lines([[], *devices.listed("Settings", report.settings, width)])
    if report.command:
        page.title("The same without mltop")
        page.line(Cell(report.command))


WIDE = 110  # columns of the terminal: below, columns are close to each other
FEW = 8  # alike results: so many are shown one by one
LEAST_SHARE = 0.005  # of the time: less throttling is none


def print_devices(report: ProbeReport, past: Sequence[PastResult], page: Page, verbose: bool) -> None:
    """The report's results of devices, all of one kind, in the order of nodes and GPUs."""
    results, kind = report.of(DeviceResult), report.probe
    earlier = grouped(past, lambda result: result.uuid)
    compared = devices.Compared(results, earlier, report.started_at)
    groups = [] if verbose else _alike(results, report.verdict.suspects, compared)
    folded_away = {id(result) for group in groups for result in group}
    single = [result for result in results if id(result) not in folded_away]
    if single:
        lines = [devices.Line(devices.done(one), collectives.place_of(one.node, one.gpu), compared) for one in single]
        title = "NODE/GPU" if any(result.gpu is not None for result in single) else "NODE"
        columns = devices.columns_of(TABLES[kind].columns, lines, title)
        if page.width < WIDE:
            columns = _close(columns)
        page.whole_table(columns, [devices.device_row(columns, line, line.name) for line in lines])
    for group in groups:
        page.paragraph(*_alike_sentence(group, more=bool(single)))
    _peers(report.of(CopiesResult), page, verbose)
    _how(results, page)
    if verbose:
        page.paragraph(Cell(TABLES[kind].legend, "dim"))


def _close(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(replace(column, gap=1) for column in columns)


# Which are alike.


def _alike(
    results: Sequence[DeviceResult], suspects: Sequence[Suspect], compared: devices.Compared
) -> list[list[DeviceResult]]:
    """Groups of more than FEW devices of one model with nothing to say of any of them."""
    accused = {(suspect.node, suspect.gpu) for suspect in suspects}
    groups = []
    for members in grouped(results, lambda result: (result.name, result.kind)).values():
        usual = middle(result.rate for result in members)
        not_named = (one for one in members if not accused & {(one.node, one.gpu), (one.node, None)})
        group = [result for result in not_named if _is_usual(result, usual, compared)]
        if len(group) > FEW:
            groups.append(group)
    return groups


def _is_usual(result: DeviceResult, usual: float | None, compared: devices.Compared) -> bool:
    value, against, phase = result.rate, compared.of(result), devices.load_phase(result)
    if value is None or not usual or abs(value / usual - 1) > PEER_GAP or result.is_wrong:
        return False
    if (against is not None and against.slow) or getattr(result, "still_heating", False):
        return False
    shares = phase.throttle_share if phase is not None else {}
    return all(shares.get(reason, 0.0) < LEAST_SHARE for reason in ALARMING)


def _alike_sentence(group: Sequence[DeviceResult], more: bool) -> list[Cell]:
    """ "56 GPUs alike on h[01-07] (NVIDIA H100): burst 781-799T, ..."."""
    gpus = {result.gpu for result in group if result.gpu is not None}
    nodes = folded(result.node for result in group)
    where = f" GPU {fold(gpus)}" if len({result.node for result in group}) == 1 and gpus else ""
    who = [Cell(f"{'and ' if more else ''}{plural(group)} alike", "bold"), Cell(f" on {nodes}{where}")]
    name = [Cell(f" ({group[0].name})", "dim")] if group[0].name else []
    return [*who, *name, Cell(": "), Cell(", ".join(_spans(group)))]


# What is said of alike devices: fields of their results, and of the phase under load.
_SPANS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("burst ", "burst_tflops", units.flops),
    ("held ", "sustained_tflops", units.flops),
    ("efficiency ", "efficiency", units.percent),
    ("copy ", "copy_bytes_per_s", units.bandwidth),
    ("to GPU ", "to_device_bytes_per_s", units.bandwidth),
    ("to host ", "to_host_bytes_per_s", units.bandwidth),
    ("all at once to GPU ", "to_device_together_bytes_per_s", units.bandwidth),
    ("to host ", "to_host_together_bytes_per_s", units.bandwidth),
    ("", "sm_clock_mhz", units.mhz),
    ("", "power_w", units.watts),
    ("", "temperature_c", units.celsius),
)


def _spans(group: Sequence[DeviceResult]) -> list[str]:
    phases = known(map(devices.load_phase, group))
    items = [*group, *phases]
    parts = [(name, span((getattr(item, field, None) for item in items), text)) for name, field, text in _SPANS]
    capped = (phase.throttle_share.get("sw_power_cap") for phase in phases)
    checked = sum(getattr(result, "checked_pflop", 0.0) for result in group)
    parts += [
        ("at the power limit for ", span(capped, units.percent)),
        ("no error in ", units.work_done(checked) if checked else ""),
    ]
    intact = any(getattr(result, "intact", None) for result in group)
    return [name + text for name, text in (*parts, ("data ", "intact" if intact else "")) if text]


# Copies between the GPUs of a node.


def _peers(results: Sequence[CopiesResult], page: Page, verbose: bool) -> None:
    """The square of every node that has something to show; of the others one sentence."""
    of_node = grouped((result for result in results if result.peers), lambda result: result.node)
    usual = middle(peer.bytes_per_s for result in results for peer in result.peers)
    alone = verbose or len(of_node) == 1
    plain = {node: members for node, members in of_node.items() if not alone and _are_alike(members, usual)}
    for node, members in of_node.items():
        if node not in plain:
            too_wide = Cell(f"{node}: copies between its GPUs do not fit into this width (--json has them)", "warn")
            page.lines([[], *(collectives.peer_matrix(members, page.width) or [[too_wide]])])
    if plain:
        rates = [peer.bytes_per_s for members in plain.values() for result in members for peer in result.peers]
        alike = f"{len(rates)} copies between GPUs alike on {folded(plain)}"
        page.paragraph(Cell(f"{alike}: {span(rates, units.bandwidth)}, direct"))


def _are_alike(results: Sequence[CopiesResult], usual: float | None) -> bool:
    peers = [peer for result in results for peer in result.peers]
    return all(
        peer.bytes_per_s is not None and usual and peer.bytes_per_s >= devices.SLOW_WAY * usual and peer.direct is True
        for peer in peers
    )


# How it was measured.


def _how(results: Sequence[DeviceResult], page: Page) -> None:
    """Versions and shapes, those that are equal together; what is not known, and why."""
    how = TABLES[results[0].KIND].how
    ways = grouped(
        results, lambda one: ", ".join([*(f"{name} {of}" for name, of in one.versions.items() if of), *how(one)])
    )
    page.line()
    for way, members in ways.items():
        nodes = f"{folded(result.node for result in members)}: " if len(ways) > 1 else ""
        page.sentence(Cell(nodes + way, "dim"))
    gaps = grouped(((gap, result) for result in results for gap in result.gaps.items()), lambda pair: pair[0])
    for (what, why), unknown in gaps.items():
        _, first = unknown[0]
        who = (
            collectives.place_of(first.node, first.gpu)
            if len(unknown) == 1
            else folded(result.node for _, result in unknown)
        )
        page.sentence(Cell(f"{who}: {what} is not known: ", "warn"), Cell(why))
