"""A small real training job (torch, gloo, CPU) in which one rank can be made to stop.

Run by launch.py as ``train.py CASE DIRECTORY CULPRIT``; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set.
It marks what it has reached with empty files in DIRECTORY/events.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 100_000
HANG_STEP = int(os.environ.get("CASE_HANG_STEP", "3"))
PACE_S = float(os.environ.get("CASE_PACE_S", "0"))  # of each step, for who wants to see it move before
HELPER_CALLS_PER_S = float(os.environ.get("CASE_HELPER_CALLS_PER_S", "0"))  # of a thread beside the main one
BATCH = 2

CASE = sys.argv[1]
DIRECTORY = Path(sys.argv[2])
CULPRIT = int(sys.argv[3])
RANK = int(os.environ["RANK"])
IS_CULPRIT = RANK == CULPRIT


def mark(event: str) -> None:
    (DIRECTORY / "events" / event).touch()


class Samples(Dataset):
    """Random rows; on the culprit reading the row of the hang step blocks in the way of the case."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.api_key = "sk-SECRET-in-dataset"

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if IS_CULPRIT and index == HANG_STEP * BATCH:
            self.read_blocked()
        return torch.ones(4)

    def read_blocked(self) -> None:
        if CASE == "sleep_in_dataset":
            mark("hung")
            time.sleep(3600)  # FAULT sleep_in_dataset
        elif CASE == "fifo_read":
            self.read_shard(DIRECTORY / "shard.fifo")
        elif CASE == "uninterruptible":
            self.run_decoder(DIRECTORY / "shard.fifo")
        elif CASE == "worker_deadlock":
            mark("hung")
            with self.lock:  # FAULT worker_deadlock
                return

    def read_shard(self, path: Path) -> bytes:
        os.mkfifo(path)
        mark("hung")
        with path.open("rb") as shard:  # FAULT fifo_read
            return shard.read()

    def run_decoder(self, path: Path) -> None:
        """State D without a broken disk: a parent waits uninterruptibly until its vforked child has exec'ed,
        and this child never gets there, because it opens a fifo first. SIGKILL still ends both.
        """
        os.mkfifo(path)
        mark("hung")
        actions = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)  # FAULT uninterruptible


def all_reduce_grads(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size()


def descend(model: nn.Module) -> None:
    """By hand: an optimizer of torch's imports its compiler first, which takes seconds of CPU in every rank."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad


def sync_metrics(loss: torch.Tensor) -> None:
    mark("hung")
    dist.broadcast(loss, src=0)  # FAULT mismatch


def slow_validation(model: nn.Module) -> None:
    api_token = "sk-SECRET-in-validation"  # noqa: F841 (a stack dump must not show it)
    mark("hung")
    while True:
        time.sleep(3600)  # FAULT slow_validation


def await_rows() -> None:
    mark("hung")
    while True:
        time.sleep(3600)


def spin_forever() -> None:
    mark("hung")
    turns = 0
    while True:
        turns += 1  # FAULT endless_loop


def work_slowly(step: int) -> None:
    """0.25 to 1 s of computing and sleeping in turn; the straggler takes 0.6 s longer, every time."""
    until = time.monotonic() + 0.25
    while time.monotonic() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)
        time.sleep(0.01)
    if CASE == "healthy_slow":
        time.sleep(0.25 * (step % 4))
    elif IS_CULPRIT:
        time.sleep(0.6)


def at_hang_step(model: nn.Module, loss: torch.Tensor) -> None:
    """What the ranks do differently in the step that hangs."""
    if not IS_CULPRIT:
        mark(f"waiting.{RANK}")
    elif CASE == "slow_validation":
        slow_validation(model)
    elif CASE == "ddp_backward":
        await_rows()
    elif CASE == "mismatch":
        sync_metrics(loss.detach())
    elif CASE == "endless_loop":
        spin_forever()
    if CASE == "checkpoint":
        save_checkpoint()


def save_checkpoint() -> None:
    """As torch's distributed checkpoint does it: its ``all_reduce`` calls the storage, then asks the other ranks.

    Not ``dcp.save``: what it sends before that needs numpy.
    """
    from torch.distributed.checkpoint.utils import _DistWrapper

    def write() -> str:
        if IS_CULPRIT:
            upload_shard()
        return "written"

    _DistWrapper(None, True, 0).all_reduce("write", write, len)


def upload_shard() -> None:
    mark("hung")
    while True:
        time.sleep(3600)


def train(loader: DataLoader, model: nn.Module, groups: list[dist.ProcessGroup]) -> None:
    step = 0
    for batch in loader:
        if CASE == "skewed_steps" and step == HANG_STEP:
            mark("hung" if IS_CULPRIT else f"waiting.{RANK}")
            step += IS_CULPRIT  # one rank believes that it has done this step already
        model.zero_grad()
        loss = model(batch).square().mean()
        if step == HANG_STEP and CASE == "ddp_backward":
            at_hang_step(model, loss)
        loss.backward()
        if step == HANG_STEP and CASE != "skewed_steps":
            at_hang_step(model, loss)
        time.sleep(PACE_S)
        if CASE != "ddp_backward":
            all_reduce_grads(model, groups[step % len(groups)])
        descend(model)
        if CASE in ("healthy_slow", "straggler"):
            work_slowly(step)
            if step == 1:
                mark(f"moving.{RANK}")
        if CASE == "sigstop":
            time.sleep(0.02)
            if step == HANG_STEP:
                mark(f"moving.{RANK}")
        step += 1


def made_parallel(model: nn.Module) -> nn.Module:
    if CASE != "ddp_backward":
        return model
    from torch.nn.parallel import DistributedDataParallel  # imports torch's compiler: seconds of CPU

    return DistributedDataParallel(model)


def hold_while_forking(lock: threading.Lock) -> None:
    """What makes the worker deadlock: another thread holds the lock at the moment of the fork."""
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            threading.Event().wait()

    threading.Thread(target=hold, name="metrics", daemon=True).start()
    held.wait()


def write_at_intervals() -> None:
    """As torch's watchdog and NCCL's proxy threads do, whatever the main thread does."""
    with open(os.devnull, "wb", buffering=0) as nowhere:
        while True:
            nowhere.write(b".")
            time.sleep(1 / HELPER_CALLS_PER_S)


def main() -> None:
    if HELPER_CALLS_PER_S:
        threading.Thread(target=write_at_intervals, daemon=True).start()
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=10))
    torch.set_num_threads(1)
    groups = [dist.new_group(), dist.new_group()] if CASE == "skewed_steps" else [dist.group.WORLD]
    samples = Samples()
    workers = 1 if CASE == "worker_deadlock" else 0
    if workers and IS_CULPRIT:
        hold_while_forking(samples.lock)
    context = "fork" if workers else None
    # prefetch_factor 2: the worker reaches the row of the hang step before the loop does.
    loader = DataLoader(samples, batch_size=BATCH, num_workers=workers, multiprocessing_context=context)
    train(loader, made_parallel(nn.Linear(4, 1)), groups)


if __name__ == "__main__":
    main()
