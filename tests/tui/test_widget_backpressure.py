"""Whether output waits, asked of Textual's own writer thread behind a terminal that does not read."""

import threading
from types import SimpleNamespace

from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver

from mltop.tui.terminal.painting import terminal_busy
from tests.waiting import wait_until


class SlowTerminal:
    """Takes a write only when it is allowed to."""

    def __init__(self):
        self.reads = threading.Semaphore(0)

    def write(self, text):
        assert self.reads.acquire(timeout=10)

    def flush(self):
        pass


def test_output_that_waits_is_seen_and_gone_when_it_is_written():
    terminal = SlowTerminal()
    writer = WriterThread(terminal)
    app = SimpleNamespace(_driver=SimpleNamespace(_writer_thread=writer))
    assert not terminal_busy(app)
    writer.start()
    try:
        writer.write("frame 1")
        writer.write("frame 2")
        assert terminal_busy(app)
        terminal.reads.release(2)
        wait_until(lambda: not terminal_busy(app), what="an empty queue")
    finally:
        terminal.reads.release(10)
        writer.stop()


def test_textuals_driver_still_has_the_thread_we_look_at():
    assert "_writer_thread" in LinuxDriver.__init__.__code__.co_names


async def test_an_app_without_a_writer_thread_is_not_busy():
    async with App().run_test() as pilot:
        assert not terminal_busy(pilot.app)
    assert not terminal_busy(App())
