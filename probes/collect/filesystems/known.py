"""What is known of one mount between reads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.collect.filesystems.mounts import Mount
from mltop.probes.collect.ranks.values import shown_text
from mltop.probes.collect.shapes import without_tokens
from mltop.probes.model import FilesystemSample

LOCAL_EVERY_S = 10.0
NETWORK_EVERY_S = 30.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 60.0


@dataclass
class Known:
    """``due_at``: in the caller's clock. ``stalled_since_s``, ``retry_s``: CLOCK_MONOTONIC."""

    mount: Mount
    first_pause_s: float = FIRST_PAUSE_S
    due_at: float = float("-inf")
    sizes: tuple[int, int, int, int] | None = None  # bytes, bytes available, inodes, inodes free
    error: str = ""
    stalled_since_s: float | None = None
    retry_s: float = 0.0
    pause_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def is_unasked(self) -> bool:
        return self.sizes is None and not self.error and self.stalled_since_s is None

    def is_due(self, now: float, at_s: float) -> bool:
        """A stalled one is tried again after pauses of 10, 20, 40 and then 60 s."""
        return now >= self.due_at if self.stalled_since_s is None else at_s >= self.retry_s

    def answered(self, answer: list[Any], now: float) -> None:
        """``answer`` as of ``Worker.answers``: it is not stalled (any more), though it may refuse."""
        self.stalled_since_s, self.pause_s = None, 0.0
        self.due_at = now + (NETWORK_EVERY_S if self.mount.is_network else LOCAL_EVERY_S)
        if answer[0] == "full":
            self.sizes, self.error = tuple(answer[2:6]), ""
        else:
            self.sizes, self.error = None, os.strerror(answer[2])

    def stalled(self, since_s: float, at_s: float) -> None:
        if self.stalled_since_s is None:
            self.stalled_since_s = since_s
        self.pause_s = min(2 * self.pause_s or self.first_pause_s, LONGEST_PAUSE_S)
        self.retry_s = at_s + self.pause_s

    def sample(self, at_s: float) -> FilesystemSample:
        mount = self.mount
        # A FUSE's or a web server's "device" is what its user wrote, passwords and all.
        path, device = without_tokens(mount.path), shown_text(mount.device)
        sample = FilesystemSample(path, device, mount.kind, mount.is_network, mount.read_only)
        if self.sizes is not None:
            sample.total_bytes, sample.available_bytes, inodes, free = self.sizes
            # Filesystems that make inodes as they are needed (btrfs, vfat, some servers) tell 0 of them.
            sample.inodes_total, sample.inodes_free = (inodes, free) if inodes else (None, None)
        if self.stalled_since_s is not None:
            sample.stalled_s = round(at_s - self.stalled_since_s, 3)
        sample.counters = dict(self.counters)
        return sample
