"""Every number that was read of a GPU passes here: what cannot be is unknown, with what was answered as the reason.

The ranges are in probes/model/plausible.py. What only two numbers together can tell is told here: more memory used than
there is, a clock far above its maximum, an energy counter that goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mltop.probes.collect.nvml.codes import Reason, implausible
from mltop.probes.collect.nvml.device import Reading
from mltop.probes.model.plausible import CLOCK_OVER_MAX, GPU, Range

CLOCKS = {"sm_clock_mhz": "sm_clock_max_mhz", "memory_clock_mhz": "memory_clock_max_mhz"}
USED, TOTAL = "memory_used_bytes", "memory_total_bytes"
ENERGY = "energy_j"
# Fields whose values are dicts of numbers, and lists of entries with the names of a part of GpuSample.
_DICTS = ("throttle_ns", "throttle_share", "pcie.errors")
_LINKS, _PROCESSES, _INSTANCES = "nvlink.links", "processes", "mig_instances"
_SINGLE = {path: limits for path, limits in GPU.items() if "*" not in path}


def complaint(limits: Range, value: Any, of: str = "") -> Reason:
    """Why a value is unknown. ``of``: whose it is, "link 3: "."""
    answered = f"{of}the driver answered {limits.shown(value)}"
    return implausible(f"{answered}, which is not a {limits.noun}: {limits.between} are plausible")


class Sieve:
    """Of one GPU, while it has its handle: what was answered before, and the maxima of its clocks."""

    def __init__(self) -> None:
        self._maxima: dict[str, float] = {}
        self._energy_j: float | None = None
        self._doubted_j: float | None = None  # less than before: believed when it goes on growing from there

    def sift(self, reading: Reading) -> Reading:
        """The same reading, without what cannot be. What was sifted once passes again."""
        values, problems = reading.values, reading.problems
        for path in [path for path, value in values.items() if path in _SINGLE and not _holds(_SINGLE[path], value)]:
            problems[path] = complaint(_SINGLE[path], values.pop(path))
        for path in _DICTS:
            if path in values:
                values[path] = _sifted(values[path], f"{path}.*", problems, f"{path}.")
        if _LINKS in values:
            values[_LINKS] = [_link(link, problems) for link in values[_LINKS]]
        if _PROCESSES in values:
            _sift_processes(values, problems)
        if _INSTANCES in values:
            instances, values[_INSTANCES] = values[_INSTANCES], []
            for entry in instances:
                prefix = f"{_INSTANCES}.{entry['index']}."
                sifted = _sifted(entry, f"{_INSTANCES}.*.{{}}", problems, prefix)
                _sift_memory(sifted, problems, prefix)
                values[_INSTANCES].append({"index": entry["index"], **sifted})
        _sift_memory(values, problems, "")
        self._sift_clocks(values, problems)
        self._sift_energy(values, problems)
        return reading

    def _sift_clocks(self, values: dict[str, Any], problems: dict[str, Reason]) -> None:
        for field, maximum in CLOCKS.items():
            if values.get(maximum) is not None:
                self._maxima[field] = values[maximum]
            most = self._maxima.get(field)
            if most is not None and values.get(field) is not None and values[field] > most * CLOCK_OVER_MAX:
                mhz = values.pop(field)
                problems[field] = implausible(
                    f"the driver answered {mhz} MHz, which is not a value: it names {most:.0f} MHz as the maximum"
                )

    def _sift_energy(self, values: dict[str, Any], problems: dict[str, Reason]) -> None:
        """A counter since the driver was loaded: with the driver this object goes, too."""
        now_j = values.get(ENERGY)
        if now_j is None:
            return
        before_j, doubted_j = self._energy_j, self._doubted_j
        if before_j is None or now_j >= before_j or (doubted_j is not None and now_j >= doubted_j):
            self._energy_j, self._doubted_j = now_j, None
            return
        self._doubted_j = now_j
        del values[ENERGY]
        problems[ENERGY] = implausible(
            f"the driver answered {now_j:.0f} J, which is not a value: it counted {before_j:.0f} J before"
        )


def _holds(limits: Range, value: Any) -> bool:
    return value is None or limits.holds(value)


def _sifted(
    entry: Mapping[str, Any], path: str, problems: dict[str, Reason], prefix: str, of: str = ""
) -> dict[str, Any]:
    """The numbers of one dict that can be. ``path``: of their ranges, "{}" for the name; ``of``: what the entry is, for
    the reason: "link 3: ".
    """
    plausible = {}
    for name, value in entry.items():
        limits = GPU.get(path.format(name))
        if limits is None or _holds(limits, value):
            plausible[name] = value
        else:
            problems[prefix + name] = complaint(limits, value, of)
    return plausible


def _link(link: dict[str, Any], problems: dict[str, Reason]) -> dict[str, Any]:
    """Of many links alike, one is told. Rules need the errors of all links: one counter that is missing is missed."""
    of = f"link {link.get('index')}: "
    sifted = _sifted(link, f"{_LINKS}.*.{{}}", problems, "nvlink.", of)
    bad: dict[str, Reason] = {}
    sifted["errors"] = _sifted(link.get("errors") or {}, f"{_LINKS}.*.errors.*", bad, "")
    for name in bad:
        problems["nvlink.errors"] = complaint(GPU[f"{_LINKS}.*.errors.*"], link["errors"][name], f"{of}{name}: ")
    return sifted


def _sift_processes(values: dict[str, Any], problems: dict[str, Reason]) -> None:
    """A list with a process that cannot be is no list: who holds the GPU is unknown."""
    pids = GPU[f"{_PROCESSES}.*.pid"]
    for entry in values[_PROCESSES]:
        if not pids.holds(entry["pid"]):
            problems[_PROCESSES] = complaint(pids, entry["pid"])
            del values[_PROCESSES]
            return

    values[_PROCESSES] = [
        _sifted(entry, f"{_PROCESSES}.*.{{}}", problems, f"{_PROCESSES}.", f"process {entry['pid']}: ")
        for entry in values[_PROCESSES]
    ]


def _sift_memory(values: dict[str, Any], problems: dict[str, Reason], prefix: str) -> None:
    used, total = values.get(USED), values.get(TOTAL)
    if used is not None and total is not None and used > total:
        del values[USED]
        problems[prefix + USED] = implausible(
            f"the driver answered {used} bytes, which is not a value: the memory has {total} bytes"
        )
