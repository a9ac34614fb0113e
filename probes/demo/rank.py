"""What the demo's training scripts are told by the job that starts them (JSON in one environment variable)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Optional

from mltop.probes.demo.dataset import ShardDataset
from mltop.probes.demo.lifeline import allow_stacks, tie_to_parent

VARIABLE = "MLTOP_DEMO_RANK"
BATCH = 2
STEPS = 100_000


@dataclass
class RankSetup:
    """``stuck_at_step``: where this rank's dataset stops answering, None for never. ``*_fd`` are inherited."""

    rank: int
    world_size: int
    parent_pid: int
    step_s: float
    hung_fd: int
    store_fd: int
    inbox_fd: int
    outbox_fds: list[int]
    stuck_at_step: Optional[int] = None
    may_fall_back: bool = False

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def dataset(self) -> ShardDataset:
        unreadable = None if self.stuck_at_step is None else self.stuck_at_step * BATCH
        return ShardDataset(STEPS * BATCH, unreadable, self.report_hang)

    def report_hang(self) -> None:
        os.write(self.hung_fd, f"{time.time():.6f}\n".encode())


def begin() -> RankSetup:
    """The first call of a training script: from here on the process dies with its parent."""
    setup = RankSetup(**json.loads(os.environ[VARIABLE]))
    tie_to_parent(setup.parent_pid)
    allow_stacks()
    return setup
