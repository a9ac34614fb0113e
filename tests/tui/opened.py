"""The app on a terminal of a given size, without a terminal; its screen as plain text."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from mltop.tui.app import judging
from mltop.tui.app.app import MltopApp
from tests.tui.fake_session import FakeSession

TIMEOUT_S = 60.0
GOLDEN_S = 30.0
GOLDENS = Path(__file__).parent / "goldens"


@dataclass
class Opened:
    app: MltopApp
    pilot: Pilot[None]
    session: FakeSession

    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips]

    def text(self) -> str:
        return "\n".join(self.lines())

    async def press(self, *keys: str) -> None:
        await self.app._press_keys(keys)
        await self.pilot.pause()

    async def until(self, predicate: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        await self.pilot.pause()
        while not predicate():
            assert time.monotonic() < deadline, f"{what} did not happen; the screen shows:\n{self.text()}"
            await asyncio.sleep(0.01)
            await self.pilot.pause()

    async def has_lines(self, count: int) -> None:
        await self.until(lambda: len(self.lines()) == count, f"{count} lines")

    async def shows(self, *words: str) -> str:
        """Waits until all words stand on the screen."""
        await self.until(lambda: all(word in self.text() for word in words), f"{words} on the screen")
        return self.text()

    async def shows_not(self, words: str) -> str:
        await self.until(lambda: words not in self.text(), f"{words!r} leaving the screen")
        return self.text()

    async def is_golden(self, name: str, size: tuple[int, int]) -> None:
        """The screen becomes, letter by letter, what the file of this name says; or that file is made from it."""
        path = GOLDENS / f"{name}-{size[0]}x{size[1]}.txt"
        if os.environ.get("MLTOP_TEST_GOLDENS") == "write":
            await self.pilot.pause(2.0)  # until the feed has judged and all is drawn
            path.write_text(self._lines(), encoding="utf-8")
            return
        golden, deadline = path.read_text(encoding="utf-8"), time.monotonic() + GOLDEN_S
        while self._lines() != golden and time.monotonic() < deadline:  # frames are skipped on a busy machine
            await self.pilot.pause(0.01)
        assert self._lines() == golden

    def _lines(self) -> str:
        return self.text().rstrip("\n") + "\n"

    async def step(self, count: int = 1) -> None:
        """The session goes on, and the screen's feed has taken it."""
        for _ in range(count):
            view = self.session.step()
            await self.until(
                lambda: self.app.newest is not None and self.app.newest.view.serial == view.serial,  # noqa: B023
                "the newest view",
            )


@asynccontextmanager
async def opened(
    session: FakeSession | None = None, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Opened]:
    session = session or FakeSession()
    with utc(), pytest.MonkeyPatch.context() as patch:
        # A stale node is a problem only some seconds after the start: however long a test takes, it is none here.
        patch.setattr(judging, "SETTLING_S", 600.0)
        app = MltopApp(session, **options)
        async with app.run_test(size=size) as pilot:
            screen = Opened(app, pilot, session)
            await screen.until(lambda: app.picture is not None, "the first picture")
            yield screen


@contextmanager
def utc() -> Iterator[None]:
    """Clock times on the screen do not depend on where the tests run."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()
