"""Which table a probe is shown as, its rows in order, what each row is about, and what stands below the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress, ProbeProgress
from mltop.probes.judge.probes.compare import group_subject
from mltop.probes.judge.values import known
from mltop.probes.model import NodeState
from mltop.probes.model.probe import CollectiveResult, CopiesResult, DeviceResult, PairResult, PastResult
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Cell, Column, Row, row_of, wrap
from mltop.tui.render.fleet.map import short_names
from mltop.tui.render.probes import collectives
from mltop.tui.render.probes.devices import Compared, Line, columns_of, device_row, done, listed, slowest_first
from mltop.tui.render.probes.kinds import TABLES, Device, Lines
from mltop.tui.render.probes.summary import command_lines, failure_lines, history_lines
from mltop.tui.render.rows import values_of
from mltop.tui.screens.rows import SubjectRows
from mltop.tui.screens.tables import gpu_of

Past = Mapping[str, Sequence[PastResult]]
NOBODY: Device = ("", None)


@dataclass(frozen=True)
class ProbeTable:
    """A table of TABLES as it is shown: a row of each of ``items``."""

    name: str = "stages"
    items: Sequence[Any] = ()
    columns: Sequence[Column] = ()

    @cached_property
    def keys(self) -> Sequence[str]:
        return list(map(TABLES[self.name].key, self.items))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    def item(self, key: str | None) -> Any:
        """What a row shows; None without a row."""
        place = self._places.get(key or "")
        return None if place is None else self.items[place]

    def about(self, key: str | None) -> Device:
        item = self.item(key)
        return NOBODY if item is None else TABLES[self.name].about(item)

    def make(self, index: int) -> Row:
        item, key = self.items[index], self.keys[index]
        return device_row(self.columns, item, key) if isinstance(item, Line) else row_of(self.columns, item, key)

    def rows(self, view: FleetView) -> SubjectRows:
        """The rows; a filter's fields are those of the newest view."""
        nodes = {node.node: node for node in view.nodes}

        def subject(index: int) -> Subject:
            name, gpu = TABLES[self.name].about(self.items[index])
            node = nodes.get(name) or NodeView(NodeState(name, "lost"))
            return Subject(node, gpu_of(node, gpu))

        return SubjectRows(self.keys, self.make, subject, values_of(self.columns, self.items))


NO_TABLE = ProbeTable()


def table_of(progress: ProbeProgress, past: Past, collective: str = "") -> ProbeTable:
    """``collective``: the key of the one whose ranks are looked at, "" none."""
    report = progress.report
    sizes = report.of(CollectiveResult) if report is not None else []
    chosen = next((result for result in sizes if collectives.size_key(result) == collective), None)
    items: Mapping[str, Sequence[Any]] = {
        "ranks": [] if chosen is None else [collectives.ArrivalLine(one, chosen) for one in collectives.by_lag(chosen)],
        "sizes": sizes,
        "pairs": collectives.pair_lines(report.of(PairResult) if report is not None else []),
    }
    name = next((name for name in items if items[name]), "")
    return ProbeTable(name, items[name], TABLES[name].columns) if name else _devices(progress, past)


def _devices(progress: ProbeProgress, past: Past) -> ProbeTable:
    """A kind whose results are not those of devices shows how far they are."""
    report = progress.report
    devices = {(device.node, device.uuid or f"{device.gpu}/{device.rank}"): device for device in progress.devices}
    for result in report.of(DeviceResult) if report is not None else ():  # some only the report knows
        devices[result.node, result.uuid] = done(result)
    compared = Compared(
        known(device.result for device in devices.values()), past, report.started_at if report is not None else None
    )
    short = short_names(tuple(dict.fromkeys(device.node for device in devices.values())))
    refused = {(failure.node, failure.gpu) for failure in progress.failures if failure.refused}
    lines = [
        Line(device, _name(device, short), compared, (device.node, device.gpu) in refused, at)
        for at, device in enumerate(devices.values())
    ]
    lines.sort(key=slowest_first)
    name = progress.wanted.kind if progress.wanted.row.one_gpu else "stages"
    return ProbeTable(name, lines, columns_of(TABLES[name].columns, lines, "NODE/GPU" if len(short) > 1 else "GPU"))


def _name(device: DeviceProgress, short: Mapping[str, str]) -> str:
    """ "node01/3"; of one node "3". Processors are their node; slices of one GPU have its number."""
    own = str(device.gpu) if device.gpu is not None else "cpu" if device.uuid == "cpu" else ""
    own = f"r{device.rank}" if not own and device.rank is not None else own
    if len(short) < 2:
        return own or device.node
    return f"{short[device.node]}/{own}" if own and own != "cpu" else short[device.node]


# Below the table: failures, curve or square, history, settings, the command.


def lasting(progress: ProbeProgress, shown: ProbeTable, size: tuple[int, int]) -> tuple[list[Lines], list[Lines]]:
    """The sections that do not depend on the cursor: those before the ones that do, and those after.

    ``size``: most cells and lines. They are made once per report of progress: drawing a curve takes a while.
    """
    width, report, table = size[0], progress.report, TABLES[shown.name]
    reported = report.failures if report is not None else ()
    failures = [*progress.failures, *(failure for failure in reported if failure not in progress.failures)]
    before = [failure_lines(failures, width), *table.pictures(shown.items, size)]
    after = [
        listed("Settings", report.settings if report is not None else (), width),
        listed("Said while it ran", progress.notes, width),
        wrap([Cell(table.legend, "dim")], width) if shown.items and table.legend else [],
        command_lines(report, width) if report is not None else [],
    ]
    return before, after


def at_cursor(progress: ProbeProgress, shown: ProbeTable, cursor: str | None, past: Past, width: int) -> list[Lines]:
    """The sections about the device under the cursor: the GPUs it copies to, and its earlier results; of collectives
    those of the nodes that took part. ``cursor``: the key of its row.
    """
    report, item, peers = progress.report, shown.item(cursor), []
    of, who, probe = "", "", str(progress.wanted.kind)
    if isinstance(item, Line):
        node, gpu = item.about
        on_node = known(line.result for line in shown.items if line.progress.node == node)
        peers = collectives.peer_matrix([result for result in on_node if isinstance(result, CopiesResult)], width)
        if item.result is not None:
            of, who = item.result.subject, f"{node} CPUs" if gpu is None else f"{node} GPU {gpu}"
    elif shown.name == "sizes":
        first = shown.items[0]
        of, who, probe = group_subject(first), f"{len(first.nodes)} nodes together", first.collective
    earlier = [result for result in past.get(of, ()) if report is None or result.at < report.started_at]
    return [peers, history_lines(who, earlier, probe, width)]


def joined(sections: Sequence[Lines]) -> Lines:
    lines: Lines = []
    for section in filter(None, sections):
        lines += [[], *section] if lines else section
    return lines
