"""Lightning with its own launcher: rank 0 is the process that was started, the others are its children."""

import sys

import moment
import rows
import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, step: int):
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(self.global_rank)
        if step % 5 == 0:
            self.evaluate(step)
        return self.layer(batch).square().mean()

    def evaluate(self, step: int) -> None:
        if moment.MODE == "skip" and self.global_rank == moment.CULPRIT and step == moment.STEPS:
            moment.now(self.global_rank)
            return  # FAULT skip
        self.trainer.strategy.barrier()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return DataLoader(rows.Rows(self.global_rank), batch_size=rows.BATCH)


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
    }
    Trainer(accelerator="cpu", devices=int(sys.argv[1]), strategy=sys.argv[2], max_epochs=1, **options).fit(Module())
