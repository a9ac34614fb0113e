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
from mltop.tui.render.cells import Column, Row, Value, row_of
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
from mltop.tui.render.rows import values_of
from mltop.tui.screens.rows import SubjectRows
from mltop.tui.screens.tables import gpu_of

Device = tuple[str, "int | None"]  # node and GPU, None: none of its GPUs
RESULTS: Mapping[str, type[DeviceResult]] = {"matmul": MatmulResult, "memory": MemoryResult, "copies": CopiesResult}
NAMES = (*TABLES, "sizes", "ranks", "pairs")  # of the tables; the screen has a widget for each


@dataclass(frozen=True)
class ProbeTable:
    """A table as it is shown. ``lines``: of devices, by key; ``about``: (node, GPU) of each row, by key."""

    name: str
    columns: Sequence[Column]
    keys: Sequence[str]
    make: Callable[[int], Row]
    value: Callable[[str, int], Value]
    lines: Mapping[str, Line] = field(default_factory=dict)
    about: Mapping[str, Device] = field(default_factory=dict)

    def rows(self, view: FleetView) -> SubjectRows:
        """The rows; a filter's fields are those of the newest view."""
        nodes = {node.node: node for node in view.nodes}

        def subject(index: int) -> Subject:
            name, gpu = self.about[self.keys[index]]
            node = nodes.get(name) or NodeView(NodeState(name, "lost"))
            return Subject(node, gpu_of(node, gpu))

        return SubjectRows(self.keys, self.make, subject, self.value)


NO_TABLE = ProbeTable("", (), (), lambda _: Row("", ()), lambda *_: None)


class ResultTables:
    """Makes tables from progress; what a node sent is decoded once, however often progress comes."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], tuple[object, DeviceResult | None]] = {}  # as sent, and decoded

    def table(
        self,
        progress: ProbeProgress,
        past: Mapping[str, Sequence[PastResult]],
        collective: str = "",
        brief: bool = False,
    ) -> ProbeTable:
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

    def _devices(self, progress: ProbeProgress, past: Mapping[str, Sequence[PastResult]], brief: bool) -> ProbeTable:
        kind, report = progress.wanted.kind, progress.report
        devices = _all_devices(progress)
        results = {key: self._result(kind, key, device) for key, device in devices.items()}
        began_at = report.started_at if report is not None else None
        compared = Compared(kind, [result for result in results.values() if result is not None], past, began_at)
        short = short_names(tuple(dict.fromkeys(device.node for device in devices.values())))
        several = len(short) > 1
        refused = {(failure.node, failure.gpu) for failure in progress.failures if failure.refused}
        lines = {}
        for key, device in devices.items():
            name, is_refused = _name(device, short, several), (device.node, device.gpu) in refused
            lines[_key(device)] = Line(device, name, results[key], compared.of, compared.values, is_refused)
        return devices_table(kind, lines, "NODE/GPU" if several else "GPU", brief)

    def _result(self, kind: str, key: tuple[str, str], device: DeviceProgress) -> DeviceResult | None:
        raw = device.result
        if raw is None or isinstance(raw, DeviceResult):
            return raw
        if key not in self._results or self._results[key][0] is not raw:
            self._results[key] = raw, _decoded(kind, raw)
        return self._results[key][1]


def _decoded(kind: str, raw: Any) -> DeviceResult | None:
    """A result as a node sent it; None of what is none."""
    try:
        return msgspec.convert(raw, RESULTS[kind]) if kind in RESULTS else None
    except msgspec.ValidationError:
        return None


def _all_devices(progress: ProbeProgress) -> dict[tuple[str, str], DeviceProgress]:
    """By node and uuid: devices under way with the report's results, and those that only the report knows."""
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


def devices_table(kind: str, lines: Mapping[str, Line], first_title: str, brief: bool = False) -> ProbeTable:
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

    return ProbeTable(
        kind,
        columns,
        order,
        lambda index: device_row(columns, lines[order[index]], order[index]),
        value,
        lines,
        {key: (line.progress.node, line.progress.gpu) for key, line in lines.items()},
    )


def sizes_table(results: Sequence[CollectiveResult]) -> ProbeTable:
    """The sizes in the order of the report."""
    first_nodes = [(result.nodes[0] if result.nodes else "", None) for result in results]
    return _table("sizes", SIZE_COLUMNS, results, [size_key(result) for result in results], first_nodes)


def ranks_table(result: CollectiveResult) -> ProbeTable:
    """The ranks of a collective, who comes last first."""
    lines = [ArrivalLine(arrival, result) for arrival in by_lag(result)]
    keys = [str(line.arrival.rank) for line in lines]
    return _table("ranks", RANK_COLUMNS, lines, keys, [(line.arrival.node, line.arrival.gpu) for line in lines])


def pairs_table(pairs: Sequence[PairResult]) -> ProbeTable:
    """What failed, then the slowest."""
    usual, most = usual_busbw(pairs)
    lines = [PairLine(pair, usual, most) for pair in worst_first(pairs)]
    return _table(
        "pairs", PAIR_COLUMNS, lines, [pair_key(line.pair) for line in lines], [(line.node(0), None) for line in lines]
    )


def _table(
    name: str, columns: Sequence[Column], items: Sequence[Any], keys: Sequence[str], about: Sequence[Device]
) -> ProbeTable:
    """A row of each of ``items``, with its key and what it is about."""
    return ProbeTable(
        name,
        columns,
        keys,
        lambda index: row_of(columns, items[index], keys[index]),
        values_of(columns, items),
        about=dict(zip(keys, about, strict=True)),
    )
