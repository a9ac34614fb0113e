"""The newest samples of this node, for requests that need to know how it is right now."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable

from mltop.probes.model import Sample

KEPT = 3
HURRY_S = 0.5  # between two samples while somebody waits for them
LOOK_S = 1.0  # how late a hurry may begin
_POLL_S = 0.1  # how late a cancel may be


class RecentSamples:
    """The loop adds samples; requests wait for them in threads of their own."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, Sample]] = deque(maxlen=KEPT)  # monotonic s
        self._changed = threading.Condition()
        self._waiting = 0

    def add(self, sample: Sample) -> None:
        with self._changed:
            self._newest.append((time.monotonic(), sample))
            self._changed.notify_all()

    def pause(self, stop: threading.Event, until_s: float) -> None:
        """The loop's wait for its next sample (monotonic s): shorter while somebody waits for samples."""
        while not stop.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            if self._waiting:
                stop.wait(min(left_s, HURRY_S))
                return
            stop.wait(min(left_s, LOOK_S))

    def wait(
        self,
        after_s: float,
        timeout_s: float,
        cancelled: threading.Event,
        suits: Callable[[list[Sample]], bool] = lambda _: True,
    ) -> list[Sample]:
        """KEPT samples taken after ``after_s`` (monotonic) that suit; at the end of the time what there is."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    found = [sample for at_s, sample in self._newest if at_s > after_s]
                    left_s = deadline_s - time.monotonic()
                    if (len(found) == KEPT and suits(found)) or left_s <= 0 or cancelled.is_set():
                        return found or [sample for _, sample in self._newest]
                    self._changed.wait(min(left_s, _POLL_S))
            finally:
                self._waiting -= 1
