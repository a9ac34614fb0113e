"""A child process of ours that is asked on its stdin and answers on its stdout: what may hang, hangs there."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any

from mltop.probes.system.spawn import python_command, start_child

_CHUNK_BYTES = 262_144


class PolledChild:
    """Runs ``main()`` of a module. Nothing here waits for it but ``receive`` and ``has_ended`` for as long as they are
    told. Raises OSError when it cannot be started. Times are CLOCK_MONOTONIC.

    ``asked_s``: when it was asked what it has not answered whole, None: nothing. ``options``: Popen's.
    """

    def __init__(self, module: str, *args: str, **options: Any) -> None:
        self._process = start_child(python_command(module, *args), stdin=subprocess.PIPE, **options)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._answers.fileno(), False)
        self.pid = self._process.pid
        self.asked_s: float | None = None
        self.terminated_s: float | None = None
        self.killed_s: float | None = None

    def send(self, request: bytes) -> None:
        """Asks it; only when nothing is under way. A child that is gone or stuck is found by looking, not here."""
        self.asked_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._requests.fileno(), request)

    def has_spoken(self, wait_s: float = 0.0) -> bool:
        """Whether it says more within the time, or has closed its end."""
        poll = select.poll()
        poll.register(self._answers.fileno(), select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def receive(self, wait_s: float = 0.0) -> bytes:
        """The next piece of what it says; b"" when there is none within the time, and at its end."""
        return os.read(self._answers.fileno(), _CHUNK_BYTES) if self.has_spoken(wait_s) else b""

    def exit_code(self) -> int | None:
        """Its exit code, None while it runs; negative: killed by that signal."""
        return self._process.poll()

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether it ends within the time."""
        deadline_s = time.monotonic() + wait_s
        while self.exit_code() is None:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.005)
        return True

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self.terminated_s = time.monotonic()

    def kill(self) -> None:
        """Sends SIGKILL. It may outlive this for as long as the kernel holds it (state D)."""
        self._process.send_signal(signal.SIGKILL)
        self.killed_s = time.monotonic()

    def close(self) -> None:
        """Release our ends. Call it when the child is dead, or when it is abandoned."""
        self._requests.close()
        self._answers.close()
