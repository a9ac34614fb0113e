"""The screen over a simulated fleet, nodes of 8 GPUs at 1 Hz in a 200x60 terminal, all of them changing.

CPU is a share of one core of the screen's own process; the simulator is its child and is not counted. Keys move
the cursor; the time ends when the node under the cursor is named in the terminal. The slow link takes 60 KB/s.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time

from tests.bench.raw_terminal import RawTerminal
from tests.bench.table import Goal, print_table
from tests.cpu import cpu_s, pss_mib
from tests.waiting import wait_until

COLUMNS, LINES = 200, 60
SLOW_BYTES_PER_S = 60_000
CURSOR = re.compile(r"(sim\d+) +live")  # the line below the map
ALL_LIVE_S = 90.0
NEVER_S, HANGS_AFTER_S = 1_000_000, 25

Row = tuple[str, float, Goal | None]


def main(quick: bool = False) -> None:
    nodes, keys = (64, 6) if quick else (512, 120)
    print_table(title(nodes), fast(nodes, 2.0 if quick else 30.0, keys))
    print_table(f"the same on a link of {SLOW_BYTES_PER_S // 1000} KB/s", slow(nodes, keys // 2))
    print_table(f"{nodes} simulated nodes whose job hangs", hung(nodes))


def title(nodes: int) -> str:
    return f"screen over {nodes} simulated nodes of 8 GPUs at 1 Hz, {COLUMNS}x{LINES}"


def fast(nodes: int, seconds: float, keys: int) -> list[Row]:
    with fleet_terminal(nodes) as terminal:
        connected_s = all_live(terminal)
        time.sleep(5.0)  # a benchmark measures time: let start-up pass
        before = cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
        time.sleep(seconds)
        after = cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
        used_s, bytes_read, wall_s = (b - a for a, b in zip(before, after, strict=True))
        pss = pss_mib(terminal.pid)
        measured_at = time.monotonic()
        waits_ms = [1000 * wait for wait in key_waits(terminal, keys)]
        time.sleep(seconds)
        grown_mib_per_min = 60 * (pss_mib(terminal.pid) - pss) / (time.monotonic() - measured_at)
        terminal.send("q")
        quit_s = terminal.ends_after()
    return [
        ("CPU of the screen, % of a core", 100 * used_s / wall_s, Goal(at_most=5.0)),
        ("bytes to the terminal, KB/s", bytes_read / 1000 / wall_s, Goal(at_most=40.0)),
        ("key to paint, median ms", statistics.median(waits_ms), None),
        ("key to paint, p99 ms", percentile(waits_ms, 99), Goal(at_most=50.0)),
        ("q to prompt, s", quit_s, Goal(at_most=0.3)),
        ("start to all nodes live, s", connected_s, None),
        ("PSS of the screen, MiB", pss, Goal(at_most=150.0)),
        ("it grows, MiB a minute", grown_mib_per_min, None),
    ]


def slow(nodes: int, keys: int) -> list[Row]:
    with fleet_terminal(nodes, bytes_per_s=SLOW_BYTES_PER_S) as terminal:
        all_live(terminal)
        time.sleep(5.0)
        waits_s = key_waits(terminal, keys)
        # The metric changes every glyph: each key repaints the whole map.
        busy_s = [first_answer(terminal, key) for key in ("m", "m", "v", "v", "m")]
    return [
        ("key to paint, median s", statistics.median(waits_s), None),
        ("key to paint, longest s", max(waits_s), Goal(at_most=2.0)),
        ("metric and view changed, longest s to the first byte", max(busy_s), Goal(at_most=2.0)),
    ]


def hung(nodes: int) -> list[Row]:
    """While the stacks of all ranks are dumped and judged."""
    with fleet_terminal(nodes, hangs_after_s=HANGS_AFTER_S) as terminal:
        all_live(terminal)
        time.sleep(max(0.0, HANGS_AFTER_S + 15.0 - (time.monotonic() - terminal.started_at)))
        cancelled = []
        for moment_s in (1.0, 2.5, 4.0):
            terminal.send("t")
            time.sleep(moment_s)
            terminal.text()
            sent_at = terminal.send("\x1b")
            time.sleep(5.0)
            cancelled += terminal.waits([sent_at], lambda text: "cancel" in text.replace("Esc cancels", ""))
        terminal.send("t")
        time.sleep(3.0)
        terminal.send("q")
        quit_s = terminal.ends_after()
    return [
        ("Esc to its answer during a dump, longest s", max(cancelled, default=float("inf")), Goal(at_most=0.1)),
        ("q to prompt during a dump, s", quit_s, Goal(at_most=0.3)),
    ]


def fleet_terminal(nodes: int, hangs_after_s: int = NEVER_S, bytes_per_s: int = 0) -> RawTerminal:
    argv = [sys.executable, "-m", "tests.bench.fleet_screen", str(nodes), str(hangs_after_s)]
    return RawTerminal(argv, COLUMNS, LINES, bytes_per_s=bytes_per_s)


def all_live(terminal: RawTerminal) -> float:
    """Seconds from the start until no node is connecting any more."""

    def is_live() -> bool:
        time.sleep(0.3)  # to look takes CPU
        assert not terminal.ended, terminal.text()
        return bool(CURSOR.search(terminal.text())) and "connecting" not in terminal.text()

    wait_until(is_live, ALL_LIVE_S, "all nodes live")
    return time.monotonic() - terminal.started_at


def key_waits(terminal: RawTerminal, count: int) -> list[float]:
    """Seconds from a key to the name of the next node, at odd moments of the second."""
    dice = random.Random(1)
    into_the_map(terminal)
    sent = []
    for turn in range(count):
        time.sleep(dice.uniform(0.1, 0.4))
        sent.append(terminal.send("lh"[turn // 8 % 2]))
    time.sleep(2.0)
    waits = terminal.waits(sent, node_under_cursor)
    assert waits, "the cursor never moved"
    return waits + [float("inf")] * (count - len(waits))  # not before the next key


def into_the_map(terminal: RawTerminal) -> None:
    """Past the problems, to the first node of the map."""

    def after(key: str) -> str:
        terminal.send(key)
        time.sleep(0.7)
        return node_under_cursor(terminal.text())

    for _ in range(40):
        if len({after("l"), after("l"), after("l")}) == 3:
            after("g")
            return
        after("j")
    raise AssertionError(f"no key moves the cursor of the map:\n{terminal.text()}")


def node_under_cursor(text: str) -> str:
    found = CURSOR.search(text)
    return found.group(1) if found else ""


def first_answer(terminal: RawTerminal, key: str) -> float:
    read = terminal.bytes_read
    at = terminal.send(key)
    wait_until(lambda: terminal.bytes_read > read, what="output after a key")
    return time.monotonic() - at


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    main("--quick" in sys.argv)
