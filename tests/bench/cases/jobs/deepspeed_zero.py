"""DeepSpeed ZeRO 1 on CPUs, started by `deepspeed`."""

import deepspeed
import moment
import rows
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

CONFIG = {
    "train_micro_batch_size_per_gpu": rows.BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def evaluate(rank: int, step: int) -> None:
    if moment.MODE == "skip" and step == moment.STEPS and rank == moment.CULPRIT:
        moment.now(rank)
        return  # FAULT skip
    dist.barrier()


def main() -> None:
    deepspeed.init_distributed("gloo")
    torch.set_num_threads(1)
    rank, model = dist.get_rank(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    for step, batch in enumerate(DataLoader(rows.Rows(rank), batch_size=rows.BATCH)):
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(rank)
        engine.backward(engine(batch).square().mean())
        engine.step()
        if step % 5 == 0:
            evaluate(rank, step)


if __name__ == "__main__":
    main()
