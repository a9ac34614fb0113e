"""A real terminal for tests: a program behind a pty, its screen kept by pyte."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence

import pyte

from tests.waiting import wait_until


class Terminal:
    """Runs ``argv`` in a terminal of ``columns`` x ``lines``; use as a context manager."""

    def __init__(
        self,
        argv: Sequence[str],
        columns: int = 120,
        lines: int = 40,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.raw = bytearray()
        self._shown: str | None = None  # until the screen changes: who waits looks a hundred times a second
        self.started_at = time.monotonic()
        self.exit_code: int | None = None
        # Test runners set LINES and COLUMNS, which would win over the terminal's own size.
        inherited = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        environment = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            set_size(0, columns, lines)  # before the program looks
            if cwd:
                os.chdir(cwd)
            try:
                os.execvpe(argv[0], list(argv), environment)
            finally:
                os._exit(127)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            if self.exit_code is None:
                os.kill(self.pid, signal.SIGKILL)
                self.wait(5.0)

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:  # what the program draws after the signal must meet the new screen
            self.screen.resize(lines, columns)
            self._shown = None
            set_size(self._fd, columns, lines)

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def text(self) -> str:
        with self._lock:
            if self._shown is None:
                self._shown = "\n".join(line.rstrip() for line in self.screen.display)
            return self._shown

    def wait_for(self, words: str, timeout_s: float = 30.0) -> str:
        """The screen's text once ``words`` stand on it."""
        try:
            wait_until(lambda: words in self.text(), timeout_s, f"{words!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{self.text()}") from None
        return self.text()

    def wait_for_no(self, words: str, timeout_s: float = 30.0) -> None:
        """Until they do not stand on the screen. What lies below a box may be seen all the time: it tells nothing."""
        try:
            wait_until(lambda: words not in self.text(), timeout_s, f"{words!r} leaving the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{self.text()}") from None

    def is_cooked(self) -> bool:
        """Whether it is as a shell's prompt wants it: lines, with echo."""
        wanted = termios.ICANON | termios.ECHO
        return termios.tcgetattr(self._fd)[3] & wanted == wanted

    def hang_up(self) -> None:
        """Close the terminal as a dying ssh does: the program gets SIGHUP."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def wait(self, timeout_s: float = 30.0) -> int | None:
        """The exit code (negative for a signal), None when it still runs at the timeout."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.005)
        if self.exit_code is not None:
            self._reader.join(2.0)  # what it has written last; longer only where others have the terminal, too
        return self.exit_code

    def _read(self) -> None:
        while (fd := self._fd) >= 0:
            try:
                if not select.select([fd], [], [], 0.1)[0]:
                    continue
                data = os.read(fd, 65536)
            except (OSError, ValueError):
                return
            if not data:
                return
            with self._lock:
                self.bytes_read += len(data)
                self.raw += data
                self._shown = None
                self._stream.feed(data)


def set_size(fd: int, columns: int, lines: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
