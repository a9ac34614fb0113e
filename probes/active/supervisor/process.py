"""One probe process: started so that nothing of it can stay, read without waiting, ended with its whole group.

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
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from mltop.probes.active.child import Lines
from mltop.probes.active.host import stat_fields
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
