"""What is kept of all events: a day's, and of a flood only some; what the kernel says but once, of the whole boot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mltop.probes.collect.kernel_log.records import shown
from mltop.probes.collect.sysfile import sysfs_bus_id
from mltop.probes.model import MAX_KERNEL_EVENTS, KernelEvent

KEPT_S = 24 * 3600.0
MOST_ALIKE = 8  # of one kind, subject and code
SAID_ONCE = ("pcie_limited",)  # when the kernel finds the hardware: true for as long as the machine runs
MOST_SAID_ONCE = 32  # devices: never so many that they push out what happens
SAME_KILL_S = 10.0  # between the two lines that the kernel writes about one OOM kill
SAME_XID_S = 5.0  # between the log's and NVML's word of one Xid


class History:
    """Events in the order in which they came, the newest last. One that comes a second time is not kept again."""

    def __init__(self) -> None:
        self._events: list[KernelEvent] = []
        self._keys: list[tuple[object, ...]] = []  # beside the events: made once of each, also in a flood

    def add(self, event: KernelEvent) -> None:
        if event in self._events or (event.kind == "oom" and self._is_known_kill(event)):
            return
        if event.kind in SAID_ONCE and not self._has_room(event):
            return
        key = event.kind, gpu_key(event.subject), event.code
        self._events.append(event)
        self._keys.append(key)
        if self._keys.count(key) > MOST_ALIKE:
            self._drop(self._keys.index(key))
        if len(self._events) > MAX_KERNEL_EVENTS:
            self._drop(least_missed(self._events))

    def events(self, now: float) -> list[KernelEvent]:
        """The events of the last 24 hours before ``now`` (unix s), and what is said once of this boot."""
        oldest = now - KEPT_S
        for index in range(len(self._events) - 1, -1, -1):
            if self._events[index].at < oldest and self._events[index].kind not in SAID_ONCE:
                self._drop(index)
        return list(self._events)

    def _has_room(self, event: KernelEvent) -> bool:
        """Whether it may be kept: of one device the newest is, of others only so many."""
        of_kind = [index for index, other in enumerate(self._events) if other.kind == event.kind]
        same = [index for index in of_kind if gpu_key(self._events[index].subject) == gpu_key(event.subject)]
        for index in reversed(same):
            self._drop(index)
        return len(of_kind) - len(same) < MOST_SAID_ONCE

    def _drop(self, index: int) -> None:
        del self._events[index], self._keys[index]

    def _is_known_kill(self, event: KernelEvent) -> bool:
        """The summary has the cgroup, the line after it says how large the process was: together they are one event."""
        for index in range(len(self._events) - 1, -1, -1):
            earlier = self._events[index]
            if earlier.kind == "oom" and earlier.pid == event.pid and abs(earlier.at - event.at) <= SAME_KILL_S:
                if event.text not in earlier.text:
                    self._events[index] = replace(earlier, text=shown(f"{event.text} ({earlier.text})"))
                return True
        return False


def with_nvml_events(events: list[KernelEvent], nvml: list[KernelEvent]) -> list[KernelEvent]:
    """Returns ``events`` and those of NVML's Xids that the log does not have; ordered by time, the newest last."""
    if not nvml:
        return events
    logged = [(event.code, gpu_key(event.subject), event.at) for event in events if event.kind == "xid"]
    missing = [
        event
        for event in nvml
        if not any(
            code == event.code and gpu == gpu_key(event.subject) and abs(at - event.at) <= SAME_XID_S
            for code, gpu, at in logged
        )
    ]
    if not missing:
        return events
    merged = sorted([*events, *missing], key=lambda event: event.at)
    while len(merged) > MAX_KERNEL_EVENTS:
        del merged[least_missed(merged)]
    return merged


def gpu_key(subject: str) -> str:
    """The same key for every way to write one PCI address ("0000:9b:00", "00000000:9B:00.0"); else the subject."""
    address = sysfs_bus_id(subject)
    return subject if address is None else address.rpartition(".")[0]


def least_missed(events: list[KernelEvent]) -> int:
    """The oldest of the kind that there is most of: links that flap do not push out the one Xid 79."""
    most = Counter(event.kind for event in events).most_common(1)[0][0]
    return next(index for index, event in enumerate(events) if event.kind == most)
