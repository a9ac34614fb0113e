"""The demo's training script without torch: a linear model, gradients summed over all ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    # Run by path, as training scripts are: find mltop, and let this folder shadow no other module.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).resolve().parent)]
    sys.path.append(str(Path(__file__).absolute().parents[3]))

from mltop.probes.demo.collective import Group, all_reduce
from mltop.probes.demo.dataset import TOKENS, ShardDataset
from mltop.probes.demo.training import BATCH, STEPS, RankSetup, begin

LEARNING_RATE = 1e-3


class Model:
    def __init__(self) -> None:
        self.weights = [0.0] * TOKENS
        self.gradients = [0.0] * TOKENS


def load(dataset: ShardDataset) -> Iterator[list[list[float]]]:
    for start in range(0, len(dataset), BATCH):
        yield [dataset[start + offset] for offset in range(BATCH)]


def forward(model: Model, batch: list[list[float]], step_s: float) -> float:
    loss = 0.0
    for example in batch:
        error = sum(w * x for w, x in zip(model.weights, example)) - sum(example)
        loss += error * error
        model.gradients = [g + 2 * error * x for g, x in zip(model.gradients, example)]
    time.sleep(step_s)  # what a GPU would compute meanwhile
    return loss


def all_reduce_grads(model: Model, group: Group) -> None:
    model.gradients = all_reduce(model.gradients, group)


def train(setup: RankSetup, group: Group) -> None:
    model = Model()
    loader = load(setup.dataset())
    for _step in range(STEPS):
        batch = next(loader)
        forward(model, batch, setup.step_s)
        all_reduce_grads(model, group)
        scale = LEARNING_RATE / (BATCH * setup.world_size)
        model.weights = [w - scale * g for w, g in zip(model.weights, model.gradients)]
        model.gradients = [0.0] * TOKENS


def main() -> None:
    setup = begin()
    train(setup, Group.from_fds(setup.rank, setup.inbox_fd, setup.outbox_fds))


if __name__ == "__main__":
    main()
