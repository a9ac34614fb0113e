"""How busy the machine is: processor time, network and disk traffic, and how long tasks wait for them.

Rates are between two reads. Source: psutil; /sys/class/net and /sys/block for which devices are hardware;
/proc/pressure (PSI, Documentation/accounting/psi).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from mltop.probes.collect.host.part import Reading, kept_file
from mltop.probes.collect.host.psutil_loading import UNREADABLE, Psutil
from mltop.probes.collect.sysfile import MALFORMED, finite, names_in
from mltop.probes.collect.timing import FIRST_LOOK, LastLook
from mltop.probes.model import Pressure, RankSample

_DEVICES_KEPT_S = 30.0

# "full" of cpu says nothing for a whole machine (psi.rst).
_PRESSURES = {"cpu": ("some",), "memory": ("some", "full"), "io": ("some", "full")}
_NO_PRESSURE = "this kernel keeps no pressure information (CONFIG_PSI; on some distributions only with psi=1)"


_TRAFFIC = {  # by gap: folder of its devices below /sys, and by psutil's counters the fields of their rates
    "network": (
        "class/net",
        {"bytes_recv": "network_rx_bytes_per_s", "bytes_sent": "network_tx_bytes_per_s"},
    ),
    "disk": (
        "block",
        {"read_bytes": "disk_read_bytes_per_s", "write_bytes": "disk_write_bytes_per_s"},
    ),
}


class Cpu:
    """``cpu_fraction`` since the read before, None at the first."""

    def __init__(self, psutil: Psutil) -> None:
        self._psutil = psutil
        self._last_look: LastLook[tuple[float, float]] = LastLook()  # seconds busy and in all

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        module, reading = self._psutil.module(), Reading()
        if module is None:
            return reading
        try:
            times = module.cpu_times()
            # Guest time is part of user time already.
            total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            busy_s = total_s - times.idle - getattr(times, "iowait", 0.0)
        except UNREADABLE as error:
            self._last_look.forget()
            return reading.lack_unreadable("cpu", error=error)
        look_before = self._last_look.since(now, (busy_s, total_s))
        if look_before is None:
            return reading.lack("cpu", why=FIRST_LOOK, kind="starting")
        busy_before_s, total_before_s = look_before[1]
        if total_s <= total_before_s:
            why = "the kernel has not counted on since the sample before"
            return reading.lack("cpu", why=why, kind="starting")
        share = (busy_s - busy_before_s) / (total_s - total_before_s)
        reading.values["cpu_fraction"] = min(1.0, max(0.0, share))
        return reading


class Traffic:
    """Bytes per second of network and disks since the read before, None at the first."""

    def __init__(self, root: str, psutil: Psutil) -> None:
        self._root = root
        self._psutil = psutil
        self._last_look: LastLook[dict[str, dict[str, Any]]] = LastLook()  # psutil's counters by device
        self._physical: dict[str, tuple[float, frozenset[str]]] = {}

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        module, reading = self._psutil.module(), Reading()
        if module is None:
            return reading
        devices: dict[str, dict[str, Any]] = {kind: {} for kind in _TRAFFIC}
        for kind in _TRAFFIC:
            try:
                devices[kind] = self._devices(kind, module, now)
            except UNREADABLE as error:
                reading.lack_unreadable(kind, error=error)
            else:
                if not devices[kind]:
                    reading.lack(kind, why="no devices are visible here")
        before = self._last_look.since(now, devices)
        if before is None:
            return reading.lack(*_TRAFFIC, why=FIRST_LOOK, kind="starting")
        for kind, (_, fields) in _TRAFFIC.items():
            both = devices[kind].keys() & before[1][kind].keys()
            for counter, field in fields.items():  # a counter that started anew counts nothing
                values = ((getattr(of[kind][name], counter) for of in (devices, before[1])) for name in both)
                gained = sum(max(0, value - value_before) for value, value_before in values)
                reading.values[field] = gained / before[0] if both else None
        return reading

    def _devices(self, kind: str, psutil: Any, now: float) -> dict[str, Any]:
        """Bridges, bonds, veth pairs, partitions, device-mapper and md devices count the same bytes again."""
        counters: dict[str, Any]
        if kind == "network":
            counters = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        else:
            if self._root:  # without this file psutil would take our own machine's /sys/block
                os.stat(f"{self._root}/proc/diskstats")
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        chosen = {*self._hardware(_TRAFFIC[kind][0], now)} & counters.keys()
        if kind == "network" and not chosen:  # a container has no others: all but lo
            chosen = counters.keys() - {"lo"}
        return {name: counters[name] for name in chosen}

    def _hardware(self, kind: str, now: float) -> frozenset[str]:
        """The devices below /sys/class/net or /sys/block that are hardware of their own."""
        listed = self._physical.get(kind)
        if listed is None or not 0 <= now - listed[0] < _DEVICES_KEPT_S:
            folder = f"{self._root}/sys/{kind}"
            devices = frozenset(name for name in names_in(folder) if os.path.exists(f"{folder}/{name}/device"))
            listed = self._physical[kind] = (now, devices)
        return listed[1]


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
