"""Threads that read and judge let the one that draws go first.

Python runs one thread at a time. Of four that compute each gets a quarter, and what a key does takes four times as
long. Whoever computes for long asks here, between two steps and with no lock held, whether to wait a little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

STANDS_S = 0.25  # a screen that computes for longer is held up itself: by a shell, by a terminal that takes nothing
MOST_S = 0.01  # how long one step waits: a screen that draws all the time may not stop the rest
LAST_S = 1.0  # … when the program ends: what is read then is for nobody
LOOK_S = 0.001


class _Drawing:
    """``thread``: of the loop that draws, 0 for none; ``busy``: it has something to do; ``ends``: the last."""

    thread = 0
    busy = ends = False
    since = 0.0  # monotonic s: when it was last seen to have nothing to do, or to begin


def give_way() -> None:
    """Wait while the screen computes, for a moment at most. The screen's own thread does not wait."""
    if not _Drawing.busy or threading.get_ident() == _Drawing.thread:
        return
    now = time.monotonic()
    if now - _Drawing.since > STANDS_S and not _Drawing.ends:
        return
    until = now + (LAST_S if _Drawing.ends else MOST_S)
    while _Drawing.busy and time.monotonic() < until:
        time.sleep(LOOK_S)


def end_is_near() -> None:
    """The loop that draws is about to end the program: others are to leave it all there is."""
    _Drawing.ends = True


def draws_here(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """The calling thread's ``loop`` draws: others give way while it has something to do. Returns what ends that."""
    selector = getattr(loop, "_selector", None)  # where there is none, nobody waits for it
    if selector is None:
        return lambda: None
    select = selector.select

    def telling(timeout: float | None = None) -> object:
        _Drawing.busy = timeout is not None and timeout <= 0  # more is to be done at once
        try:
            return select(timeout)
        finally:
            _Drawing.busy, _Drawing.since = True, time.monotonic()

    def end() -> None:
        selector.select = select
        _Drawing.busy, _Drawing.ends, _Drawing.thread = False, False, 0

    selector.select, _Drawing.thread = telling, threading.get_ident()
    return end
