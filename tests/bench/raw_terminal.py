"""A program in a terminal of which only the bytes and their times are kept: what interprets them would take the CPU
that is measured. What it showed when is looked up afterwards.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pyte

from tests.terminal import set_size


class RawTerminal:
    """Runs ``argv`` in a terminal of ``columns`` x ``lines``; use as a context manager.

    ``bytes_per_s``: what the terminal takes, 0: any.
    """

    def __init__(
        self,
        argv: Sequence[str],
        columns: int = 120,
        lines: int = 40,
        *,
        env: Mapping[str, str] | None = None,
        bytes_per_s: int = 0,
    ) -> None:
        self.bytes_read = 0
        self.ended = False
        self._bytes_per_s = bytes_per_s
        self._chunks: list[tuple[float, bytes]] = []
        self._replayed = 0  # chunks that the emulator has seen
        self._emulator = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._emulator)
        self.started_at = time.monotonic()
        inherited = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        environment = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONDONTWRITEBYTECODE": ""}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            set_size(0, columns, lines)
            try:
                os.execvpe(argv[0], list(argv), {**environment, **(env or {})})
            finally:
                os._exit(127)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> RawTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + 10
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.01)
        self._closing.set()
        self._reader.join(5)
        os.close(self._fd)

    def send(self, keys: str) -> float:
        """Press them; returns when."""
        at = time.monotonic()
        os.write(self._fd, keys.encode())
        return at

    def ends_after(self, timeout_s: float = 30.0) -> float:
        """Seconds from now until the program has ended."""
        began = time.monotonic()
        while time.monotonic() < began + timeout_s:
            if os.waitpid(self.pid, os.WNOHANG) != (0, 0):
                return time.monotonic() - began
            time.sleep(0.002)
        raise AssertionError(f"it runs on for {timeout_s:g} s")

    def text(self) -> str:
        """What the terminal shows now."""
        while self._replayed < len(self._chunks):
            self._replay()
        return "\n".join(self._emulator.display)

    def waits(self, sent: Sequence[float], seen: Callable[[str], object]) -> list[float]:
        """From each of these times the seconds until ``seen`` of the text was something else than at that time; left
        out where it never was. Of what came since ``text`` was called for the last time.
        """
        waits = []
        for number, at in enumerate(sent):
            while self._replayed < len(self._chunks) and self._chunks[self._replayed][0] <= at:
                self._replay()
            before = seen("\n".join(self._emulator.display))
            until = sent[number + 1] if number + 1 < len(sent) else float("inf")
            while self._replayed < len(self._chunks) and self._chunks[self._replayed][0] <= until:
                came_at = self._replay()
                if seen("\n".join(self._emulator.display)) != before:
                    waits.append(came_at - at)
                    break
        return waits

    def _replay(self) -> float:
        at, data = self._chunks[self._replayed]
        self._stream.feed(data)
        self._replayed += 1
        return at

    def _read(self) -> None:
        size = max(1, self._bytes_per_s // 100) if self._bytes_per_s else 65536
        due = time.monotonic()
        while not self._closing.is_set():
            try:
                if not select.select([self._fd], [], [], 0.1)[0]:
                    continue
                data = os.read(self._fd, size)
            except OSError:  # the program has closed its end
                self.ended = True
                return
            self._chunks.append((time.monotonic(), data))
            self.bytes_read += len(data)
            if self._bytes_per_s:
                due = max(due, time.monotonic() - 0.05) + len(data) / self._bytes_per_s
                time.sleep(max(0.0, due - time.monotonic()))
