"""Values of hardware that cannot be, in samples from elsewhere: unknown, with what was said in the reason.

An agent sifts what its own driver answers (collect/nvml/sieve.py). What comes from a node or a file is sifted here by
the same table: the node may be hostile, the recording of an older version, or edited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mltop.probes.model import Gap, GpuSample, HostSample, Sample
from mltop.probes.plausible import CLOCK_OVER_MAX, GPU, LINKS, PCI, Range

# By the record that they are fields of: ("pcie", "gen"), and (nvlink.links, *, version) as ("nvlink.links", "version").
_Fields = tuple[tuple[str, Range], ...]


def _fields_of(table: dict[str, Range], prefix: str) -> _Fields:
    """Of one record: the rows "prefix.NAME", without what is deeper."""
    found = ((path[len(prefix) :], limits) for path, limits in table.items() if path.startswith(prefix))
    return tuple((name, limits) for name, limits in found if "." not in name and name != "*")


_GPU = _fields_of(GPU, "")
_PARTS = tuple((part, _fields_of(GPU, f"{part}.")) for part in ("ecc", "remap", "pcie", "nvlink", "fabric"))
_BANKS = _fields_of(GPU, "remap.banks.")
_LINK = _fields_of(GPU, "nvlink.links.*.")
_PROCESS = _fields_of(GPU, "processes.*.")
_INSTANCE = _fields_of(GPU, "mig_instances.*.")
_TABLES = ("throttle_ns", "throttle_share")
_CLOCKS = (("sm_clock_mhz", "sm_clock_max_mhz"), ("memory_clock_mhz", "memory_clock_max_mhz"))
_PCI = _fields_of(PCI, "")
_PORT = _fields_of(LINKS, "")
# What collectors, and so the needs of rules, call what these fields are parts of.
_CALLED = {
    "link_speed_gt_per_s": "link",
    "link_speed_max_gt_per_s": "link",
    "link_width": "link",
    "link_width_max": "link",
    "rate_bits_per_s": "rate",
}


def sift(sample: Sample) -> list[Gap]:
    """Take out, in place, what cannot be. Returns a gap for each."""
    gaps: list[Gap] = []
    for gpu in sample.gpus:
        _sift_gpu(gpu, gaps)
    for device in sample.pci:
        _sift_record(device, _PCI, f"pci.{device.bus_id}", gaps)
        device.aer = _sifted_counters(device.aer, PCI["aer.*"], f"pci.{device.bus_id}.aer", gaps)
    _sift_host(sample.host, gaps)
    for link in sample.links:
        where = f"links.{link.device}"
        _sift_record(link, _PORT, where, gaps)
        link.counters = _sifted_counters(link.counters, LINKS["counters.*"], f"{where}.counters", gaps)
    return gaps


def _sift_host(host: HostSample, gaps: list[Gap]) -> None:
    """Of a machine everything is counted from 0 on."""
    _sift_counts(host, "host", gaps)
    _sift_counts(host.pressure, "host.pressure", gaps)
    for group in host.cgroups:
        _sift_counts(group, f"host.cgroups.{group.path}", gaps)
    for filesystem in host.filesystems:
        _sift_counts(filesystem, f"host.filesystems.{filesystem.mount}", gaps)


def _sift_counts(record: Any, where: str, gaps: list[Gap]) -> None:
    for name, value in vars(record).items():
        if type(value) in (int, float) and value < 0:
            gaps.append(_gap(f"{where}.{name}", str(value), "it is counted from 0 on"))
            setattr(record, name, None)


def _sift_gpu(gpu: GpuSample, gaps: list[Gap]) -> None:
    where = f"gpu.{gpu.index}"
    _sift_record(gpu, _GPU, where, gaps)
    for part, known in _PARTS:
        _sift_record(getattr(gpu, part), known, f"{where}.{part}", gaps)
    _sift_record(gpu.remap.banks, _BANKS, f"{where}.remap.banks", gaps)
    for name in _TABLES:
        setattr(gpu, name, _sifted_table(getattr(gpu, name), GPU[f"{name}.*"], f"{where}.{name}", gaps))
    gpu.pcie.errors = _sifted_table(gpu.pcie.errors, GPU["pcie.errors.*"], f"{where}.pcie.errors", gaps)
    for link in gpu.nvlink.links:
        of = f"of link {link.index} "
        _sift_record(link, _LINK, f"{where}.nvlink", gaps, of)
        counters = GPU["nvlink.links.*.errors.*"]
        link.errors = _sifted_counters(link.errors, counters, f"{where}.nvlink.errors", gaps, of)
    for instance in gpu.mig_instances:
        _sift_record(instance, _INSTANCE, f"{where}.mig_instances.{instance.index}", gaps)
    for process in gpu.processes or ():
        _sift_record(process, _PROCESS, f"{where}.processes", gaps)
    _sift_pairs(gpu, where, gaps)


def _sift_pairs(gpu: GpuSample, where: str, gaps: list[Gap]) -> None:
    """What only two numbers together tell."""
    for name, maximum in _CLOCKS:
        mhz, most = getattr(gpu, name), getattr(gpu, maximum)
        if mhz is not None and most is not None and mhz > most * CLOCK_OVER_MAX:
            gaps.append(_gap(f"{where}.{name}", f"{mhz} MHz", f"it names {most} MHz as the maximum"))
            setattr(gpu, name, None)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is not None and total is not None and used > total:
        gaps.append(_gap(f"{where}.memory_used_bytes", f"{used} bytes", f"the memory has {total} bytes"))
        gpu.memory_used_bytes = None


def _sift_record(record: Any, known: _Fields, where: str, gaps: list[Gap], of: str = "") -> None:
    """``of``: which of several it is, for the reason. Identities (an index, a pid) cannot be None: receipt.py sees to
    them.
    """
    values = vars(record)
    for name, limits in known:
        # Of a field that was not sent there is no value; a comparison costs a fifth of what ``holds`` does.
        value = values.get(name)
        if value is None or (limits.only is None and limits.low <= value <= limits.high) or limits.holds(value):
            continue
        if name not in ("index", "pid"):
            what, said = f"{where}.{_CALLED.get(name, name)}", f"{of}{limits.shown(value)}"
            gaps.append(_gap(what, said, f"{limits.between} are plausible"))
            setattr(record, name, None)


def _sifted_counters(table: dict[str, Any], limits: Range, where: str, gaps: list[Gap], of: str = "") -> dict[str, Any]:
    """As ``_sifted_table``, of what rules need as a whole: a single counter that is missing is missed."""
    bad = _implausible(table, limits)
    gaps += [
        _gap(where, f"{of}{name} {limits.shown(table[name])}", f"{limits.between} are plausible")
        for name in _first(bad)
    ]
    return _without(table, bad)


def _sifted_table(table: dict[str, Any], limits: Range, where: str, gaps: list[Gap]) -> dict[str, Any]:
    bad = _implausible(table, limits)
    gaps += [
        _gap(f"{where}.{name}", limits.shown(table[name]), f"{limits.between} are plausible") for name in _first(bad)
    ]
    return _without(table, bad)


def _implausible(table: dict[str, Any], limits: Range) -> list[str]:
    if not table or (limits.low <= min(table.values()) and max(table.values()) <= limits.high):
        return []
    return [name for name, value in table.items() if not limits.holds(value)]


def _without(table: dict[str, Any], names: list[str]) -> dict[str, Any]:
    left_out = set(names)
    return {name: value for name, value in table.items() if name not in left_out} if names else table


def _first(names: Iterable[str], most: int = 8) -> list[str]:
    """Of many alike, some are told."""
    return sorted(names)[:most]


def _gap(what: str, said: str, why: str) -> Gap:
    return Gap(what, f"it says {said}, which cannot be: {why}", code="implausible")
