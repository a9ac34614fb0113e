"""The kernel log's Xids by GPU: which of them are one incident, and what it is about.

One fault logs several lines within seconds (an ECC error: 48, 63, 94, then 43 and 45 as the programs end; a dead link:
74 on both ends). They are told once, by the gravest; the same Xid again and again is one line with a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mltop.probes.judge.health.gpu.xid_catalog import ADVICE, APP, HW, NVLINK5, QUIET, WARN, lookup
from mltop.probes.judge.health.names import bus_key, gpu_name, slots
from mltop.probes.judge.health.rule import EVENT_LISTED_S, Moment, once_per_moment
from mltop.probes.model import KernelEvent, Sample

CHAIN_S = 60.0  # so close together on one GPU they are one incident
MOST_OPEN = 64  # incidents of one GPU that may still grow
SAME_LINE_S = 5.0  # the kernel log and NVML's event of one and the same Xid
OFF_BUS = 79  # "GPU has fallen off the bus", which comes with and without this Xid
BOOT_SLACK_S = 5.0  # boot time and the log's times come from different clocks

_FATAL = re.compile(r"(?<![-\w])Fatal\b")
_GRAVITY = {HW: 0, WARN: 1, APP: 2, QUIET: 3, ADVICE: 4}
# What the GPUs of a node log when an NVSwitch has failed.
_AFTER_SXID = frozenset({43, 45, 74, *NVLINK5})


@dataclass(frozen=True)
class SeenXid:
    """One Xid. ``subject``: "GPU 3", or the PCI bus id of a GPU that NVML has not listed since we watch."""

    at: float
    code: int
    tier: str
    subject: str
    index: int | None
    text: str = ""
    pid: int | None = None
    process: str = ""
    source: str = ""


@dataclass
class Incident:
    """Xids of one GPU that belong together, the oldest first."""

    xids: list[SeenXid] = field(default_factory=list)
    _codes: set[int] = field(default_factory=set)

    def add(self, one: SeenXid) -> None:
        self.xids.append(one)
        self._codes.add(one.code)

    @property
    def told(self) -> SeenXid:
        """The gravest, of equals the first."""
        return min(self.xids, key=lambda one: _GRAVITY[one.tier])

    @property
    def last_at(self) -> float:
        return self.xids[-1].at

    def codes(self) -> list[int]:
        """Each once, in the order of their first appearance."""
        return list(dict.fromkeys(one.code for one in self.xids))

    def takes(self, one: SeenXid) -> bool:
        apart_s = one.at - self.last_at
        return apart_s <= CHAIN_S or (apart_s <= EVENT_LISTED_S and one.code in self._codes)


@once_per_moment
def seen_xids(moment: Moment) -> list[SeenXid]:
    """All that the sample knows of (24 hours), the oldest first; the same one from two sources counts once."""
    events = [event for event in moment.now.kernel_events if event.kind in ("xid", "off_bus")]
    if not events:
        return []
    indexes = _indexes(moment)
    newest: dict[tuple[str, int], SeenXid] = {}
    found = []
    for event in sorted(events, key=lambda event: event.at):
        one = _seen(event, indexes)
        if one is None:
            continue
        twin = newest.get((one.subject, one.code))
        if twin is None or twin.source == one.source or one.at - twin.at > SAME_LINE_S:
            newest[one.subject, one.code] = one
            found.append(one)
    return found


@once_per_moment
def listed_incidents(moment: Moment) -> list[Incident]:
    """Those whose newest Xid is less than an hour old and of this boot: a reboot is the cure of many."""
    from_at = max(moment.now.sampled_at - EVENT_LISTED_S, booted_at(moment.now))
    grave_sxids = [event.at for event in moment.now.kernel_events if event.kind == "sxid" and event.severity == "fatal"]
    xids = [one for one in seen_xids(moment) if one.tier != ADVICE and not _of_switch(one, grave_sxids)]
    return [incident for incident in incidents(xids) if incident.last_at >= from_at]


def incidents(xids: list[SeenXid]) -> list[Incident]:
    by_subject: dict[str, list[Incident]] = {}
    for one in xids:
        own = by_subject.setdefault(one.subject, [])
        incident = next((known for known in own[:-MOST_OPEN:-1] if known.takes(one)), None)
        if incident is None:
            incident = Incident()
            own.append(incident)
        incident.add(one)
    return [incident for own in by_subject.values() for incident in own]


def booted_at(sample: Sample) -> float:
    """Unix s, a little before the boot; minus infinity when that is not known."""
    uptime_s = sample.host.uptime_s
    return float("-inf") if uptime_s is None else sample.sampled_at - uptime_s - BOOT_SLACK_S


def on_switch_fault(moment: Moment, at: float) -> Iterator[SeenXid]:
    """The Xids that the node's GPUs logged because of an NVSwitch's fatal error at ``at``."""
    return (one for one in seen_xids(moment) if _of_switch(one, [at]))


def _of_switch(one: SeenXid, grave_sxids: list[float]) -> bool:
    return one.code in _AFTER_SXID and any(abs(one.at - at) <= CHAIN_S for at in grave_sxids)


def _indexes(moment: Moment) -> dict[str, int]:
    """By slot and UUID; a GPU that is gone is known from earlier samples, or by its place on the PCI bus."""
    found = dict(slots(moment))
    for gpu in (*moment.known_gpus.values(), *moment.now.gpus):
        if gpu.uuid:
            found[gpu.uuid] = gpu.index
    return found


def _seen(event: KernelEvent, indexes: dict[str, int]) -> SeenXid | None:
    code = OFF_BUS if event.kind == "off_bus" else event.code
    if code is None:
        return None
    index = indexes.get(event.subject)
    if index is None:
        index = indexes.get(bus_key(event.subject))
    subject = (bus_key(event.subject) or "a GPU") if index is None else gpu_name(index)
    return SeenXid(
        event.at, code, _tier(event, code), subject, index, event.text, event.pid, event.process, event.source
    )


def _tier(event: KernelEvent, code: int) -> str:
    """NVLink errors of Blackwell say in their line whether they are fatal; where it does not, they are not."""
    if code in NVLINK5:
        fatal = event.severity == "fatal" or (not event.severity and _FATAL.search(event.text) is not None)
        return HW if fatal else WARN
    return lookup(code).tier
