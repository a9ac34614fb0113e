"""DDP by hand, as it is run with torchrun, by bare processes, or with mpirun (the rank comes from Open MPI there)."""

import os
import signal

import moment
import rows
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def evaluate(rank: int, step: int) -> None:
    if moment.MODE == "skip" and step == moment.STEPS and rank == moment.CULPRIT:
        moment.now(rank)
        return  # FAULT skip
    dist.barrier()


def train(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    for step, batch in enumerate(DataLoader(rows.Rows(rank), batch_size=rows.BATCH)):
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(rank)
        if moment.MODE == "stop" and step == moment.STEPS and rank == moment.CULPRIT:
            moment.now(rank)
            os.kill(os.getpid(), signal.SIGSTOP)  # FAULT stop
        loss = model(batch).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        if step % 5 == 0:
            evaluate(rank, step)


if __name__ == "__main__":
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(dist.get_rank())
