"""Watching the processes of one probe: their events, the deadline of each stage, and their end."""

from __future__ import annotations

import contextlib
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from mltop.probes.active import endings
from mltop.probes.active.child import event_of
from mltop.probes.active.host import kernel_state, oom_kills, start_ticks
from mltop.probes.active.supervisor.process import ProbeProcess
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import START, stage_deadline_s

TERM_S = 2.0  # from SIGTERM to SIGKILL
KILL_S = 1.0  # from SIGKILL to giving up: only a process that is stuck in the kernel survives that long
END_S = 5.0  # from a process's last result to its end
SILENT_S = 2.0  # from the end of its output to its end
_POLL_MS = 100
_MOST_EVENTS = 50_000
_MOST_BYTES = 16_000_000
# Said between two stages: from now on the process waits for the caller.
_WAITS = ("ready", "round")

Emit = Callable[[ProbeEvent], None]


@dataclass(frozen=True)
class Stuck:
    """A process that SIGKILL did not end, and the device that it holds."""

    uuid: str
    pid: int
    start_ticks: str

    def is_there(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks != ""


class Watched:
    """One process, in ``stage``. ``stuck`` is filled when it cannot be ended; ``done``: there is nothing more to do."""

    def __init__(
        self,
        process: ProbeProcess,
        kind: str,
        devices: Sequence[ProbeDevice],
        deadlines_s: Mapping[str, float],
        emit: Emit,
    ) -> None:
        self.process, self.devices = process, devices
        self.done = False
        self.stuck: list[Stuck] = []
        self._kind, self._deadlines_s, self._emit = kind, deadlines_s, emit
        self._is_launcher = kind == "all_reduce"  # its events are about ranks, and it has no results of its own
        self._name = devices[0].uuid if len(devices) == 1 and not self._is_launcher else ""
        self._missing = {device.uuid for device in devices}  # without result or failure
        self._failed = False
        self.stage = ""
        self._limit_s: float | None = None
        self._due_s: float | None = None  # monotonic
        self._events = 0
        self._failure: tuple[str, str] | None = None  # told when the process is gone: why, fix
        self._terminated_s: float | None = None  # SIGTERM
        self._killed_s: float | None = None
        self._silent_s: float | None = None
        self._garbage = ""
        self._oom_kills = oom_kills()
        self._begin(ProbeEvent("stage", stage=START), process.started_s)

    def turn(self) -> None:
        """One look at it; never waits."""
        ended = self.process.has_ended()
        self._hear()
        now = time.monotonic()
        if ended:
            for _ in range(4):  # at most what the pipes held: others of its group may write until they are killed
                self._hear()
            self._finish()
        elif self._killed_s is not None:
            if now - self._killed_s > KILL_S:
                self._give_up()
        elif self._terminated_s is not None:
            if now - self._terminated_s > TERM_S:
                self._kill(now)
        elif self._due_s is not None and now > self._due_s:
            self._too_late(now)
        elif self.process.is_silent:
            self._silence(now)
        self.process.flush()

    def end(self, failure: tuple[str, str] | None = None) -> None:
        """SIGTERM, and all that follows. ``failure``: why and fix, to be told once it is gone."""
        if self._terminated_s is None:
            self._failure = failure
            self._terminated_s = time.monotonic()
            self.process.signal_group(signal.SIGTERM)
            self.process.signal_group(signal.SIGCONT)

    def end_now(self) -> None:
        """SIGKILL, without another word: when whoever watches cannot go on."""
        if not self.done:
            self.process.end_now()
            self.done = True

    def _kill(self, now: float) -> None:
        self.process.signal_group(signal.SIGKILL)
        self._killed_s = now

    def _hear(self) -> None:
        lines = self.process.receive()
        if self.process.received_bytes > _MOST_BYTES:
            self.end((f"it wrote more than {_MOST_BYTES // 1_000_000} MB in stage '{self.stage}'", ""))
        for line in lines:
            event = event_of(line)
            if event is None:
                self._garbage = line[-4096:].decode("utf-8", "replace") if line.strip() else self._garbage
            elif self._terminated_s is None:
                self._take(event)

    def _take(self, event: ProbeEvent) -> None:
        self._events += 1
        if self._events > _MOST_EVENTS:
            self.end((f"it said more than {_MOST_EVENTS} things in stage '{self.stage}'", ""))
            return
        event.device = event.device or self._name
        if event.event == "stage":
            self._begin(event, time.monotonic())
            return
        if event.event in _WAITS:
            self._due_s, self.stage = None, ""
        if event.event in ("result", "failed", "refused"):
            self._settle(event)
        self._emit(event)

    def _begin(self, event: ProbeEvent, now: float) -> None:
        """The stage that it is in already is progress, not a new deadline."""
        if event.stage != self.stage or self._limit_s is None:
            self.stage = event.stage
            self._limit_s = event.deadline_s
            if self._limit_s is None:
                self._limit_s = stage_deadline_s(self._kind, event.stage, self._deadlines_s)
            self._due_s = now + self._limit_s
        event.device = event.device or self._name
        event.deadline_s = self._limit_s
        self._emit(event)

    def _settle(self, event: ProbeEvent) -> None:
        self._failed = self._failed or event.event != "result"
        event.stage = event.stage or ("" if event.event == "result" else self.stage)
        if self._is_launcher:
            return
        if event.device:
            self._missing.discard(event.device)
        else:
            self._missing.clear()
        if not self._missing:
            self._due_s, self._limit_s = time.monotonic() + END_S, None

    def _too_late(self, now: float) -> None:
        if not self._missing:
            self._kill(now)  # it has done its work; only its end is late
            return
        state = kernel_state(self.process.pid)
        self.end((endings.too_late(self.stage, self._limit_s or 0.0, state), ""))

    def _silence(self, now: float) -> None:
        """The process closed its output: it has to end, for nothing can be heard of it."""
        if self._silent_s is None:
            self._silent_s = now
        elif now - self._silent_s > SILENT_S:
            self.end((f"closed its output in stage '{self.stage}' without ending", "") if self._missing else None)

    def _finish(self) -> None:
        """The process has ended; what it started must, too."""
        self.process.signal_group(signal.SIGKILL)
        deadline_s = time.monotonic() + KILL_S
        others = self.process.other_members()
        while others and time.monotonic() < deadline_s:
            time.sleep(0.01)
            others = self.process.other_members()
        code = self.process.reap()
        for pid in others:
            self._remember(pid)
        if not others and self._failure is not None:
            self._fail(*self._failure)
        elif not others and self._terminated_s is None and self._killed_s is None:
            self._say_end(code)
        self._close()

    def _say_end(self, code: int) -> None:
        launched = self._is_launcher and (code == 0 or self._failed)
        if self._missing and not launched:
            oom_killed = self._oom_kills is not None and (oom_kills() or 0) > self._oom_kills
            self._fail(*endings.died(code, self.stage, self.process.stderr_end() or self._garbage, oom_killed))
        elif code != 0 and not self._failed:
            words = endings.died(code, self.stage, self.process.stderr_end(), False)[0]
            self._emit(ProbeEvent("note", device=self._name, text=f"after its result it {words}"))

    def _give_up(self) -> None:
        """Nothing can end it: we do not wait for it, and its devices are not touched until it is gone."""
        self._remember(self.process.pid)
        self._close()

    def _remember(self, pid: int) -> None:
        is_gpu = any(device.kind != "cpu" for device in self.devices)
        why = endings.stuck(pid, is_gpu, kernel_state(pid))
        first = self._failure[0] + ", " if self._failure is not None and not self.stuck else ""
        fix = "the driver has to let go of it: reset the GPU, or reboot the node" if is_gpu else ""
        self._emit(ProbeEvent("failed", device=self._name, stage=self.stage, why=first + why, fix=fix))
        self.stuck += [Stuck(device.uuid, pid, start_ticks(pid)) for device in self.devices]

    def _fail(self, why: str, fix: str) -> None:
        self._emit(ProbeEvent("failed", device=self._name, stage=self.stage, why=why, fix=fix))

    def _close(self) -> None:
        self.process.close()
        self.done = True


def watch(watched: Sequence[Watched], cancelled: threading.Event, total_s: float) -> None:
    """Returns when all have ended or were given up. For the thread that started them."""
    began_s = time.monotonic()
    try:
        while True:
            running = [probe for probe in watched if not probe.done]
            if not running:
                return
            late = time.monotonic() - began_s > total_s
            for probe in running:
                if cancelled.is_set():
                    probe.end()
                elif late:
                    probe.end((f"the probe was not over within {total_s:g} s (it was in stage '{probe.stage}')", ""))
                probe.turn()
            _wait(running)
    finally:
        for probe in watched:
            with contextlib.suppress(OSError):
                probe.end_now()


def _wait(watched: Sequence[Watched]) -> None:
    """Waits until one of them says something, ``_POLL_MS`` at most: ends and deadlines make no sound."""
    poller = select.poll()
    for probe in watched:
        if not probe.done:
            for fd in probe.process.open:
                poller.register(fd, select.POLLIN)
    poller.poll(_POLL_MS)
