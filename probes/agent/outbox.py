"""Writes frames to the caller from a thread of its own: a caller that reads slowly never delays a sample.

Replies are kept in order and all of them; of samples and pongs only the newest waits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Callable

MOST_REPLY_BYTES = 8 * 1024 * 1024  # whoever has more to say waits for the reader


class Outbox:
    """Frames to a file descriptor. ``on_broken`` is called in its thread when the caller closed its end."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._wake = threading.Condition()
        self._replies: deque[bytes] = deque()
        self._reply_bytes = 0
        self._newest: dict[str, bytes] = {}
        self._broken = False
        self.writes = 0  # grows with everything that left
        threading.Thread(target=self._run, name="mltop-outbox", daemon=True).start()

    def put_newest(self, kind: str, frame: bytes) -> None:
        """One that waits is replaced."""
        with self._wake:
            self._newest.pop(kind, None)  # what was put last goes out last
            self._newest[kind] = frame
            self._wake.notify_all()

    def put(self, frame: bytes) -> None:
        """Waits while too much is unread; returns at once when the caller is gone."""
        with self._wake:
            self._wake.wait_for(lambda: self._reply_bytes < MOST_REPLY_BYTES or self._broken)
            if not self._broken:
                self._replies.append(frame)
                self._reply_bytes += len(frame)
                self._wake.notify_all()

    def _run(self) -> None:
        try:
            while True:
                self._write(self._next())
        except OSError:
            with self._wake:
                self._broken = True
                self._wake.notify_all()
            self._on_broken()

    def _next(self) -> bytes:
        with self._wake:
            self._wake.wait_for(lambda: bool(self._replies or self._newest))
            frames = [*self._replies, *self._newest.values()]
            self._replies.clear()
            self._newest.clear()
            self._reply_bytes = 0
            self._wake.notify_all()
        return b"".join(frames)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
            self.writes += 1
