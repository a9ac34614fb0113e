"""A job of three ranks that ends as it is asked to: what it leaves is read by `mltop explain`.

MODE: well, exception, kill, segfault, timeout, full disk, barrier, first attempt, alike.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

CULPRIT, STEPS, AT = 1, 6, 3
TIMEOUT_S = 8.0  # also of the meeting before: the ranks of a busy machine come seconds apart
LONG_S = 120.0  # its launcher ends it before


def die(mode: str, rank: int, attempt: int) -> None:
    if mode == "alike":
        raise KeyError("learning_rate")
    if mode == "barrier":
        if rank == CULPRIT:
            time.sleep(LONG_S)
        dist.monitored_barrier(timeout=timedelta(seconds=TIMEOUT_S))
    if rank != CULPRIT:
        return
    if mode == "exception" or (mode == "first attempt" and attempt == 0):
        raise ValueError("expected 8 columns, got 7")
    if mode in ("kill", "segfault"):
        os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGSEGV)
    if mode == "timeout":
        time.sleep(LONG_S)
    if mode == "full disk":
        Path("/dev/full").write_bytes(b"checkpoint" * 1000)


def main() -> None:
    mode = sys.argv[1]
    longest_s = TIMEOUT_S if mode == "timeout" else LONG_S
    dist.init_process_group("gloo", timeout=timedelta(seconds=longest_s))
    for step in range(STEPS):
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
        if step == AT:
            die(mode, dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    (record(main) if os.environ.get("RECORDED") else main)()
