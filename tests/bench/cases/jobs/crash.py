"""One rank ends by a signal, for want of memory, by an exception, on a full disk; under torchrun, mp.spawn, or bare."""

import ctypes
import os
import signal
import sys
import time

import moment
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def save(path: str) -> None:
    with open(path, "wb") as checkpoint:
        checkpoint.write(bytes(8 << 20))  # FAULT disk


def hoard() -> None:
    with open(os.environ["CASE_CGROUP"] + "/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))  # FAULT oom


def end() -> None:
    if moment.MODE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)  # FAULT kill
    elif moment.MODE == "segfault":
        ctypes.string_at(0)  # FAULT segfault
    elif moment.MODE == "oom":
        hoard()
    elif moment.MODE == "disk":
        save(os.environ["CASE_SMALL_DISK"] + "/checkpoint")
    elif moment.MODE == "exception":
        raise ValueError("a label is out of range")  # FAULT exception


def train(rank: int) -> None:
    grad, step = torch.ones(4), 0
    while True:
        step += 1
        time.sleep(0.12)
        if step == moment.STEPS and rank == moment.CULPRIT:
            moment.now(rank)
            end()
        dist.all_reduce(grad)


def worker(rank: int, ranks: int, port: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    train(rank)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        mp.spawn(worker, args=(int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]))
    else:
        dist.init_process_group("gloo")
        train(dist.get_rank())
