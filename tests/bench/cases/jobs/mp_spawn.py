"""torch.multiprocessing.spawn, as PyTorch's tutorials have it: each child sets its own rank after it has started."""

import os
import sys

import ddp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank: int, ranks: int, port: str) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    ddp.train(rank)


if __name__ == "__main__":
    ranks, port = int(sys.argv[1]), sys.argv[2]
    mp.spawn(worker, args=(ranks, port), nprocs=ranks)
