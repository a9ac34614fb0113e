"""Processor time, network and disk traffic: rates between two reads.

Source: /proc/stat, /proc/net/dev and /proc/diskstats, each open all the time. psutil gives the same numbers for more
than the whole sample may cost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from mltop.probes.collect.host.files import MALFORMED, KeptFile
from mltop.probes.collect.host.part import Reading, unreadable
from mltop.probes.model import Gap, RankSample

_FIRST = Gap("host.rates", "first sample: rates need two", "", "starting")
_MIN_INTERVAL_S = 0.05
_DEVICES_KEPT_S = 30.0
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own are

_Totals = dict[bytes, tuple[int, int]]  # by device: bytes in, bytes out
_Cpu = Optional[tuple[int, int]]  # ticks busy and in all
_Value = TypeVar("_Value")


class CpuTimes(NamedTuple):
    """The first line of /proc/stat, in ticks (proc_stat(5)). Guest time is part of user time already."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int


class Rates:
    """``cpu_fraction`` and bytes per second. None at the first read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._stat = KeptFile(root, "/proc/stat")
        self._net = KeptFile(root, "/proc/net/dev", in_pieces=True)
        self._disks = KeptFile(root, "/proc/diskstats", in_pieces=True)
        self._last: tuple[float, _Cpu, _Totals, _Totals] | None = None
        self._physical: dict[str, tuple[float, frozenset[bytes]]] = {}

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        gaps = reading.gaps
        cpu: _Cpu = _guarded("host.cpu", self._cpu_ticks, gaps)
        network = _devices("host.network", lambda: self._network_bytes(now), gaps)
        disks = _devices("host.disk", lambda: self._disk_bytes(now), gaps)
        last, self._last = self._last, (now, cpu, network, disks)
        if last is None or now - last[0] < _MIN_INTERVAL_S:
            gaps.append(_FIRST)
            return reading
        elapsed_s = now - last[0]
        if cpu and last[1] and cpu[1] > last[1][1]:
            share = (cpu[0] - last[1][0]) / (cpu[1] - last[1][1])
            reading.values["cpu_fraction"] = min(1.0, max(0.0, share))
        incoming, outgoing = _rates(network, last[2], elapsed_s)
        reading.values.update(network_rx_bytes_per_s=incoming, network_tx_bytes_per_s=outgoing)
        incoming, outgoing = _rates(disks, last[3], elapsed_s)
        reading.values.update(disk_read_bytes_per_s=incoming, disk_write_bytes_per_s=outgoing)
        return reading

    def _cpu_ticks(self) -> tuple[int, int]:
        data = self._stat.read()
        label, *fields = data[: data.find(b"\n")].split(None, 9)[:9]
        if label != b"cpu":
            raise ValueError(f"no line of all processors in {self._stat.path}")
        times = CpuTimes(*map(int, fields))
        total = sum(times)
        return total - times.idle - times.iowait, total

    def _network_bytes(self, now: float) -> _Totals:
        lines = {}
        for line in self._net.read().splitlines()[2:]:
            name, _, rest = line.rpartition(b":")
            lines[name.strip()] = rest
        # Bridges, bonds and veth pairs count the same bytes again. A container has no others: all but lo.
        chosen = self._hardware("class/net", now) & lines.keys() or lines.keys() - {b"lo"}
        totals: _Totals = {}
        for name in chosen:
            fields = lines[name].split(None, 9)
            totals[name] = (int(fields[0]), int(fields[8]))
        return totals

    def _disk_bytes(self, now: float) -> _Totals:
        # Partitions, device-mapper and md devices count the same bytes again.
        data = self._disks.read()
        totals: _Totals = {}
        for name in self._hardware("block", now):
            at = data.find(b" " + name + b" ")
            if at >= 0:
                fields = data[at + len(name) + 2 : at + len(name) + 200].split(None, 7)
                totals[name] = (int(fields[2]) * _SECTOR_BYTES, int(fields[6]) * _SECTOR_BYTES)
        return totals

    def _hardware(self, kind: str, now: float) -> frozenset[bytes]:
        """The devices below /sys/class/net or /sys/block that are hardware of their own."""
        known = self._physical.get(kind)
        if known is None or not 0 <= now - known[0] < _DEVICES_KEPT_S:
            folder = f"{self._root}/sys/{kind}"
            try:
                names = os.listdir(folder)
            except OSError:
                names = []
            found = frozenset(os.fsencode(name) for name in names if os.path.exists(f"{folder}/{name}/device"))
            known = self._physical[kind] = (now, found)
        return known[1]


def _guarded(what: str, read: Callable[[], _Value], gaps: list[Gap]) -> _Value | None:
    try:
        return read()
    except (OSError, *MALFORMED) as error:
        gaps.append(unreadable(what, error))
        return None


def _devices(what: str, read: Callable[[], _Totals], gaps: list[Gap]) -> _Totals:
    totals: Any = _guarded(what, read, gaps)
    if totals == {}:
        gaps.append(Gap(what, "no devices are visible here"))
    return totals or {}


def _rates(current: _Totals, last: _Totals, elapsed_s: float) -> tuple[float | None, float | None]:
    """Bytes per second of the devices present both times; a counter that started anew counts nothing."""
    both = current.keys() & last.keys()
    if not both:
        return None, None
    incoming = sum(max(0, current[name][0] - last[name][0]) for name in both)
    outgoing = sum(max(0, current[name][1] - last[name][1]) for name in both)
    return incoming / elapsed_s, outgoing / elapsed_s
