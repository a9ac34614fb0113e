"""Every number that was read of a GPU passes here: what cannot be is unknown, with what was answered as the reason.

The ranges are those of probes/model/plausible.py. What only two numbers together can tell is told here: more memory
used than there is, a clock far above its maximum, an energy counter that goes back.

Whoever receives a sample checks it by the same table (probes/reach/receiving.py). Neither check can be left out: a
node's own rules judge what passed here before anybody receives it, and what is received may be of a file, or of a node
that does not run our agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mltop.probes.collect.nvml.codes import Reason, implausible
from mltop.probes.collect.nvml.device import Reading
from mltop.probes.model.plausible import CLOCK_MAXIMA, CLOCK_OVER_MAX, GPU, Range, ranges_below

USED, TOTAL, ENERGY = "memory_used_bytes", "memory_total_bytes", "energy_j"
_SINGLE = {path: limits for path, limits in GPU.items() if "*" not in path}
_DICTS = ("throttle_ns", "throttle_share", "pcie.errors")  # fields whose values are dicts of numbers
# Lists of entries with the names of a part of GpuSample, and the ranges of their numbers.
_LINKS, _PROCESSES, _INSTANCES = "nvlink.links", "processes", "mig_instances"
_OF_ONE = {path: ranges_below(GPU, f"{path}.*.") for path in (_LINKS, _PROCESSES, _INSTANCES)}
_LINK_ERRORS = GPU[f"{_LINKS}.*.errors.*"]


def impossible(answer: str, why: str, noun: str = "value", of: str = "") -> Reason:
    """Why a value is unknown. ``of``: whose it is, "link 3: "."""
    return implausible(f"{of}the driver answered {answer}, which is not a {noun}: {why}")


def complaint(limits: Range, value: Any, of: str = "") -> Reason:
    """The same of a value outside of its range."""
    return impossible(limits.shown(value), f"{limits.between} are plausible", limits.noun, of)


class Sieve:
    """Of one GPU, while it has its handle: what was answered before, and the maxima of its clocks."""

    def __init__(self) -> None:
        self._maxima: dict[str, float] = {}
        self._energy_j: float | None = None
        self._doubted_j: float | None = None  # less than before: believed when it goes on growing from there

    def sift(self, reading: Reading) -> Reading:
        """The same reading, without what cannot be. What was sifted once passes again."""
        values, problems = reading.values, reading.problems
        reading.values = values = _sifted(values, _SINGLE, problems, "")
        for path in _DICTS:
            if path in values:
                ranges = dict.fromkeys(values[path], GPU[f"{path}.*"])
                values[path] = _sifted(values[path], ranges, problems, f"{path}.")
        if _LINKS in values:
            values[_LINKS] = [_link(link, problems) for link in values[_LINKS]]
        if _PROCESSES in values:
            _sift_processes(values, problems)
        if _INSTANCES in values:
            instances, values[_INSTANCES] = values[_INSTANCES], []
            for entry in instances:
                prefix = f"{_INSTANCES}.{entry['index']}."
                sifted = _sifted(entry, _OF_ONE[_INSTANCES], problems, prefix)
                _sift_memory(sifted, problems, prefix)
                values[_INSTANCES].append({"index": entry["index"], **sifted})
        _sift_memory(values, problems, "")
        self._sift_clocks(values, problems)
        self._sift_energy(values, problems)
        return reading

    def _sift_clocks(self, values: dict[str, Any], problems: dict[str, Reason]) -> None:
        for field, maximum in CLOCK_MAXIMA.items():
            if values.get(maximum) is not None:
                self._maxima[field] = values[maximum]
            most = self._maxima.get(field)
            if most is not None and values.get(field) is not None and values[field] > most * CLOCK_OVER_MAX:
                why = f"it names {most:.0f} MHz as the maximum"
                problems[field] = impossible(f"{values.pop(field)} MHz", why)

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
        problems[ENERGY] = impossible(f"{now_j:.0f} J", f"it counted {before_j:.0f} J before")


def _sifted(
    entry: Mapping[str, Any], ranges: Mapping[str, Range], problems: dict[str, Reason], prefix: str, of: str = ""
) -> dict[str, Any]:
    """What of one dict can be. ``of``: what the entry is, for the reason: "link 3: "."""
    plausible = {}
    for name, value in entry.items():
        limits = ranges.get(name)
        if limits is None or value is None or limits.holds(value):
            plausible[name] = value
        else:
            problems[prefix + name] = complaint(limits, value, of)
    return plausible


def _link(link: dict[str, Any], problems: dict[str, Reason]) -> dict[str, Any]:
    """Of many links alike, one is told. Rules need the errors of all links: one counter that is missing is missed."""
    of = f"link {link.get('index')}: "
    sifted = _sifted(link, _OF_ONE[_LINKS], problems, "nvlink.", of)
    errors = link.get("errors") or {}
    sifted["errors"] = {name: count for name, count in errors.items() if _LINK_ERRORS.holds(count)}
    for name in errors.keys() - sifted["errors"].keys():
        problems["nvlink.errors"] = complaint(_LINK_ERRORS, errors[name], f"{of}{name}: ")
    return sifted


def _sift_processes(values: dict[str, Any], problems: dict[str, Reason]) -> None:
    """A list with a process that cannot be is no list: who holds the GPU is unknown."""
    pids = _OF_ONE[_PROCESSES]["pid"]
    for entry in values[_PROCESSES]:
        if not pids.holds(entry["pid"]):
            problems[_PROCESSES] = complaint(pids, entry["pid"])
            del values[_PROCESSES]
            return

    values[_PROCESSES] = [
        _sifted(entry, _OF_ONE[_PROCESSES], problems, f"{_PROCESSES}.", f"process {entry['pid']}: ")
        for entry in values[_PROCESSES]
    ]


def _sift_memory(values: dict[str, Any], problems: dict[str, Reason], prefix: str) -> None:
    used, total = values.get(USED), values.get(TOTAL)
    if used is not None and total is not None and used > total:
        del values[USED]
        problems[prefix + USED] = impossible(f"{used} bytes", f"the memory has {total} bytes")
