"""One node of a collective probe, as its launcher told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Member:
    """``ready``: what the launcher said when it had joined, {} before. ``failed``: why it takes no part (any more).

    ``rounds``: those it has finished. Times are monotonic s.
    """

    node: str
    asked_at: float = field(default_factory=time.monotonic)
    stage: str = ""
    stage_at: float = field(default_factory=time.monotonic)
    ready: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    ended: bool = False
    rounds: set[int] = field(default_factory=set)
    rank_stages: dict[int, str] = field(default_factory=dict)
    failed_ranks: dict[int, str] = field(default_factory=dict)  # in the newest round

    @property
    def usable(self) -> bool:
        return bool(self.ready) and not self.failed and not self.ended

    @property
    def waiting(self) -> bool:
        """It may still join."""
        return not self.ready and not self.failed and not self.ended

    @property
    def ranks(self) -> int:
        ranks = self.ready.get("ranks", 0)
        return ranks if isinstance(ranks, int) else 0

    def enter(self, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.stage_at = stage, time.monotonic()
