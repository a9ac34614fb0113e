"""One probe process: started so that nothing of it can stay, read without waiting, ended with its whole group; and
watched: its events, the deadline of each stage, and its end.

What ends it when the agent dies, in whatever way: the kernel kills the process when our thread ends (PR_SET_PDEATHSIG,
prctl(2)), and its whole group when our end of a pipe closes on which nothing is ever written (fcntl(2): F_SETOWN of the
group, F_SETSIG, O_ASYNC). The pipe's other end is held by a guard, a shell that waits for its end: our threads end one
after the other and our pipes with the last, so the process itself may be dead by then and what it started alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Callable

from mltop.probes.active import endings
from mltop.probes.active.child import Lines, event_of
from mltop.probes.active.host import kernel_state, oom_kills, start_ticks, stat_fields
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN, START, stage_deadline_s
from mltop.probes.system.spawn import signal_group, start_child

STDERR_BYTES = 4096
_F_SETSIG = 10  # fcntl(2); not in Python's module
_READ_BYTES = 65_536
_READS_AT_ONCE = 8  # then the other processes have their turn
_KILLED_S = 0.5
_GUARD = ("/bin/sh", "-c", "read _")
_MOST_UNSENT_BYTES = 1_000_000
_OOM_SCORE_ADJ = b"1000"  # when memory runs out the kernel ends the probe, not the training (proc(5))


class CannotTell(Exception):
    """Why a line cannot be given to the process."""


class ProbeProcess:
    """Leader of a session of its own. Raises OSError when it cannot be started.

    Start it in a thread that lives at least as long. ``first_line``: for its stdin, which then stays open.
    ``memory_bytes``: of data (RLIMIT_DATA: heap and private mappings). Not for GPUs: CUDA maps far more than it uses,
    there the process limits itself. Times are monotonic.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], first_line: bytes = b"", memory_bytes: int | None = None
    ) -> None:
        far_end, self._lifeline = os.pipe()
        try:
            nothing = subprocess.DEVNULL
            self._guard = subprocess.Popen(
                _GUARD, cwd="/", stdin=far_end, stdout=nothing, stderr=nothing, start_new_session=True
            )
            self.started_s = time.monotonic()
            pipe = subprocess.PIPE
            self._process = start_child(command, env=dict(env), cwd="/", stdin=pipe, stderr=pipe)
            self.pid = self._process.pid
            with contextlib.suppress(OSError):  # a sandbox without it: the death signal and the end of stdin remain
                fcntl.fcntl(far_end, fcntl.F_SETOWN, -self.pid)
                fcntl.fcntl(far_end, _F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(far_end, fcntl.F_SETFL, fcntl.fcntl(far_end, fcntl.F_GETFL) | os.O_ASYNC)
        except BaseException:
            os.close(self._lifeline)  # ends the guard
            raise
        finally:
            os.close(far_end)
        self._limit(memory_bytes)
        self._in, self.out, self.err = (file.fileno() for file in self._files())
        for fd in (self._in, self.out, self.err):
            os.set_blocking(fd, False)
        self.open = {self.out, self.err}  # what can still be read
        self.received_bytes = 0
        self._lines = Lines()
        self._errors = b""
        self._unsent = bytearray()
        self._tell_lock = threading.Lock()
        self._closed = False
        if first_line:
            with contextlib.suppress(CannotTell):  # it has ended already: whoever watches it will say why
                self.tell(first_line)

    def _files(self) -> Iterator[IO[bytes]]:
        return filter(None, (self._process.stdin, self._process.stdout, self._process.stderr))

    def _limit(self, memory_bytes: int | None) -> None:
        """Sets its limits from outside: the less runs between fork and exec, the better."""
        limits = [(resource.RLIMIT_CORE, 0), *([(resource.RLIMIT_DATA, memory_bytes)] if memory_bytes else [])]
        for which, value in limits:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or its limit is lower already
                resource.prlimit(self.pid, which, (value, value))
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/oom_score_adj", "wb", buffering=0) as file:
            file.write(_OOM_SCORE_ADJ)

    def receive(self) -> list[bytes]:
        """The whole lines of stdout that have come. Also empties stderr."""
        self._errors = (self._errors + self._read(self.err))[-STDERR_BYTES:]
        return self._lines.take(self._read(self.out))

    def _read(self, fd: int) -> bytes:
        data = b""
        for _ in range(_READS_AT_ONCE if fd in self.open else 0):
            try:
                more = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                more = b""
            if not more:
                self.open.discard(fd)
                break
            data += more
        self.received_bytes += len(data)
        return data

    @property
    def is_silent(self) -> bool:
        """Nothing can come from it any more."""
        return self.out not in self.open

    def stderr_end(self) -> str:
        """The end of its stderr."""
        return self._errors.decode("utf-8", "replace")

    def tell(self, line: bytes) -> None:
        """A line for its stdin, from any thread; it waits here while the process does not read. Raises CannotTell."""
        with self._tell_lock:
            if self._closed:
                raise CannotTell("it has ended")
            if len(self._unsent) + len(line) > _MOST_UNSENT_BYTES:
                raise CannotTell("it does not read its input")
            self._unsent += line
            self._flush()

    def flush(self) -> None:
        """Some more of what it has not read yet."""
        with self._tell_lock, contextlib.suppress(CannotTell):
            if not self._closed:
                self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                written = os.write(self._in, self._unsent[:_READ_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                self._unsent.clear()
                raise CannotTell(f"it takes nothing any more ({error.strerror})") from error
            del self._unsent[:written]

    def has_ended(self) -> bool:
        """Leaves it a zombie, so that its group's number stays its own until ``close``."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal_group(self, number: int) -> None:
        signal_group(self._process, number)

    def other_members(self) -> list[int]:
        """Living processes of its group but itself. Looks at every process of the machine."""
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - thousands of them
        stats = ((pid, stat_fields(pid)) for pid in pids if pid != self.pid)
        return [pid for pid, fields in stats if fields and fields[2] == str(self.pid) and fields[0] not in "ZX"]

    def reap(self) -> int:
        """Its exit code once it has ended; negative: killed by that signal."""
        return self._process.wait()

    def end_now(self) -> None:
        """SIGKILL, and release our ends. What hangs in the kernel is not waited for."""
        self.signal_group(signal.SIGKILL)
        deadline_s = time.monotonic() + _KILLED_S
        while not self.has_ended() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        self.close()

    def close(self) -> None:
        """Release our ends; what is left of the group dies of it."""
        with self._tell_lock:
            if self._closed:
                return
            self._closed = True
        self._process.poll()
        for file in self._files():
            with contextlib.suppress(OSError):
                file.close()
        os.close(self._lifeline)
        try:
            self._guard.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()


TERM_S = 2.0  # from SIGTERM to SIGKILL
KILL_S = 1.0  # from SIGKILL to giving up: only a process that is stuck in the kernel survives that long
END_S = 5.0  # from a process's last result to its end
SILENT_S = 2.0  # from the end of its output to its end
_POLL_MS = 100
_MOST_BYTES = 16_000_000
_FIXES = {"import torch": "a slow or dead file system, or a busy machine: try: time python -c 'import torch'"}
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
        self._is_launcher = not CHILDREN[kind].one_gpu  # its events are about ranks, and it has no results of its own
        self._name = devices[0].uuid if len(devices) == 1 and not self._is_launcher else ""
        self._missing = {device.uuid for device in devices}  # without result or failure
        self._failed = False
        self.stage = ""
        self._limit_s: float | None = None
        self._due_s: float | None = None  # monotonic
        self._ends = False  # by our doing
        self._signals = [(signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)]
        self._failure: tuple[str, str] | None = None  # told when the process is gone: why, fix
        self._silent_s: float | None = None
        self._garbage = ""
        self._oom_kills = oom_kills()
        self._life = self._live()
        self._begin(ProbeEvent("stage", stage=START), process.started_s)

    def turn(self) -> None:
        """One look at it; never waits."""
        self.done = next(self._life, True)
        self.process.flush()

    def end(self, failure: tuple[str, str] | None = None) -> None:
        """SIGTERM, and all that follows. ``failure``: why and fix, to be told once it is gone."""
        if not self._ends:
            self._ends, self._failure = True, failure

    def end_now(self) -> None:
        """SIGKILL, without another word: when whoever watches cannot go on."""
        if not self.done:
            self.process.end_now()
            self.done = True

    def _live(self) -> Iterator[bool]:
        """A look at a time, False while there is more to do."""
        process = self.process
        while not process.has_ended():
            self._hear()
            self._look_at_the_time(time.monotonic())
            if self._ends:
                break
            yield False
        for number, limit_s in self._signals:
            until_s = time.monotonic() + limit_s
            if not process.has_ended():
                process.signal_group(number)
                process.signal_group(signal.SIGCONT)
            while not process.has_ended() and time.monotonic() < until_s:
                self._hear()
                yield False
        if process.has_ended():
            self._finish()
        else:  # we do not wait for it, and its devices are not touched until it is gone
            self._remember(process.pid)
        process.close()

    def _hear(self) -> None:
        lines = self.process.receive()
        if self.process.received_bytes > _MOST_BYTES:
            self.end((f"it wrote more than {_MOST_BYTES // 1_000_000} MB in stage '{self.stage}'", ""))
        for line in lines:
            event = event_of(line)
            if event is None:
                self._garbage = line[-4096:].decode("utf-8", "replace") if line.strip() else self._garbage
            elif not self._ends:
                self._take(event)

    def _take(self, event: ProbeEvent) -> None:
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

    def _look_at_the_time(self, now: float) -> None:
        if self._due_s is not None and now > self._due_s:
            if not self._missing:  # it has done its work; only its end is late
                del self._signals[0]
                self.end()
                return
            state = kernel_state(self.process.pid)
            late = f"stage '{self.stage}' was not over within {self._limit_s or 0.0:g} s"
            self.end((late + (f" ({state})" if state else ""), _FIXES.get(self.stage, "")))
        elif self.process.is_silent:  # it has to end, for nothing can be heard of it
            self._silent_s = self._silent_s or now
            if now - self._silent_s > SILENT_S:
                self.end((f"closed its output in stage '{self.stage}' without ending", "") if self._missing else None)

    def _finish(self) -> None:
        """The process has ended; what it started must, too."""
        for _ in range(5):  # at most what the pipes held: others of its group may write until they are killed
            self._hear()
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
        elif not others and not self._ends:
            self._say_end(code)

    def _say_end(self, code: int) -> None:
        launched = self._is_launcher and (code == 0 or self._failed)
        if self._missing and not launched:
            oom_killed = self._oom_kills is not None and (oom_kills() or 0) > self._oom_kills
            self._fail(*endings.died(code, self.stage, self.process.stderr_end() or self._garbage, oom_killed))
        elif code != 0 and not self._failed:
            words = endings.died(code, self.stage, self.process.stderr_end(), False)[0]
            self._emit(ProbeEvent("note", device=self._name, text=f"after its result it {words}"))

    def _remember(self, pid: int) -> None:
        is_gpu = any(device.kind != "cpu" for device in self.devices)
        where = "the driver" if is_gpu else "the kernel"
        why = f"stuck in {where} ({kernel_state(pid) or 'D state'}), pid {pid}: not even SIGKILL ends it"
        first = self._failure[0] + ", " if self._failure is not None and not self.stuck else ""
        fix = "the driver has to let go of it: reset the GPU, or reboot the node" if is_gpu else ""
        self._emit(ProbeEvent("failed", device=self._name, stage=self.stage, why=first + why, fix=fix))
        self.stuck += [Stuck(device.uuid, pid, start_ticks(pid)) for device in self.devices]

    def _fail(self, why: str, fix: str) -> None:
        self._emit(ProbeEvent("failed", device=self._name, stage=self.stage, why=why, fix=fix))


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
            # Until one of them says something, ``_POLL_MS`` at most: ends and deadlines make no sound.
            poller = select.poll()
            for fd in (fd for probe in running if not probe.done for fd in probe.process.open):
                poller.register(fd, select.POLLIN)
            poller.poll(_POLL_MS)
    finally:
        for probe in watched:
            with contextlib.suppress(OSError):
                probe.end_now()
