"""What the agent calls every second: the kernel's events of the last 24 hours (what it says but once: of this boot).

Of a flood only some events are kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.collect.kernel_log.decode import Decoder
from mltop.probes.collect.kernel_log.readers import (
    KINDS,
    GrowingFile,
    Journal,
    KmsgDevice,
    LogFiles,
    Reader,
    open_reader,
)
from mltop.probes.collect.kernel_log.records import parse, shown
from mltop.probes.collect.sysfile import sysfs_bus_id
from mltop.probes.model import MAX_KERNEL_EVENTS, Gap, KernelEvent

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


HISTORY_READ_S = 0.05  # of one read at the start: 2 MB of lines are two reads
READ_S = 0.02
LOST_SAID_S = 3600.0
JOURNAL_PAUSE_S = 30.0
BOOT_SLACK_S = 5.0  # the clock is set while the machine starts


class KernelLogSource:
    """Reads /dev/kmsg, else the journal, else kern.log. All methods are for one thread."""

    def __init__(self, files: LogFiles | None = None) -> None:
        self._files = files or LogFiles.usual()
        self._history = History()
        self._tried: list[str] = []
        self._reader: Reader | None = None
        self._decoder: Decoder | None = None
        self._journal_from: float | None = None  # unix s: what is older was read from a journalctl that ended
        self._journal_due_s: float | None = None  # monotonic s: when to start the next one
        self._is_open = False  # the choice has begun
        self._was_current = False
        self._current_at: float | None = None  # of the newest read that reached the end
        self._starts_at: float | None = None  # unix s of the oldest line, where older ones are gone
        self._lost = 0
        self._lost_at = 0.0
        self._failure: Gap | None = None

    def read(self, now: float, nvml: list[KernelEvent] | None = None) -> tuple[list[KernelEvent], list[Gap]]:
        """All events that are known, the newest last, and what is not known. ``now``: unix s. Never waits.

        ``nvml``: what NVML reports, which is left out where the log has it too.
        A gap of kind "starting" says that the log's history is still being read.
        """
        if not self._is_open:
            self._is_open = True
            self._open(now, KINDS)
        elif self._journal_due_s is not None and time.monotonic() >= self._journal_due_s:
            self._journal_due_s = None
            self._open(now, KINDS[1:])
        if self._reader is not None:
            self._take(self._reader, now)
        return with_nvml_events(self._history.events(now), nvml or []), self._gaps(now)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._journal_due_s = None
        self._is_open = True  # for good

    def _take(self, reader: Reader, now: float) -> None:
        decoder = self._decoder
        assert decoder is not None
        decoder.boot_at = self._files.boot_time(now)
        until = time.monotonic() + (READ_S if self._was_current else HISTORY_READ_S)
        is_live = isinstance(reader, KmsgDevice) and self._current_at is not None
        oldest, booted_at = now - KEPT_S, decoder.boot_at - BOOT_SLACK_S
        if isinstance(reader, GrowingFile) and reader.path:  # kern.log, which begins in an earlier boot
            oldest = max(oldest, booted_at)
        for batch in reader.batches(until):
            for event in decoder.feed(batch, now):
                if is_live:  # the kernel's clock drifts; what is new now was written since the read before
                    event.at = min(max(event.at, self._current_at or 0.0), now)
                if event.at >= (booted_at if event.kind in SAID_ONCE else oldest):
                    self._history.add(event)
        if reader.lost:
            self._lost, self._lost_at, reader.lost = self._lost + reader.lost, now, 0
        elif now - self._lost_at > LOST_SAID_S:
            self._lost = 0
        if reader.first_seq and self._starts_at is None:
            self._starts_at = parse(reader.first_line, decoder.boot_at, now).at
        self._was_current = self._was_current or reader.is_current
        self._current_at = now if reader.is_current else None
        if isinstance(reader, Journal) and reader.refused:
            self._leave_journal(reader, now)

    def _leave_journal(self, journal: Journal, now: float) -> None:
        self._reader = None
        journal.close()
        if not journal.is_permitted:
            self._tried.append(f"journal: {journal.refused}")
            self._open(now, KINDS[2:])
            return
        why = f"{journal.refused}; it is started again"
        self._failure = Gap.about("kernel_log", why=why, fix="systemctl status systemd-journald")
        self._journal_from, self._journal_due_s = now - JOURNAL_PAUSE_S, time.monotonic() + JOURNAL_PAUSE_S

    def _open(self, now: float, kinds: Sequence[str]) -> None:
        """Read the first of these logs that can be read."""
        for kind in kinds:
            reader, why = open_reader(self._files, kind, self._journal_from)
            if reader is not None:
                self._reader, self._failure, self._current_at = reader, None, None
                self._decoder = Decoder(kind, self._files.boot_time(now))
                return
            self._tried += [why] if why else []
        self._failure = self._files.unreadable(self._tried)

    def _gaps(self, now: float) -> list[Gap]:
        if self._failure is not None:
            return [self._failure]
        gaps = []
        if self._reader is not None and not self._was_current:
            gaps.append(Gap.about("kernel_log", why="its history is still being read", kind="starting"))
        if self._lost:
            why = f"{self._lost} lines of the kernel log were overwritten before they could be read"
            gaps.append(
                Gap.about("kernel_log", "lost", why=why, fix="add log_buf_len=16M to the kernel's command line")
            )
        if self._starts_at is not None and self._starts_at > now - KEPT_S:
            # Named so that it hides no rule's answer: a busy node's log never reaches back a day.
            hours = (now - self._starts_at) / 3600
            why = f"the kernel log reaches back {hours:.1f} h only, older lines are overwritten"
            gaps.append(Gap.about("kernel_log_history", why=why, fix="sudo journalctl -k -b"))
        return gaps
