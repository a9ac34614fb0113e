"""The hub's one thread waits here: for file descriptors, for moments, and for calls from other threads."""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

Call = Callable[[], None]
BUFFER_BYTES = 65_536  # a pipe's capacity


class Poller:
    """Waits and calls back. All methods but ``post`` are for the thread that takes the turns."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.buffer = memoryview(bytearray(BUFFER_BYTES))  # for reads in this thread
        self._calls: dict[int, Call] = {}
        self._paused: list[tuple[float, int, Call]] = []
        self._posted: deque[Call] = deque()
        self._posting = threading.Lock()
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.watch(self._wake_read, self._take_posted)

    def watch(self, fd: int, call: Call, events: int = selectors.EVENT_READ) -> None:
        """Runs ``call`` whenever ``fd`` is ready, until ``unwatch``."""
        self._calls[fd] = call
        self._selector.register(fd, events, call)

    def unwatch(self, fd: int) -> None:
        """Ends ``watch``, to be called before ``fd`` is closed. Unknown descriptors are fine."""
        if self._calls.pop(fd, None) is not None and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def watches(self, fd: int) -> bool:
        return fd in self._calls

    def pause(self, fd: int, seconds: float) -> None:
        """Leaves ``fd`` alone for a while."""
        self._selector.unregister(fd)
        heapq.heappush(self._paused, (time.monotonic() + seconds, fd, self._calls[fd]))

    def post(self, call: Call) -> None:
        """Has ``call`` run in this thread, soon; once it is closed, in the caller's. For any thread."""
        with self._posting:
            if not self._closed:
                self._posted.append(call)
                with contextlib.suppress(BlockingIOError):  # it has enough to wake up for
                    os.write(self._wake_write, b"x")
                return
        call()

    def turn(self, timeout_s: float) -> None:
        """Waits for something at most ``timeout_s`` and runs what it calls for."""
        if self._paused:
            timeout_s = min(timeout_s, max(0.0, self._paused[0][0] - time.monotonic()))
        for key, _ in self._selector.select(timeout_s):
            call: Call = key.data
            # An earlier call of this turn may have closed it, and its number may be another's by now.
            if self._calls.get(key.fd) is call:
                call()
        self._resume()

    def close(self) -> None:
        """Runs what was posted last, then releases everything."""
        with self._posting:
            self._closed = True
        self._take_posted()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _resume(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            _, fd, call = heapq.heappop(self._paused)
            if self._calls.get(fd) is call:
                self._selector.register(fd, selectors.EVENT_READ, call)

    def _take_posted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._posted:
            self._posted.popleft()()
