"""How busy the machine is: processor time, network and disk traffic, and how long tasks wait for them.

Rates are between two reads. Source: psutil; /sys/class/net and /sys/block for which devices are hardware;
/proc/pressure (PSI, Documentation/accounting/psi).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from mltop.probes.collect.host.part import Reading, kept_file
from mltop.probes.collect.host.psutil_loading import UNREADABLE, Psutil
from mltop.probes.collect.sysfile import MALFORMED, finite, names_in
from mltop.probes.collect.timing import FIRST_LOOK, LastLook
from mltop.probes.model import Pressure, RankSample

_DEVICES_KEPT_S = 30.0

# "full" of cpu says nothing for a whole machine (psi.rst).
_PRESSURES = {"cpu": ("some",), "memory": ("some", "full"), "io": ("some", "full")}
_NO_PRESSURE = "this kernel keeps no pressure information (CONFIG_PSI; on some distributions only with psi=1)"

_Totals = dict[str, tuple[int, int]]  # by device: bytes in, bytes out
_Value = TypeVar("_Value")


class Cpu:
    """``cpu_fraction`` since the read before, None at the first."""

    def __init__(self, psutil: Psutil) -> None:
        self._psutil = psutil
        self._last_look: LastLook[tuple[float, float]] = LastLook()  # seconds busy and in all

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        module = self._psutil.module()
        if module is None:
            return Reading()
        reading = Reading()
        seconds = _guarded("cpu", lambda: _cpu_seconds(module), reading)
        if seconds is None:
            self._last_look.forget()
            return reading
        look_before = self._last_look.since(now, seconds)
        if look_before is None:
            return reading.lack("cpu", why=FIRST_LOOK, kind="starting")
        busy_s, passed_s = (after - before for after, before in zip(seconds, look_before[1]))
        if passed_s <= 0:
            why = "the kernel has not counted on since the sample before"
            return reading.lack("cpu", why=why, kind="starting")
        reading.values["cpu_fraction"] = min(1.0, max(0.0, busy_s / passed_s))
        return reading


class Traffic:
    """Bytes per second of network and disks since the read before, None at the first."""

    def __init__(self, root: str, psutil: Psutil) -> None:
        self._root = root
        self._psutil = psutil
        self._last_look: LastLook[tuple[_Totals, _Totals]] = LastLook()
        self._physical: dict[str, tuple[float, frozenset[str]]] = {}

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        module = self._psutil.module()
        if module is None:
            return Reading()
        reading = Reading()
        network = _devices("network", lambda: self._network_bytes(module, now), reading)
        disks = _devices("disk", lambda: self._disk_bytes(module, now), reading)
        before = self._last_look.since(now, (network, disks))
        if before is None:
            return reading.lack("network", "disk", why=FIRST_LOOK, kind="starting")
        elapsed_s, (network_before, disks_before) = before
        incoming, outgoing = _rates(network, network_before, elapsed_s)
        reading.values.update(network_rx_bytes_per_s=incoming, network_tx_bytes_per_s=outgoing)
        incoming, outgoing = _rates(disks, disks_before, elapsed_s)
        reading.values.update(disk_read_bytes_per_s=incoming, disk_write_bytes_per_s=outgoing)
        return reading

    def _network_bytes(self, psutil: Any, now: float) -> _Totals:
        counters = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        # Bridges, bonds and veth pairs count the same bytes again. A container has no others: all but lo.
        chosen = self._hardware("class/net", now) & counters.keys() or counters.keys() - {"lo"}
        return {name: (counters[name].bytes_recv, counters[name].bytes_sent) for name in chosen}

    def _disk_bytes(self, psutil: Any, now: float) -> _Totals:
        if self._root:  # without this file psutil would take our own machine's /sys/block
            os.stat(f"{self._root}/proc/diskstats")
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        # Partitions, device-mapper and md devices count the same bytes again.
        chosen = self._hardware("block", now) & counters.keys()
        return {name: (counters[name].read_bytes, counters[name].write_bytes) for name in chosen}

    def _hardware(self, kind: str, now: float) -> frozenset[str]:
        """The devices below /sys/class/net or /sys/block that are hardware of their own."""
        listed = self._physical.get(kind)
        if listed is None or not 0 <= now - listed[0] < _DEVICES_KEPT_S:
            folder = f"{self._root}/sys/{kind}"
            devices = frozenset(name for name in names_in(folder) if os.path.exists(f"{folder}/{name}/device"))
            listed = self._physical[kind] = (now, devices)
        return listed[1]


def _cpu_seconds(psutil: Any) -> tuple[float, float]:
    """Seconds busy and seconds in all, of all cores. Guest time is part of user time already."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _guarded(field: str, read: Callable[[], _Value], reading: Reading) -> _Value | None:
    try:
        return read()
    except UNREADABLE as error:
        reading.lack_unreadable(field, error=error)
        return None


def _devices(field: str, read: Callable[[], _Totals], reading: Reading) -> _Totals:
    totals = _guarded(field, read, reading)
    if totals == {}:
        reading.lack(field, why="no devices are visible here")
    return totals or {}


def _rates(current: _Totals, last: _Totals, elapsed_s: float) -> tuple[float | None, float | None]:
    """Bytes per second of the devices present both times; a counter that started anew counts nothing."""
    both = current.keys() & last.keys()
    if not both:
        return None, None
    incoming = sum(max(0, current[name][0] - last[name][0]) for name in both)
    outgoing = sum(max(0, current[name][1] - last[name][1]) for name in both)
    return incoming / elapsed_s, outgoing / elapsed_s


class PressureStall:
    """``pressure``. A kernel without PSI, or one that was started without psi=1, has none."""

    def __init__(self, root: str) -> None:
        self._files = {name: kept_file(root, f"/proc/pressure/{name}") for name in _PRESSURES}

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        pressure, reading = Pressure(), Reading()
        for name, file in self._files.items():
            try:
                content = file.read()
                for kind in _PRESSURES[name]:
                    label = f"{kind} avg10=".encode()
                    at = content.index(label) + len(label)
                    share = finite(content[at : content.index(b" ", at)]) / 100
                    setattr(pressure, f"{name}_{kind}", min(1.0, max(0.0, share)))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENOTSUP):
                    return Reading().lack("pressure", why=_NO_PRESSURE, kind="unsupported")
                reading.lack_unreadable(f"pressure.{name}", error=error)
            except MALFORMED:
                reading.lack(f"pressure.{name}", why=f"{file.path} is not as expected")
        values = {"pressure": pressure}
        if len(reading.gaps) > 1:
            return Reading(values).lack("pressure", why=reading.gaps[0].why)
        return Reading(values, reading.gaps)
