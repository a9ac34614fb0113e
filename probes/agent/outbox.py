"""Writes frames to the caller from a thread of its own: a caller that reads slowly never delays a sample.

Replies are kept in order and all of them; of samples only the newest waits.
"""

from __future__ import annotations

import os
import threading
from collections import deque


class Outbox:
    """Frames to a file descriptor. ``broken`` is set when the caller closed its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._wake = threading.Condition()
        self._replies: deque[bytes] = deque()
        self._sample: bytes | None = None
        self.broken = threading.Event()
        threading.Thread(target=self._run, name="mltop-outbox", daemon=True).start()

    def put_sample(self, frame: bytes) -> None:
        with self._wake:
            self._sample = frame
            self._wake.notify()

    def put(self, frame: bytes) -> None:
        with self._wake:
            self._replies.append(frame)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._replies or self._sample))
                frames = list(self._replies)
                self._replies.clear()
                if self._sample is not None:
                    frames.append(self._sample)
                    self._sample = None
            try:
                self._write(b"".join(frames))
            except OSError:
                self.broken.set()
                return

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
