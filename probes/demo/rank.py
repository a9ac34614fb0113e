"""What the demo job tells its training scripts (JSON in one environment variable)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass

from mltop.probes.demo.dataset import ShardDataset
from mltop.probes.demo.lifeline import allow_stacks, tie_to_parent

VARIABLE = "MLTOP_DEMO_RANK"
BATCH = 2
STEPS = 100_000
HEALTHY_STEPS = 4  # at least, however long the imports took


@dataclass
class RankSetup:
    """``stuck_from``: monotonic seconds from which this rank's dataset is stuck, None for never."""

    rank: int
    world_size: int
    parent_pid: int
    step_s: float
    hung_fd: int
    store_fd: int
    inbox_fd: int
    outbox_fds: list[int]
    stuck_from: float | None = None
    may_fall_back: bool = False

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def dataset(self) -> ShardDataset:
        return ShardDataset(STEPS * BATCH, self.is_stuck_at, self.report_hang)

    def is_stuck_at(self, index: int) -> bool:
        healthy_first = index < HEALTHY_STEPS * BATCH
        return self.stuck_from is not None and not healthy_first and time.monotonic() >= self.stuck_from

    def report_hang(self) -> None:
        os.write(self.hung_fd, f"{time.time():.6f}\n".encode())


def begin() -> RankSetup:
    """The first call of a training script: from here on the process dies with its parent."""
    setup = RankSetup(**json.loads(os.environ[VARIABLE]))
    tie_to_parent(setup.parent_pid)
    allow_stacks()
    return setup
