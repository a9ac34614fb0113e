"""A job of two ranks that hangs, as a capture of it holds: rank 1 stands in its data set."""

from __future__ import annotations

from mltop.probes.investigate.material import Material
from mltop.probes.model import Frame, NodeState, RankSample, RankStacks, Sample, StackDigest


def hung_material() -> Material:
    def dump(rank: int, at: float) -> RankStacks:
        counters = RankSample(
            10 + rank, rank=rank, local_rank=rank, world_size=2, local_world_size=2, job="j", state="S",
            voluntary_switches=5, read_syscalls=5, write_syscalls=5,
        )  # fmt: skip
        frames = [Frame("all_reduce", "torch/distributed/distributed_c10d.py", 10), Frame("train", "t.py", 5)]
        if rank == 1:
            frames = [Frame("__getitem__", "t.py", 3, {"index": 7}), Frame("train", "t.py", 4)]
        waiting = "all_reduce" if rank == 0 else None
        digest = StackDigest(rank, 10 + rank, state="S", frames=frames, waiting_in=waiting, node="n1", job="j")
        return RankStacks(
            10 + rank, rank, "j", node="n1", taken_at=at, took_s=0.01, before=counters, after=counters, digests=[digest]
        )

    last = Sample("n1", 100.0, ranks=[dump(rank, 100.0).before or RankSample(0) for rank in (0, 1)])
    dumps = [dump(rank, 101.0 + 3 * i) for i in range(3) for rank in (0, 1)]
    return Material([NodeState("n1", "live")], {"n1": [last]}, dumps)
