"""Bus bandwidth of a collective with torch alone, started by torchrun. Needs nothing of mltop: copy it where you like.

torchrun --standalone --nproc-per-node=8 collective_bench.py --sizes 1048576,268435456

algbw = size/time of the slowest rank, median over iterations; busbw = algbw x 2(n-1)/n for all-reduce, (n-1)/n for
the others, as nccl-tests counts. Prints one JSON line per size (rank 0).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

WARM_UPS, ITERATIONS = 3, 20
FACTORS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}


def main() -> None:
    options = parse()
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = options.backend == "nccl"
    if on_gpu:
        torch.cuda.set_device(local)
    dist.init_process_group(options.backend)
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    try:
        for size in options.sizes:
            measure(options.collective, size, device)
    finally:
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=sorted(FACTORS), default="all-reduce")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1 << 20, 1 << 28]
    )
    return parser.parse_args()


def measure(collective: str, size_bytes: int, device: torch.device) -> None:
    ranks = dist.get_world_size()
    count = max(ranks, size_bytes // 4 // ranks * ranks)
    whole = torch.ones(count, device=device)
    part = torch.ones(count // ranks, device=device)
    spare = torch.empty_like(whole)

    def run() -> None:
        if collective == "all-reduce":
            dist.all_reduce(whole)
        elif collective == "all-gather":
            dist.all_gather_into_tensor(spare, part)
        elif collective == "reduce-scatter":
            dist.reduce_scatter_tensor(part, whole)
        else:
            dist.all_to_all_single(spare, whole)

    times = []
    for iteration in range(WARM_UPS + ITERATIONS):
        whole.fill_(1.0)
        settle(device)
        began = time.perf_counter()
        run()
        settle(device)
        if iteration >= WARM_UPS:
            times.append(time.perf_counter() - began)
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    median_s = statistics.median(slowest.tolist())
    if dist.get_rank() == 0:
        algbw = count * 4 / median_s
        busbw = algbw * FACTORS[collective] * (ranks - 1) / ranks
        row = {"size_bytes": count * 4, "ranks": ranks, "time_s": median_s, "busbw_gb_per_s": round(busbw / 1e9, 3)}
        print(json.dumps(row), flush=True)  # noqa: T201 - a program of its own


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
