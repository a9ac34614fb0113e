"""A real terminal: nothing is written while nothing changes, and everything when others may have written there."""

from __future__ import annotations

import os
import signal
import time

from tests.system.screen.test_screen_terminal import program
from tests.terminal import Terminal
from tests.waiting import wait_until


def quiet(terminal: Terminal) -> None:
    """Until nothing has been written for a second."""
    seen, since = terminal.bytes_read, time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        if terminal.bytes_read != seen:
            seen, since = terminal.bytes_read, time.monotonic()
        return time.monotonic() - since > 1.0

    wait_until(is_quiet, 60, "a screen on which nothing changes")


def test_a_still_screen_costs_nothing() -> None:
    with program("still") as terminal:
        terminal.wait_for("? help")
        quiet(terminal)  # its session goes on bringing the same views


def test_a_clock_costs_its_digits() -> None:
    with program("clock", columns=120, lines=40) as terminal:
        terminal.wait_for("? help")
        terminal.wait_for("LOST since")
        time.sleep(1.0)  # what the first views still bring
        shown, written, views = terminal.text(), terminal.bytes_read, 0
        deadline = time.monotonic() + 30
        while views < 10 and time.monotonic() < deadline:
            if terminal.text() != shown:
                shown, views = terminal.text(), views + 1
            time.sleep(0.01)
        assert views == 10
        assert terminal.bytes_read - written < 10 * 300, "as much as was seen of it"


def spoil(terminal: Terminal) -> None:
    """What `wall` or the kernel's console does to it."""
    with terminal._lock:
        terminal._stream.feed(b"\x1b[2J\x1b[5;3HBroadcast message from root")
        terminal._shown = None
    assert "? help" not in terminal.text()


def test_a_key_brings_everything_back() -> None:
    with program("still") as terminal:
        terminal.wait_for("? help")
        quiet(terminal)
        spoil(terminal)
        terminal.send("r")
        terminal.wait_for("? help")
        terminal.wait_for("LOST since")
        assert "Broadcast" not in terminal.text()


def test_another_pane_is_written_whole() -> None:
    with program("still") as terminal:
        terminal.wait_for("? help")
        quiet(terminal)
        spoil(terminal)
        terminal.send("3")
        terminal.wait_for("? help")
        wait_until(lambda: "Broadcast" not in terminal.text(), what="a screen of ours alone")


def test_after_a_stop_everything_is_written_again() -> None:
    with program("still") as terminal:
        terminal.wait_for("? help")
        quiet(terminal)
        os.kill(terminal.pid, signal.SIGSTOP)
        spoil(terminal)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.wait_for("? help")
        wait_until(lambda: "Broadcast" not in terminal.text(), what="a screen of ours alone")
