"""What takes the screen long, done a little at a time: keys that come meanwhile go first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from textual.message_pump import MessagePump

from mltop.tui.render.guarded import guarded

SLICE_S = 0.006  # between two looks for keys


class Steps:
    """For the pump whose messages, keys among them, are not to wait."""

    def __init__(self, pump: MessagePump) -> None:
        self._pump = pump
        self._steps: Iterator[object] = iter(())

    def take(self, what: str, steps: Iterator[object], then: Callable[[], object]) -> None:
        """All of these, in place of those that are left of the last ones, ``then`` that. Few are taken at once."""
        self._steps = steps
        self._go_on(what, steps, then)

    def _go_on(self, what: str, steps: Iterator[object], then: Callable[[], object]) -> None:
        if steps is not self._steps:
            return
        if guarded(what, partial(_taken, steps), True):
            then()
        else:
            self._pump.call_later(self._go_on, what, steps, then)


def _taken(steps: Iterator[object]) -> bool:
    """Whether none is left."""
    until = time.perf_counter() + SLICE_S
    return all(time.perf_counter() < until for _ in steps)
