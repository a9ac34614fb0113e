"""When a probe run has to end early: the user's wish, or its deadline."""

from __future__ import annotations

import threading
import time


class Stop:
    """``deadline``: monotonic s. ``cancel`` may be called from any thread."""

    def __init__(self, deadline_s: float) -> None:
        self.began = time.monotonic()
        self.deadline_s = deadline_s
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.elapsed_s

    @property
    def now(self) -> bool:
        return self.cancelled.is_set() or self.left_s <= 0
