"""Accelerate, started by `accelerate launch --multi_gpu`; it is told to compute on CPUs all the same."""

import moment
import rows
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def evaluate(accelerator: Accelerator, step: int) -> None:
    rank = accelerator.process_index
    if moment.MODE == "skip" and rank == moment.CULPRIT and step == moment.STEPS:
        moment.now(rank)
        return  # FAULT skip
    accelerator.wait_for_everyone()


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    rank, model = accelerator.process_index, nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(rows.Rows(rank), batch_size=rows.BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(rank)
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        if step % 5 == 0:
            evaluate(accelerator, step)


if __name__ == "__main__":
    main()
