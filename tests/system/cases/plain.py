"""A training job for any Python >= 3.8, without torch: its collectives are those of tests/fakes/plain_torch.

Run by launch.py as ``plain.py CASE DIRECTORY CULPRIT``, like the others. A thread beside the main one sleeps.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes/plain_torch"))

import os

import torch.distributed as dist

CASE, DIRECTORY, CULPRIT = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HANG_STEP = 3


def mark(event: str) -> None:
    (DIRECTORY / "events" / event).touch()


def push_metrics() -> None:
    while True:
        time.sleep(3600)


def read_blocked() -> None:
    mark("hung")
    time.sleep(3600)


def wait_for_marker() -> None:
    while not (DIRECTORY / "marker").exists():
        time.sleep(0.05)


def meet() -> None:
    mark(f"bound.{RANK}")
    while not all((DIRECTORY / "events" / f"bound.{rank}").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.01)


def train() -> None:
    loss = 1.0
    for step in range(1_000_000):
        if step == HANG_STEP:
            if RANK == CULPRIT:
                read_blocked()
            mark(f"waiting.{RANK}")
            if CASE == "plain_poll":
                wait_for_marker()
        loss = dist.all_reduce(loss) / WORLD_SIZE


async def train_in_loop() -> None:
    for step in range(1_000_000):
        if step == HANG_STEP:
            if RANK == CULPRIT:
                mark("hung")
                await asyncio.Event().wait()
            mark(f"waiting.{RANK}")
        await asyncio.sleep(0)
        dist.all_reduce(1.0)


threading.Thread(target=push_metrics, name="metrics", daemon=True).start()
dist.init_process_group()
meet()
if CASE == "plain_asyncio":
    asyncio.run(train_in_loop())
else:
    train()
