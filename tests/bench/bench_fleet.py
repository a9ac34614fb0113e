"""The screen over a simulated fleet, 512 nodes of 8 GPUs at 1 Hz in a 200x60 terminal, all of them changing.

CPU is a share of one core of the screen's own process; the simulator is its child and is not counted. Keys move
the cursor; the time ends when the node under the cursor is named in the terminal. The slow link takes 60 KB/s.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import re
import select
import signal
import statistics
import sys
import threading
import time

from tests.bench.table import Goal, print_table
from tests.cpu import cpu_s, rss_mib
from tests.terminal import set_size
from tests.waiting import wait_until

COLUMNS, LINES = 200, 60
SLOW_BYTES_PER_S = 60_000
# The line below the map: the node's name, then its state, whatever colours lie between.
CURSOR = re.compile(rb"(sim\d+)(?:\x1b\[[0-9;]*m| )+live")
ALL_LIVE_S = 60.0


def main(quick: bool = False) -> None:
    nodes, seconds, keys = (64, 2.0, 6) if quick else (512, 30.0, 120)
    print_table(f"screen over {nodes} simulated nodes of 8 GPUs at 1 Hz, {COLUMNS}x{LINES}", fast(nodes, seconds, keys))
    print_table(f"the same on a link of {SLOW_BYTES_PER_S // 1000} KB/s", slow(nodes, keys // 2))


def fast(nodes: int, seconds: float, keys: int) -> list[tuple[str, float, Goal | None]]:
    with RawTerminal(program(nodes)) as terminal:
        connected_s = all_live(terminal)
        time.sleep(5.0)  # a benchmark measures time: let start-up pass
        before = cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
        time.sleep(seconds)
        after = cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
        used_s, bytes_read, wall_s = (b - a for a, b in zip(before, after, strict=True))
        rss = rss_mib(terminal.pid)
        waits_ms = [1000 * wait for wait in key_waits(terminal, keys, ("l", "h"))]
    return [
        ("CPU of the screen, % of a core", 100 * used_s / wall_s, Goal(at_most=5.0)),
        ("bytes to the terminal, KB/s", bytes_read / 1000 / wall_s, Goal(at_most=40.0)),
        ("key to paint, median ms", statistics.median(waits_ms), None),
        ("key to paint, p99 ms", percentile(waits_ms, 99), Goal(at_most=50.0)),
        ("start to all nodes live, s", connected_s, None),
        ("RSS of the screen, MiB", rss, None),
    ]


def slow(nodes: int, keys: int) -> list[tuple[str, float, Goal | None]]:
    with RawTerminal(program(nodes), bytes_per_s=SLOW_BYTES_PER_S) as terminal:
        all_live(terminal)
        time.sleep(5.0)
        waits_s = key_waits(terminal, keys, ("l", "h"))
        # The metric changes every glyph: each key repaints the whole map.
        busy_s = [first_answer(terminal, key) for key in ("m", "m", "v", "v", "m")]
    return [
        ("key to paint, median s", statistics.median(waits_s), None),
        ("key to paint, longest s", max(waits_s), Goal(at_most=2.0)),
        ("metric and view changed, longest s to the first byte", max(busy_s), Goal(at_most=2.0)),
    ]


def program(nodes: int) -> list[str]:
    return [sys.executable, "-m", "tests.bench.fleet_screen", str(nodes)]


def all_live(terminal: RawTerminal) -> float:
    """Seconds from the start until no node is connecting any more."""
    wait_until(lambda: terminal.ended or CURSOR.search(terminal.recent()), ALL_LIVE_S, "a node under the cursor")
    assert not terminal.ended, terminal.recent().decode(errors="replace")
    wait_until(lambda: b"connecting" not in terminal.take_recent(3.0), ALL_LIVE_S, "all nodes live")
    return time.monotonic() - terminal.started_at - 3.0


def key_waits(terminal: RawTerminal, count: int, keys: tuple[str, str]) -> list[float]:
    """Seconds from a key to the name of the next node, at odd moments of the second."""
    dice = random.Random(1)
    for key in "jjj":  # to the healthy nodes
        terminal.send(key)
        time.sleep(0.3)
    waits = []
    for turn in range(count):
        time.sleep(dice.uniform(0.1, 0.4))
        key = keys[turn // 8 % 2]
        before = terminal.cursor()
        sent_at = time.monotonic()
        terminal.send(key)
        waits.append(terminal.cursor_moved(before, sent_at))
    return waits


def first_answer(terminal: RawTerminal, key: str) -> float:
    at, read = time.monotonic(), terminal.bytes_read
    terminal.send(key)
    wait_until(lambda: terminal.bytes_read > read, 30, "output after a key")
    return time.monotonic() - at


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class RawTerminal:
    """A program in a terminal of which only the bytes are kept: what interprets them would take the CPU measured."""

    def __init__(self, argv: list[str], bytes_per_s: int = 0) -> None:
        self.bytes_read = 0
        self._bytes_per_s = bytes_per_s
        self._recent = bytearray()
        self.ended = False
        self._cursor: tuple[bytes, float] = (b"", 0.0)
        self._moved = threading.Condition()
        self.started_at = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONDONTWRITEBYTECODE": ""}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            set_size(0, COLUMNS, LINES)
            try:
                os.execvpe(argv[0], argv, environment)
            finally:
                os._exit(127)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> RawTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        self._closing.set()
        self._reader.join(5)
        os.close(self._fd)

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def recent(self) -> bytes:
        with self._moved:
            return bytes(self._recent)

    def take_recent(self, seconds: float) -> bytes:
        """What comes in the next ``seconds``."""
        with self._moved:
            self._recent.clear()
        time.sleep(seconds)
        return self.recent()

    def cursor(self) -> bytes:
        """The node under the cursor, as last drawn."""
        with self._moved:
            return self._cursor[0]

    def cursor_moved(self, before: bytes, sent_at: float, timeout_s: float = 30.0) -> float:
        """Seconds from ``sent_at`` until another node than ``before`` is drawn."""
        with self._moved:
            assert self._moved.wait_for(lambda: self._cursor[0] != before, timeout_s), f"the cursor stays on {before!r}"
            return self._cursor[1] - sent_at

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
            self._take(data, time.monotonic())
            if self._bytes_per_s:
                due = max(due, time.monotonic() - 0.05) + len(data) / self._bytes_per_s
                time.sleep(max(0.0, due - time.monotonic()))

    def _take(self, data: bytes, now: float) -> None:
        with self._moved:
            self.bytes_read += len(data)
            self._recent += data
            del self._recent[:-200_000]
            found = CURSOR.findall(self._recent, max(0, len(self._recent) - len(data) - 200))
            if found and found[-1] != self._cursor[0]:
                self._cursor = (found[-1], now)
                self._moved.notify_all()


if __name__ == "__main__":
    main("--quick" in sys.argv)
