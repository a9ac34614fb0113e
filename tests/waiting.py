"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], timeout_s: float = 60.0, what: str = "condition", pause_s: float | None = None
) -> T:
    """The first truthy value of ``predicate``, polled every 10 ms; AssertionError naming ``what`` at the deadline.

    The deadline is for a machine that is ten times slower than usual, and costs nothing where it is not reached.

    One that takes long, as to look through all processes, is polled less often: what is waited for needs the CPU.
    ``pause_s``: between two looks, where the first of all values is wanted.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        value = predicate()
        if value:
            return value
        now = time.monotonic()
        assert now < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(min(0.25, max(0.01, 2 * (now - began))) if pause_s is None else pause_s)
