"""torch.distributed.checkpoint.save: one rank's storage blocks ("storage"), or all is slow and gets on ("healthy")."""

import time

import moment
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter

WRITE_S = 45.0


class Storage(FileSystemWriter):
    def write_data(self, plan, planner):
        rank = dist.get_rank()
        if moment.MODE == "healthy":
            moment.now(rank)
            self.write_slowly(rank)
        elif rank == moment.CULPRIT:
            moment.now(rank)
            time.sleep(3600)  # FAULT storage
        return super().write_data(plan, planner)

    def write_slowly(self, rank: int) -> None:
        until = time.monotonic() + WRITE_S
        with (moment.DIRECTORY / f"shard{rank}").open("wb", buffering=0) as shard:
            while time.monotonic() < until:
                shard.write(bytes(1 << 16))
                time.sleep(0.1)


def train(model: nn.Module) -> None:
    step = 0
    while True:
        step += 1
        time.sleep(0.12)
        model(torch.ones(2, 4)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None
        if step == moment.STEPS:
            dcp.save({"model": model.state_dict()}, storage_writer=Storage(moment.DIRECTORY / "checkpoint"))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(nn.Linear(4, 1))
