"""FSDP2 (fully_shard) under torchrun."""

import moment
import rows
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


def evaluate(rank: int, step: int) -> None:
    if moment.MODE == "skip" and step == moment.STEPS and rank == moment.CULPRIT:
        moment.now(rank)
        return  # FAULT skip
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for step, batch in enumerate(DataLoader(rows.Rows(rank), batch_size=rows.BATCH)):
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(rank)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 5 == 0:
            evaluate(rank, step)


if __name__ == "__main__":
    main()
