"""When to start a child again after one was stuck or died, and which GPUs to leave out. Monotonic seconds.

One child process, seen from the agent: start it, ask it, end it. Nothing here waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

from mltop.probes.collect.nvml.calls import Breadcrumb, Note, anonymous_file
from mltop.probes.model import Fault
from mltop.probes.system.spawn import die_with_parent, python_command


@dataclass(frozen=True)
class Pauses:
    """Seconds between attempts. A loop of restarts would hide what happened and load a sick driver."""

    free_restarts: int = 3
    longest_restart_s: float = 60.0
    forget_failures_s: float = 600.0
    init_retry_first_s: float = 2.0  # no driver, no permission: asked again, then after twice as long …
    init_retry_s: float = 30.0  # … and at last this often
    skipped_gpu_s: float = 300.0  # doubled each time it gets stuck again
    longest_skipped_gpu_s: float = 3600.0


class Restarts:
    """Three restarts at once, then after 1, 2, 4 … 60 s."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._last_failure_s = 0.0
        self.next_start_s = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether so many children ended that the next ones are delayed."""
        return self._failures > self._pauses.free_restarts

    def failed(self, at_s: float) -> None:
        if at_s - self._last_failure_s > self._pauses.forget_failures_s:
            self._failures = 0
        self._failures += 1
        self._last_failure_s = at_s
        beyond = self._failures - self._pauses.free_restarts
        pause_s = min(2.0 ** (beyond - 1), self._pauses.longest_restart_s) if beyond > 0 else 0.0
        self.next_start_s = at_s + pause_s


class Retries:
    """After a library that could not be used: 2, 4, 8 … 30 s."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self.next_s = 0.0

    def failed(self, at_s: float, has_worked: bool) -> None:
        """``has_worked``: the library answered before, so its first failure is followed by a try at once."""
        doublings = self._failures - has_worked
        self._failures += 1
        pause_s = min(self._pauses.init_retry_first_s * 2.0 ** min(doublings, 16), self._pauses.init_retry_s)
        self.next_s = at_s + (pause_s if doublings >= 0 else 0.0)

    def answered(self) -> None:
        self._failures = 0


@dataclass
class Skip:
    reason: str
    until_s: float
    times: int = 1
    code: Fault = "stuck"


Key = TypeVar("Key", int, str)


@dataclass
class Skips(Generic[Key]):
    """What is left out because it got stuck: GPUs by NVML index, or parts of what is read by name."""

    pauses: Pauses
    _by_key: dict[Key, Skip] = field(default_factory=dict)

    def add(self, key: Key, reason: str, at_s: float, code: Fault = "stuck") -> None:
        before = self._by_key.get(key)
        times = before.times + 1 if before else 1
        pause_s = min(self.pauses.skipped_gpu_s * 2.0 ** (times - 1), self.pauses.longest_skipped_gpu_s)
        self._by_key[key] = Skip(reason, at_s + pause_s, times, code)

    def now(self, at_s: float) -> frozenset[Key]:
        """Those not to be touched at this moment."""
        return frozenset(key for key, skip in self._by_key.items() if at_s < skip.until_s)

    def answered(self, keys: set[Key]) -> None:
        """These were read: they are not skipped any more."""
        for key in keys & self._by_key.keys():
            del self._by_key[key]

    def items(self) -> list[tuple[Key, Skip]]:
        return sorted(self._by_key.items(), key=itemgetter(0))


CHILD = "mltop.probes.collect.nvml.child"
MAX_ANSWER_BYTES = 16 * 1024 * 1024
PIECE_S = 0.05  # from one piece of an answer to the next: the child has only to write it


class Worker:
    """A running child. Raises OSError when it cannot be started. Times are CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._crumb = Breadcrumb.create()
        self._errors_fd = anonymous_file("mltop-nvml-stderr")
        try:
            self._process = self._start()
        except BaseException:
            self._crumb.close()
            os.close(self._errors_fd)
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests_fd = self._process.stdin.fileno()
        self._answers_fd = self._process.stdout.fileno()
        os.set_blocking(self._requests_fd, False)
        os.set_blocking(self._answers_fd, False)
        self._received = bytearray()
        self.pid = self._process.pid
        self.asked_s: float | None = None  # when the poll under way was asked for
        self.received_s: float | None = None  # when the newest piece of its answer came
        self.terminated_s: float | None = None
        self.killed_s: float | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python_command(CHILD, str(self._crumb.fd)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors_fd,
            bufsize=0,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one prepared system call)
            pass_fds=(self._crumb.fd,),
        )

    def ask(self, request: dict[str, Any]) -> None:
        """Start one poll. A child that is gone is found by ``exit_code``, not here."""
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._requests_fd, line)
        self.asked_s, self.received_s = time.monotonic(), None

    @property
    def is_overlong(self) -> bool:
        """It answers more than any machine has to say: it will not come to an end."""
        return len(self._received) > MAX_ANSWER_BYTES

    def answer(self, wait_s: float) -> dict[str, Any] | None:
        """The answer to the poll under way, waiting for it at most ``wait_s``; None while there is none.

        One that is larger than a pipe comes in pieces: the child writes the next when this has read the one before.
        """
        if self.asked_s is None:
            return None
        deadline_s = time.monotonic() + wait_s
        while not self._received.endswith(b"\n"):
            now_s = time.monotonic()
            more_s = 0.0 if self.received_s is None else self.received_s + PIECE_S - now_s
            remaining_s = max(0.0, deadline_s - now_s, more_s)
            if self.is_overlong or not self._is_readable(remaining_s) or not self._receive():
                return None
        line = bytes(self._received)
        self._received.clear()
        self.asked_s = None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _is_readable(self, wait_s: float) -> bool:
        poll = select.poll()
        poll.register(self._answers_fd, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def _receive(self) -> bool:
        """False at end-of-file."""
        try:
            data = os.read(self._answers_fd, 262_144)
        except BlockingIOError:
            return True
        self._received += data
        if data:
            self.received_s = time.monotonic()
        return bool(data)

    def note(self) -> Note | None:
        """The NVML call that the child is in, or was in when it died."""
        return self._crumb.read()

    def exit_code(self) -> int | None:
        """None while it runs; negative: killed by that signal."""
        return self._process.poll()

    def terminate(self) -> None:
        # A killed NVML client can leave the GPU unusable (NVIDIA/dcgm-exporter#84), so SIGTERM comes first.
        self._process.send_signal(signal.SIGTERM)
        self.terminated_s = time.monotonic()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.killed_s = time.monotonic()

    def last_words(self) -> str:
        """The last line that the child wrote to stderr, before faulthandler's report of a crash."""
        size = os.fstat(self._errors_fd).st_size
        tail = os.pread(self._errors_fd, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        tail = tail.partition("Fatal Python error")[0]
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def kernel_state(self) -> str:
        """E.g. "state D, in rm_ioctl", "" when unknown. Always the real /proc: it is our own child."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
            with open(f"/proc/{self.pid}/wchan", encoding="ascii", errors="replace") as file:
                wchan = file.read().strip()
        except (OSError, IndexError):
            return ""
        return f"state {state}" + (f", in {wchan}" if wchan not in ("", "0") else "")

    def close(self) -> None:
        """Release our ends. Call it when the child is dead, or when it is abandoned."""
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                file.close()
        self._crumb.close()
        os.close(self._errors_fd)
