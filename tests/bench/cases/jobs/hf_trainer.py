"""HF Trainer under torchrun; in mode "skip" one rank leaves an evaluation out that a callback does on all others."""

import os

import moment
import rows
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

RANK = int(os.environ["RANK"])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        predicted = self.layer(x)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


class Evaluations(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if moment.MODE == "healthy" and state.global_step == moment.STEPS:
            moment.now(RANK)
        if state.global_step % 5 == 0:
            self.evaluate(state.global_step)

    def evaluate(self, step: int) -> None:
        if moment.MODE == "skip" and RANK == moment.CULPRIT and step == moment.STEPS:
            moment.now(RANK)
            return  # FAULT skip
        dist.barrier()


if __name__ == "__main__":
    arguments = TrainingArguments(
        output_dir=str(moment.DIRECTORY / "trained"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=100_000,
        per_device_train_batch_size=rows.BATCH,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = rows.Rows(RANK, as_dict=True)
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Evaluations()]).train()
