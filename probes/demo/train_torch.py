"""The demo's training script with torch: a linear model on the CPU, gradients summed over gloo."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run by path, as training scripts are: find mltop, and let this folder shadow no other module.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).resolve().parent)]
    sys.path.append(str(Path(__file__).absolute().parents[3]))

from mltop.probes.demo.dataset import TOKENS
from mltop.probes.demo.training import BATCH, STEPS, RankSetup, begin

LEARNING_RATE = 1e-3
FOR_EVER = timedelta(days=7)  # gloo's own default would end the hang after 30 minutes


def forward(model: Any, batch: Any, step_s: float) -> Any:
    loss = (model(batch).squeeze(1) - batch.sum(dim=1)).square().mean()
    time.sleep(step_s)  # what a GPU would compute meanwhile
    return loss


def all_reduce_grads(model: Any) -> None:
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def train(setup: RankSetup) -> None:
    import torch

    model = torch.nn.Linear(TOKENS, 1)
    loader = iter(torch.utils.data.DataLoader(setup.dataset(), batch_size=BATCH, collate_fn=torch.tensor))
    for _step in range(STEPS):
        batch = next(loader)
        loss = forward(model, batch, setup.step_s)
        model.zero_grad()
        loss.backward()
        all_reduce_grads(model)
        # By hand: torch.optim imports the compiler, which takes a second and leaves a directory in /tmp.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(LEARNING_RATE / setup.world_size * parameter.grad)


def gloo_available() -> bool:
    try:
        import torch.distributed as dist
    except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
        print(f"torch does not import: {error}", file=sys.stderr)  # noqa: T201
        return False
    return bool(dist.is_available() and dist.is_gloo_available())


def main() -> None:
    setup = begin()
    if setup.may_fall_back and not gloo_available():
        # Become the plain script; file descriptors, environment and PR_SET_PDEATHSIG survive an exec.
        os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("train_plain.py"))])
    import torch.distributed as dist

    # A store in an inherited memory file: TCPStore would listen on every interface of this machine.
    store = dist.FileStore(f"/proc/self/fd/{setup.store_fd}", setup.world_size)
    dist.init_process_group("gloo", store=store, rank=setup.rank, world_size=setup.world_size, timeout=FOR_EVER)
    train(setup)


if __name__ == "__main__":
    main()
