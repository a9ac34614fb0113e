"""What the app writes has a terminal show what Textual's own way shows, whatever is pressed, resized and asked."""

from __future__ import annotations

import io
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pyte
import pytest
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.drivers._writer_thread import WriterThread
from textual.screen import Screen

from mltop.probes.reach.view import FleetView
from mltop.tui.app.app import MltopApp
from mltop.tui.terminal.driver import WaitingDriver
from mltop.tui.terminal.painting import Terminal
from tests.shown import differences
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import opened, utc

KEYS = [
    *"123456789jkGgstpmvozc/ xMA?r+",
    "tab",
    "enter",
    "enter",
    "escape",
    "escape",
    "down",
    "down",
    "end",
    "pagedown",
]
KEYS += ["ctrl+p", "f4", "space", "left", "right", "x", "backspace", "home"]
SIZES = [(80, 24), (120, 40), (200, 60), (20, 5), (40, 12), (15, 3), (121, 33)]


class TwoTerminals(Terminal):
    """Every update goes to two emulators: Textual's own sequence to one, ours to the other."""

    compared = bytes_ours = bytes_theirs = 0

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def begin(self, width: int, height: int) -> None:
        super().begin(width, height)
        self.ours, self.theirs = (pyte.Screen(max(1, width), max(1, height)) for _ in range(2))
        for emulator in (self.ours, self.theirs):
            pyte.Stream(emulator).feed("\x1b[?7l")

    def sequence(self, update: LayoutUpdate | ChopsUpdate, cursor: tuple[int, int], colors: ColorSystem) -> str:
        ours = super().sequence(update, cursor, colors)
        theirs = update.render_segments(self._console)
        pyte.Stream(self.ours).feed(ours)
        pyte.Stream(self.theirs).feed(theirs)
        self.bytes_ours += len(ours)
        self.bytes_theirs += len(theirs)
        self.compared += 1
        assert differences(self.ours, self.theirs) == []
        return ours


class Compared(MltopApp):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._terminal = TwoTerminals(self.console)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, LayoutUpdate | ChopsUpdate):  # tests have no terminal to write to
            self.painted(screen, renderable)
        super()._display(screen, renderable)


TRUECOLOR, SIXTEEN = {"COLORTERM": "truecolor"}, {"COLORTERM": "", "TERM": "xterm"}
NO_COLOR = {"NO_COLOR": "1"}


@pytest.mark.parametrize(
    ("make", "colours"),
    [
        (fake_views.one_node, TRUECOLOR),
        (fake_views.fleet, TRUECOLOR),
        (fake_views.fleet, SIXTEEN),
        (fake_views.one_node, NO_COLOR),
    ],
    ids=["node", "fleet", "16-colours", "no-colour"],
)
async def test_both_show_the_same_whatever_is_pressed(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], FleetView], colours: dict[str, str]
) -> None:
    for name in ("NO_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | colours).items():
        monkeypatch.setenv(name, value)
    dice = random.Random(str(colours))
    session = FakeSession([make(tick) for tick in range(30)])
    with utc():
        app = Compared(session)
        async with app.run_test(size=(120, 40)) as pilot:
            for _ in range(40):
                await pilot.press(dice.choice(KEYS))
                if dice.random() < 0.15:
                    await pilot.resize_terminal(*dice.choice(SIZES))
                if dice.random() < 0.3:
                    session.step()
                for dump in session.dumps:
                    dump.finish()
            await pilot.pause(0.2)
        terminal = app._terminal
        assert isinstance(terminal, TwoTerminals) and terminal.compared > 30
        assert terminal.bytes_ours < terminal.bytes_theirs / 2


async def test_a_terminal_that_takes_nothing_holds_up_nobody() -> None:
    """What is dropped then is known to be missing, and painted when the terminal takes again."""
    signals = (signal.SIGTSTP, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in signals}
    async with opened(size=(80, 24)) as screen:
        try:
            driver = WaitingDriver(screen.app, size=(80, 24))
            takes = threading.Event()
            terminal = io.StringIO()
            terminal.write = lambda text: (takes.wait(30) and len(text)) or 0  # type: ignore[method-assign]
            writer = driver._writer_thread = WriterThread(terminal)
            writer.start()
            writing = threading.Thread(target=lambda: [driver.write("x") for _ in range(100)], daemon=True)
            writing.start()
            writing.join(30)
            assert not writing.is_alive(), "it waits for its terminal"
            assert driver.missed
            screen.app._painted = screen.app.screen
            theirs, screen.app._driver = screen.app._driver, driver
            assert screen.app._is_behind(driver) and screen.app._painted is None
            takes.set()
            await screen.until(lambda: writer._queue.empty(), "that the terminal takes it")
            assert not screen.app._is_behind(driver) and not driver.missed
            screen.app._driver = theirs
            driver.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
