"""Which table a probe is shown as, its rows in order, and what each row is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mltop.probes.investigate.probing.wanted import DeviceProgress, ProbeProgress
from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    DeviceResult,
    MatmulResult,
    MemoryResult,
    PairResult,
    PastResult,
)
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Column, Row, Value, row_of, values_of
from mltop.tui.render.fleet.map import short_names
from mltop.tui.render.probes.collectives import (
    PAIR_COLUMNS,
    RANK_COLUMNS,
    SIZE_COLUMNS,
    ArrivalLine,
    PairLine,
    by_lag,
    pair_key,
    size_key,
    usual_busbw,
    worst_first,
)
from mltop.tui.render.probes.comparison import Compared
from mltop.tui.render.probes.devices import BRIEF, TABLES, Line, columns_of, device_row, slowest_first
from mltop.tui.screens.rows import SubjectRows

RESULTS: Mapping[str, type[DeviceResult]] = {"matmul": MatmulResult, "memory": MemoryResult, "copies": CopiesResult}
NAMES = (*TABLES, "sizes", "ranks", "pairs")  # of the tables; the screen has a widget for each


@dataclass(frozen=True)
class Shown:
    """One table. ``lines``: of devices, by key; ``about``: (node, GPU) of each row, by key."""

    name: str
    columns: Sequence[Column]
    keys: Sequence[str]
    make: Callable[[int], Row]
    value: Callable[[str, int], Value]
    lines: Mapping[str, Line] = field(default_factory=dict)
    about: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)

    def rows(self, view: FleetView) -> SubjectRows:
        """As a table takes them; fields of a filter are asked of the newest view."""
        nodes = {node.node: node for node in view.nodes}

        def subject(index: int) -> Subject:
            name, gpu = self.about[self.keys[index]]
            node = nodes.get(name) or NodeView(NodeState(name, "lost"))
            sample = node.sample
            gpus = sample.gpus if sample is not None else []
            return Subject(node, next((candidate for candidate in gpus if candidate.index == gpu), None))

        return SubjectRows(self.keys, self.make, subject, self.value)


class ResultTables:
    """Makes tables from progress; what a node sent is read once, however often progress comes."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[object, DeviceResult | None]] = {}

    def table(
        self,
        progress: ProbeProgress,
        past: Mapping[str, Sequence[PastResult]],
        collective: str = "",
        brief: bool = False,
    ) -> Shown:
        """``collective``: the key of the one whose ranks are looked at, "" none; ``brief``: short words in cells."""
        report = progress.report
        results = report.results if report is not None else []
        sizes = [result for result in results if isinstance(result, CollectiveResult)]
        pairs = [result for result in results if isinstance(result, PairResult)]
        chosen = next((result for result in sizes if size_key(result) == collective), None)
        if chosen is not None:
            return ranks_table(chosen)
        if sizes:
            return sizes_table(sizes)
        if pairs:
            return pairs_table(pairs)
        return self._devices(progress, past, brief)

    def _devices(self, progress: ProbeProgress, past: Mapping[str, Sequence[PastResult]], brief: bool) -> Shown:
        kind, report = progress.wanted.kind, progress.report
        devices = _all_devices(progress)
        results = {key: self._result(kind, key, device) for key, device in devices.items()}
        began_at = report.started_at if report is not None else None
        compared = Compared(kind, [result for result in results.values() if result is not None], past, began_at)
        short = short_names(tuple(dict.fromkeys(device.node for device in devices.values())))
        several = len(short) > 1
        refused = {(failure.node, failure.gpu) for failure in progress.failures if failure.refused}
        lines = {
            _key(device): Line(
                device,
                _name(device, short, several),
                results[key],
                compared.of,
                compared.values,
                (device.node, device.gpu) in refused,
            )
            for key, device in devices.items()
        }
        return devices_table(kind, lines, "NODE/GPU" if several else "GPU", brief)

    def _result(self, kind: str, key: tuple[str, str], device: DeviceProgress) -> DeviceResult | None:
        given = device.result
        if given is None or isinstance(given, DeviceResult):
            return given
        kept = self._read.get(key)
        if kept is None or kept[0] is not given:
            kept = self._read[key] = (given, _read(kind, given))
        return kept[1]


def _read(kind: str, given: Any) -> DeviceResult | None:
    """A result as a node sent it; None of what is none."""
    try:
        return msgspec.convert(given, RESULTS[kind]) if kind in RESULTS else None
    except msgspec.ValidationError:
        return None


def _all_devices(progress: ProbeProgress) -> dict[tuple[str, str], DeviceProgress]:
    """By node and uuid: those under way with the report's results, and those that only the report knows."""
    devices = {(device.node, device.uuid or f"{device.gpu}/{device.rank}"): device for device in progress.devices}
    for result in progress.report.results if progress.report is not None else ():
        if isinstance(result, DeviceResult):
            key = (result.node, result.uuid)
            devices[key] = DeviceProgress(
                result.node, result.gpu, result.uuid, result.name, stage="done", fraction=1.0, result=result
            )
    return devices


def _key(device: DeviceProgress) -> str:
    return f"{device.node}/{device.gpu}/{device.uuid}/{device.rank}"


def _name(device: DeviceProgress, short: Mapping[str, str], several: bool) -> str:
    """ "node01/3"; of one node "3". Processors are their node; slices of one GPU have its number."""
    own = str(device.gpu) if device.gpu is not None else "cpu" if device.uuid == "cpu" else ""
    own = f"r{device.rank}" if not own and device.rank is not None else own
    if not several:
        return own or device.node
    return f"{short[device.node]}/{own}" if own and own != "cpu" else short[device.node]


def devices_table(kind: str, lines: Mapping[str, Line], first_title: str, brief: bool = False) -> Shown:
    """``kind``: of a probe; one whose results are not those of devices shows how far they are."""
    kind = kind if kind in TABLES else "stages"
    shown = BRIEF.get(kind, TABLES[kind]) if brief else TABLES[kind]
    order = sorted(lines, key=lambda key: slowest_first(lines[key]))
    width = max([len(first_title), *(len(line.name) for line in lines.values())])

    columns = columns_of(shown, width, first_title)
    by_key = {column.key: column for column in columns}
    position = {key: float(number) for number, key in enumerate(lines)}

    def value(column: str, index: int) -> Value:
        line = lines[order[index]]
        if column == "gpu":
            return position[order[index]]
        return by_key[column].sorts_by(line) if line.result is not None else None

    return Shown(
        kind,
        columns,
        order,
        lambda index: device_row(columns, lines[order[index]], order[index]),
        value,
        lines,
        {key: (line.progress.node, line.progress.gpu) for key, line in lines.items()},
    )


def sizes_table(results: Sequence[CollectiveResult]) -> Shown:
    """In the order of the report."""
    keys = [size_key(result) for result in results]
    first_nodes = {
        key: (result.nodes[0] if result.nodes else "", None) for key, result in zip(keys, results, strict=True)
    }
    return _shown("sizes", SIZE_COLUMNS, keys, results, first_nodes)


def ranks_table(result: CollectiveResult) -> Shown:
    """Who comes last first."""
    lines = [ArrivalLine(arrival, result) for arrival in by_lag(result)]
    keys = [str(line.arrival.rank) for line in lines]
    about = {str(line.arrival.rank): (line.arrival.node, line.arrival.gpu) for line in lines}
    return _shown("ranks", RANK_COLUMNS, keys, lines, about)


def pairs_table(pairs: Sequence[PairResult]) -> Shown:
    """What failed, then the slowest."""
    usual, most = usual_busbw(pairs)
    lines = [PairLine(pair, usual, most) for pair in worst_first(pairs)]
    keys = [pair_key(line.pair) for line in lines]
    return _shown("pairs", PAIR_COLUMNS, keys, lines, {pair_key(line.pair): (line.node(0), None) for line in lines})


def _shown(
    name: str,
    columns: Sequence[Column],
    keys: Sequence[str],
    items: Sequence[Any],
    about: Mapping[str, tuple[str, int | None]],
) -> Shown:
    def make(index: int) -> Row:
        return row_of(columns, items[index], keys[index])

    return Shown(name, columns, keys, make, values_of(columns, items), about=about)
