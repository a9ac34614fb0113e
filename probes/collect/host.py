"""The machine's basics: processors, load, memory, network and disk traffic. Source: psutil and /proc."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import os
import sys
import zipimport
from typing import Any

from mltop.probes import paths
from mltop.probes.model import Gap, HostSample
from mltop.probes.spawn import memory_file

_FIRST = Gap("host.rates", "first sample: rates need two", "")
_MIN_INTERVAL_S = 0.05
_DEVICES_KEPT_S = 30.0

# What psutil and our own parsing raise on files that are not as expected.
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, RuntimeError)

_Totals = dict[str, tuple[int, int]]  # by device: bytes in, bytes out


class HostSource:
    """Reads the machine once a second. Keep one object: rates are between two reads."""

    def __init__(self) -> None:
        self._psutil, self._psutil_gap = _load_psutil()
        self._facts: tuple[str, str, int | None] | None = None
        self._last: tuple[float, tuple[float, float] | None, _Totals, _Totals] | None = None
        self._physical: dict[str, tuple[float, frozenset[str]]] = {}

    def read(self, now: float) -> tuple[HostSample, list[Gap]]:
        """One sample and what could not be read. ``now`` is in seconds of any one clock.

        Rates and ``cpu_fraction`` are since the previous read, None at the first.
        """
        gaps: list[Gap] = []
        sample = HostSample()
        self._read_facts(sample, gaps)
        sample.uptime_s = _first_number("uptime", gaps)
        sample.load_1m, sample.load_5m, sample.load_15m = _load(gaps)
        _read_shared_memory(sample, gaps)
        if self._psutil_gap is not None:
            return sample, [*gaps, self._psutil_gap]
        self._read_memory(sample, gaps)
        self._read_rates(sample, now, gaps)
        return sample, gaps

    def _read_facts(self, sample: HostSample, gaps: list[Gap]) -> None:
        if self._facts is None:
            stat = (_text("stat") or "").splitlines()
            count = sum(line.startswith("cpu") and line[3:4].isdigit() for line in stat)
            self._facts = (
                _text("sys/kernel/hostname") or "",
                _text("sys/kernel/osrelease") or "",
                count or None,
            )
        sample.hostname, sample.kernel, sample.cpu_count = self._facts
        for what, value in (
            ("hostname", self._facts[0]),
            ("kernel", self._facts[1]),
            ("cpu_count", self._facts[2]),
        ):
            if not value:
                gaps.append(Gap(f"host.{what}", f"cannot be read from {paths.proc()}"))

    def _read_memory(self, sample: HostSample, gaps: list[Gap]) -> None:
        try:
            memory = self._psutil.virtual_memory()
            sample.memory_total_bytes, sample.memory_available_bytes = memory.total, memory.available
        except _UNREADABLE as error:
            gaps.append(_unreadable("host.memory", error))
        # psutil.swap_memory() also reads /proc/vmstat and costs four times as much.
        try:
            swap = _swap_bytes()
        except _UNREADABLE as error:
            gaps.append(_unreadable("host.swap", error))
        else:
            sample.swap_total_bytes, sample.swap_used_bytes = swap

    def _read_rates(self, sample: HostSample, now: float, gaps: list[Gap]) -> None:
        cpu = self._counted("host.cpu", self._cpu_seconds, gaps)
        network = self._counted("host.network", lambda: self._network_bytes(now), gaps) or {}
        disks = self._counted("host.disk", lambda: self._disk_bytes(now), gaps) or {}
        last, self._last = self._last, (now, cpu, network, disks)
        if last is None or now - last[0] < _MIN_INTERVAL_S:
            gaps.append(_FIRST)
            return
        elapsed_s = now - last[0]
        if cpu and last[1] and cpu[1] > last[1][1]:
            sample.cpu_fraction = min(1.0, max(0.0, (cpu[0] - last[1][0]) / (cpu[1] - last[1][1])))
        received_sent = _rates(network, last[2], elapsed_s)
        sample.network_rx_bytes_per_s, sample.network_tx_bytes_per_s = received_sent
        sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s = _rates(disks, last[3], elapsed_s)

    def _counted(self, what: str, read: Any, gaps: list[Gap]) -> Any:
        try:
            value = read()
        except _UNREADABLE as error:
            gaps.append(_unreadable(what, error))
            return None
        if value == {}:
            gaps.append(Gap(what, "no devices are visible here"))
        return value

    def _cpu_seconds(self) -> tuple[float, float]:
        """Seconds busy and seconds in all, of all cores. Guest time is part of user time already."""
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return total - times.idle - getattr(times, "iowait", 0.0), total

    def _network_bytes(self, now: float) -> _Totals:
        counters = self._psutil.net_io_counters(pernic=True, nowrap=False) or {}
        # Bridges, bonds and veth pairs count the same bytes again. A container has no others: all but lo.
        chosen = self._hardware("class/net", now) & counters.keys() or counters.keys() - {"lo"}
        return {name: (counters[name].bytes_recv, counters[name].bytes_sent) for name in chosen}

    def _disk_bytes(self, now: float) -> _Totals:
        counters = self._psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        # Partitions, device-mapper and md devices count the same bytes again.
        chosen = self._hardware("block", now) & counters.keys()
        return {name: (counters[name].read_bytes, counters[name].write_bytes) for name in chosen}

    def _hardware(self, kind: str, now: float) -> frozenset[str]:
        """The devices below /sys/class/net or /sys/block that are hardware of their own."""
        known = self._physical.get(kind)
        if known is None or not 0 <= now - known[0] < _DEVICES_KEPT_S:
            try:
                names = os.listdir(paths.sys(kind))
            except OSError:
                names = []
            found = frozenset(name for name in names if os.path.exists(paths.sys(kind, name, "device")))
            known = self._physical[kind] = (now, found)
        return known[1]


def _load_psutil() -> tuple[Any, Gap | None]:
    try:
        import psutil
    except ImportError as error:
        psutil = _psutil_from_memory()
        if psutil is None:
            return None, Gap("host", f"psutil cannot be imported: {error}", "python3 -m pip install psutil")
    psutil.PROCFS_PATH = paths.proc()
    return psutil, None


def _psutil_from_memory() -> Any:
    """psutil with its compiled part loaded through memory: from a zip, or from where nothing may be mapped as a
    program (noexec). None when there is no psutil, or none for this Python.
    """
    spec = importlib.util.find_spec("psutil")
    if spec is None or not isinstance(spec.loader, (zipimport.zipimporter, importlib.machinery.SourceFileLoader)):
        return None
    folder = os.path.dirname(spec.origin or "")
    loaded = []
    for module in ("_psutil_posix", "_psutil_linux"):  # older versions have both
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            try:
                content = spec.loader.get_data(os.path.join(folder, module + suffix))
                loaded.append(_extension(f"psutil.{module}", content))
            except (OSError, ImportError):
                continue
            break
    try:
        import psutil
    except ImportError:
        return None
    finally:
        if "psutil" not in sys.modules:
            for name in loaded:
                sys.modules.pop(name, None)
    return psutil


def _extension(name: str, content: bytes) -> str:
    """Load a compiled module into ``sys.modules``."""
    loader = importlib.machinery.ExtensionFileLoader(name, memory_file(name, content))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return name


def _rates(current: _Totals, last: _Totals, elapsed_s: float) -> tuple[float | None, float | None]:
    """Bytes per second of the devices present both times; a counter that started anew counts nothing."""
    both = current.keys() & last.keys()
    if not both:
        return None, None
    incoming = sum(max(0, current[name][0] - last[name][0]) for name in both)
    outgoing = sum(max(0, current[name][1] - last[name][1]) for name in both)
    return incoming / elapsed_s, outgoing / elapsed_s


def _read_shared_memory(sample: HostSample, gaps: list[Gap]) -> None:
    """/dev/shm, where data loader workers hand over batches; when it is full they die of SIGBUS."""
    try:
        shm = os.statvfs(paths.SYSROOT + "/dev/shm")
    except OSError as error:
        gaps.append(_unreadable("host.shm", error))
        return
    sample.shm_total_bytes = shm.f_blocks * shm.f_frsize
    sample.shm_used_bytes = (shm.f_blocks - shm.f_bfree) * shm.f_frsize


def _swap_bytes() -> tuple[int, int]:
    """Total and used swap from /proc/meminfo."""
    found: dict[str, int] = {}
    with open(paths.proc("meminfo"), "rb") as lines:
        for line in lines:
            if line.startswith(b"Swap"):
                name, _, rest = line.partition(b":")
                found[name.decode()] = int(rest.split()[0]) * 1024
    if "SwapTotal" not in found or "SwapFree" not in found:
        raise ValueError("no SwapTotal and SwapFree in /proc/meminfo")
    return found["SwapTotal"], found["SwapTotal"] - found["SwapFree"]


def _load(gaps: list[Gap]) -> tuple[float | None, float | None, float | None]:
    try:
        words = (_text("loadavg") or "").split()
        return _finite(words[0]), _finite(words[1]), _finite(words[2])
    except (ValueError, IndexError):
        gaps.append(Gap("host.load", f"{paths.proc('loadavg')} cannot be read"))
        return None, None, None


def _finite(text: str) -> float:
    """ValueError for "nan" and "inf", too: JSON has no such numbers."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _first_number(name: str, gaps: list[Gap]) -> float | None:
    try:
        return _finite((_text(name) or "").split()[0])
    except (ValueError, IndexError):
        gaps.append(Gap(f"host.{name}", f"{paths.proc(name)} cannot be read"))
        return None


def _text(*parts: str) -> str | None:
    """A file below /proc, None when it cannot be read."""
    try:
        with open(paths.proc(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _unreadable(what: str, error: Exception) -> Gap:
    said = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return Gap(what, f"cannot be read: {said}")
