"""Jobs that are well and look as if they were not."""

import time

import moment
import torch
import torch.distributed as dist
from torch import nn

BUSY_S = 60.0


def compute(seconds: float) -> None:
    """Only arithmetic: no system call, no collective."""
    until, turns = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        turns += sum(range(10_000))


def write(seconds: float, rank: int) -> None:
    until = time.monotonic() + seconds
    with (moment.DIRECTORY / f"shard{rank}").open("wb", buffering=0) as shard:
        while time.monotonic() < until:
            shard.seek(0)
            shard.write(bytes(1 << 20))
            time.sleep(0.05)


def compile_model(model: nn.Module) -> nn.Module:
    compiled = torch.compile(model)
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        torch.compiler.reset()
        compiled = torch.compile(nn.Sequential(*(nn.Linear(4, 4) for _ in range(12))))
        compiled(torch.ones(2, 4))
    return compiled


def at_the_moment(rank: int, model: nn.Module) -> None:
    moment.now(rank)
    if moment.MODE == "compile":
        compile_model(model)
    elif moment.MODE == "evaluate" and rank == 0:
        compute(BUSY_S)
    elif moment.MODE == "save" and rank == 0:
        write(BUSY_S, rank)
    elif moment.MODE == "checkpoint":
        write(90.0, rank)
    if moment.MODE in ("evaluate", "save", "checkpoint"):
        dist.barrier()


def micro_step(model: nn.Module) -> None:
    time.sleep(0.12)
    model(torch.ones(2, 4)).square().mean().backward()


def step_once(model: nn.Module) -> None:
    for _ in range(40 if moment.MODE == "accumulate" else 1):
        micro_step(model)
    if moment.MODE == "slow":
        compute(12.0)
        time.sleep(10.0)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad = None


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, model, step = dist.get_rank(), nn.Linear(4, 1), 0
    steps = {"accumulate": 2, "slow": 2, "init": 0, "compile": 0}.get(moment.MODE, moment.STEPS)
    if moment.MODE == "init":
        moment.now(rank)
        compute(BUSY_S)
    while moment.MODE != "finished" or step <= steps:
        step += 1
        if step == steps + 1 and moment.MODE != "init":
            at_the_moment(rank, model)
        step_once(model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
