"""Which table a probe is shown as, its rows in order, what each row is about, and what stands below the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress, ProbeProgress
from mltop.probes.judge.probes.compare import group_subject
from mltop.probes.judge.values import known
from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    DEVICE_RESULTS,
    CollectiveResult,
    DeviceResult,
    PairResult,
    PastResult,
)
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.selection import first_of
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Cell, Column, Row, row_of, wrap
from mltop.tui.render.fleet.map import short_names
from mltop.tui.render.probes import collectives
from mltop.tui.render.probes.collectives import curve_lines, failed_pairs, pair_matrix, peer_matrix
from mltop.tui.render.probes.devices import Compared, Line, columns_of, device_row, done, slowest_first
from mltop.tui.render.probes.kinds import TABLES
from mltop.tui.render.probes.summary import command_lines, failure_lines, history_lines, listed
from mltop.tui.render.rows import values_of
from mltop.tui.screens.rows import SubjectRows
from mltop.tui.screens.tabled import Lines
from mltop.tui.screens.tables import gpu_of

Device = tuple[str, "int | None"]  # node and GPU, None: none of its GPUs


@dataclass(frozen=True)
class ProbeTable:
    """A table as it is shown: a row of each of ``items``, with its key and (node, GPU) that it is about."""

    name: str = ""
    columns: Sequence[Column] = ()
    items: Sequence[Any] = ()
    keys: Sequence[str] = ()
    about: Mapping[str, Device] = field(default_factory=dict)

    def line(self, key: str | None) -> Line | None:
        """The device of a row, where it is about one."""
        item = self.items[self.keys.index(key)] if key is not None and key in self.about else None
        return item if isinstance(item, Line) else None

    def make(self, index: int) -> Row:
        item, key = self.items[index], self.keys[index]
        return device_row(self.columns, item, key) if isinstance(item, Line) else row_of(self.columns, item, key)

    def rows(self, view: FleetView) -> SubjectRows:
        """The rows; a filter's fields are those of the newest view."""
        nodes = {node.node: node for node in view.nodes}

        def subject(index: int) -> Subject:
            name, gpu = self.about[self.keys[index]]
            node = nodes.get(name) or NodeView(NodeState(name, "lost"))
            return Subject(node, gpu_of(node, gpu))

        return SubjectRows(self.keys, self.make, subject, values_of(self.columns, self.items))


NO_TABLE = ProbeTable()


def table_of(progress: ProbeProgress, past: Mapping[str, Sequence[PastResult]], collective: str = "") -> ProbeTable:
    """``collective``: the key of the one whose ranks are looked at, "" none."""
    report = progress.report
    sizes = report.of(CollectiveResult) if report is not None else []
    chosen = next((result for result in sizes if collectives.size_key(result) == collective), None)
    if chosen is not None:
        ranks = [collectives.ArrivalLine(arrival, chosen) for arrival in collectives.by_lag(chosen)]
        about = [(line.arrival.node, line.arrival.gpu) for line in ranks]
        return _table("ranks", ranks, [str(line.arrival.rank) for line in ranks], about)
    if sizes:
        first_nodes = [(result.nodes[0] if result.nodes else "", None) for result in sizes]
        return _table("sizes", sizes, list(map(collectives.size_key, sizes)), first_nodes)
    pairs = collectives.pair_lines(report.of(PairResult) if report is not None else [])
    if pairs:
        keys = [f"{line.pair.round}/{'/'.join(line.pair.nodes)}" for line in pairs]
        return _table("pairs", pairs, keys, [(line.node(0), None) for line in pairs])
    return _devices(progress, past)


def _table(
    name: str, items: Sequence[Any], keys: Sequence[str], about: Sequence[Device], columns: Sequence[Column] = ()
) -> ProbeTable:
    return ProbeTable(name, columns or TABLES[name].columns, items, keys, dict(zip(keys, about, strict=True)))


def _devices(progress: ProbeProgress, past: Mapping[str, Sequence[PastResult]]) -> ProbeTable:
    """A kind whose results are not those of devices shows how far they are."""
    kind, report = progress.wanted.kind, progress.report
    devices = {(device.node, device.uuid or f"{device.gpu}/{device.rank}"): device for device in progress.devices}
    for result in report.of(DeviceResult) if report is not None else ():  # some only the report knows
        devices[result.node, result.uuid] = done(result)
    results = [device.result for device in devices.values() if device.result is not None]
    compared = Compared(results, past, report.started_at if report is not None else None)
    short = short_names(tuple(dict.fromkeys(device.node for device in devices.values())))
    refused = {(failure.node, failure.gpu) for failure in progress.failures if failure.refused}
    lines = [
        Line(device, _name(device, short), compared, (device.node, device.gpu) in refused, at)
        for at, device in enumerate(devices.values())
    ]
    lines.sort(key=slowest_first)
    name = kind if kind in DEVICE_RESULTS else "stages"
    columns = columns_of(TABLES[name].columns, lines, "NODE/GPU" if len(short) > 1 else "GPU")
    of_lines = [line.progress for line in lines]
    keys = [f"{device.node}/{device.gpu}/{device.uuid}/{device.rank}" for device in of_lines]
    return _table(name, lines, keys, [(device.node, device.gpu) for device in of_lines], columns)


def _name(device: DeviceProgress, short: Mapping[str, str]) -> str:
    """ "node01/3"; of one node "3". Processors are their node; slices of one GPU have its number."""
    own = str(device.gpu) if device.gpu is not None else "cpu" if device.uuid == "cpu" else ""
    own = f"r{device.rank}" if not own and device.rank is not None else own
    if len(short) < 2:
        return own or device.node
    return f"{short[device.node]}/{own}" if own and own != "cpu" else short[device.node]


# Below the table: failures, curve or square, history, settings, the command.

MOST_PAIRS = 6  # named of one reason


def lasting(progress: ProbeProgress, shown: ProbeTable, size: tuple[int, int]) -> tuple[list[Lines], list[Lines]]:
    """The sections that do not depend on the cursor: those before the ones that do, and those after.

    ``size``: most cells and lines. They are made once per report of progress: drawing a curve takes a while.
    """
    width, report = size[0], progress.report
    reported = report.failures if report is not None else ()
    failures = [*progress.failures, *(failure for failure in reported if failure not in progress.failures)]
    before = [failure_lines(failures, width), *_pictures(shown, size)]
    after = [
        listed("Settings", report.settings if report is not None else (), width),
        listed("Said while it ran", progress.notes, width),
        wrap([Cell(TABLES[shown.name].legend, "dim")], width) if shown.keys and TABLES[shown.name].legend else [],
        command_lines(report, width) if report is not None else [],
    ]
    return before, after


def at_cursor(
    progress: ProbeProgress, shown: ProbeTable, cursor: str | None, past: Mapping[str, Sequence[PastResult]], width: int
) -> list[Lines]:
    """The sections about the device under the cursor: the GPUs it copies to, and its history.

    ``cursor``: the key of its row.
    """
    history = _history(progress, shown, cursor, past, width)
    if shown.name != "copies":
        return [history]
    node, _ = shown.about.get(cursor or "", ("", None))
    return [peer_matrix(known(line.result for line in shown.items if line.progress.node == node), width), history]


def joined(sections: Sequence[Lines]) -> Lines:
    lines: Lines = []
    for section in sections:
        if section:
            lines += [[], *section] if lines else section
    return lines


def _pictures(shown: ProbeTable, size: tuple[int, int]) -> list[Lines]:
    if shown.name == "sizes":
        return [curve_lines(shown.items, *size)]
    if shown.name == "pairs":
        pairs = [line.pair for line in shown.items]
        failed = {why: list(map(" - ".join, of_pairs)) for why, of_pairs in failed_pairs(pairs).items()}
        reasons = [f"{first_of(names, MOST_PAIRS)}: {why}" for why, names in failed.items()]
        return [listed("Pairs that failed", reasons, size[0]), pair_matrix(pairs, size[0])]
    return []


def _history(
    progress: ProbeProgress, shown: ProbeTable, cursor: str | None, past: Mapping[str, Sequence[PastResult]], width: int
) -> Lines:
    """The results before this run, of the device under the cursor or of the nodes that took part."""
    report = progress.report
    of, who, probe = "", "", str(progress.wanted.kind)
    line = shown.line(cursor)
    if line is not None and line.result is not None:
        result = line.result
        of, who = result.subject, f"{result.node} CPUs" if result.gpu is None else f"{result.node} GPU {result.gpu}"
    elif shown.name == "sizes":
        first = shown.items[0]
        of, who, probe = group_subject(first), f"{len(first.nodes)} nodes together", first.collective
    earlier = [result for result in past.get(of, ()) if report is None or result.at < report.started_at]
    return history_lines(who, earlier, probe, width)
