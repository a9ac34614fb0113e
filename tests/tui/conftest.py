"""Every test starts an app; what all of them would compute alike is computed once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual._context import active_app
from textual.css.stylesheet import Stylesheet

from mltop.tui.screens import graphs

_PARSED: dict[tuple[Any, ...], list[Any]] = {}


@pytest.fixture(scope="session", autouse=True)
def _style_sheets_are_parsed_once() -> Iterator[None]:
    """Textual parses the same text again for every app and at the first visit of every pane: a sixth of the CPU."""
    parse = Stylesheet._parse_rules

    def parse_once(self: Stylesheet, *args: Any, **named: Any) -> list[Any]:
        key = (*args, *sorted(named.items()), *self._variables.items())
        if key not in _PARSED:
            _PARSED[key] = parse(self, *args, **named)
        return _PARSED[key]

    Stylesheet._parse_rules = parse_once  # type: ignore[method-assign]
    yield
    Stylesheet._parse_rules = parse  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _graphs_are_of_the_newest_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which frames a busy machine skips is not seen on the screen."""
    monkeypatch.setattr(graphs, "REDRAWN_S", 0.001)


@pytest.fixture(autouse=True)
async def _tasks_are_eager() -> None:
    """As under ``App.run`` from Python 3.12 on, and unlike ``App.run_test``: a widget's task begins when it is made."""
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)


MOST_FRAMES = 20  # that one thing leads to


async def nothing_ready(*_: float) -> None:
    """Until the event loop has nothing to do but to wait, for time or for a thread."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)


async def all_drawn(*_: float) -> None:
    """The same, and the frames are drawn that come of it."""
    app = active_app.get()
    for _frame in range(MOST_FRAMES):
        await nothing_ready()
        if not app._running or not app.screen_stack:
            return
        if app._resize_timer is not None:  # it holds a new size back for a moment, as there may be another
            app._check_resize()
            continue
        screen = app.screen
        wants = (screen._layout_required, screen._scroll_required, screen._repaint_required, screen._dirty_widgets)
        if not any(wants) and not screen._callbacks:
            return
        screen._on_timer_update()


@pytest.fixture(scope="session", autouse=True)
def _idle_is_when_nothing_is_ready() -> Iterator[None]:
    """Textual's pilot waits after each key until the process has not used its CPU for 20 ms. That is slow, and on a
    busy machine it means nothing: a process that is not let run is idle, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textual.app, "wait_for_idle", nothing_ready)  # between two keys nothing need be drawn
        patch.setattr(textual.pilot, "wait_for_idle", all_drawn)
        yield
