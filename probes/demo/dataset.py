"""The demo job's dataset, with the bug that `mltop` is to find."""

from __future__ import annotations

import random
import threading
from typing import Callable

TOKENS = 64  # per example


class ShardDataset:
    """Examples behind a cache guarded by a lock. An unreadable shard is skipped, with the lock still held."""

    def __init__(self, length: int, unreadable: Callable[[int], bool], on_skip: Callable[[], None]) -> None:
        """``unreadable`` says whether this rank gets stuck at an index; ``on_skip`` is told just before."""
        self.length = length
        self.unreadable = unreadable
        self.on_skip = on_skip
        self.cache_lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[float]:
        self.cache_lock.acquire()
        example = self.read(index)
        if example is None:
            return self[index + 1]  # the bug: nobody released cache_lock, so this call waits for it for ever
        self.cache_lock.release()
        return example

    def read(self, index: int) -> list[float] | None:
        """One example, or None when its shard cannot be read."""
        if self.unreadable(index):
            self.on_skip()
            return None
        source = random.Random(index)
        return [source.random() for _ in range(TOKENS)]
