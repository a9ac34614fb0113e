"""The one job of a simulated fleet: ranks, counters and stacks, before and after one rank hangs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from mltop.probes.model import Frame, RankSample, RankStacks, StackDigest

JOB = "simulated"
FIRST_PID = 5_000_000  # above the kernel's largest pid (2^22), so that no real process can be meant
STEP_S = 0.8
SWITCHES_PER_S, READS_PER_S, WRITES_PER_S = 45.0, 160.0, 12.0
RAN_S = 3600.0  # how long the job had been running when the simulation starts


@dataclass(frozen=True)
class SimulatedJob:
    """``ranks_per_node`` ranks on each of ``nodes``; rank ``culprit`` stops at ``hung_at`` (unix s)."""

    nodes: tuple[str, ...]
    ranks_per_node: int
    culprit: int
    started_at: float
    hung_at: float

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    def progress_s(self, now: float) -> float:
        """Seconds of progress made at ``now``: stands still from the hang on."""
        return min(now, self.hung_at) - self.started_at

    def hung(self, now: float) -> bool:
        return now >= self.hung_at


def rank_sample(job: SimulatedJob, rank: int, now: float) -> RankSample:
    local = rank % job.ranks_per_node
    return RankSample(
        pid=FIRST_PID + rank,
        rank=rank,
        local_rank=local,
        world_size=job.world_size,
        local_world_size=job.ranks_per_node,
        job=JOB,
        master_address=job.nodes[0],
        launcher="srun",
        user="demo",
        command="python train.py --config 70b.yaml (SIMULATED)",
        python="/opt/train/bin/python3.11",
        started_at=job.started_at,
        gpus=[local],
        rss_bytes=9_400_000_000 + 3_000_000 * local,
        cpus_allowed=f"{local * 12}-{local * 12 + 11}",
        numa_nodes="0" if local < job.ranks_per_node / 2 else "1",
        **moving_counters(job, rank, now),
    )


def moving_counters(job: SimulatedJob, rank: int, now: float) -> dict[str, Any]:
    """The fields of a RankSample that change, ranks a little apart from each other."""
    progress_s = job.progress_s(now) + rank % 7
    return {
        "state": "S",
        "cpu_fraction": 0.01 if job.hung(now) else 0.62,
        "voluntary_switches": int(progress_s * SWITCHES_PER_S),
        "read_syscalls": int(progress_s * READS_PER_S),
        "write_syscalls": int(progress_s * WRITES_PER_S),
    }


def rank_stacks(job: SimulatedJob, rank: int, now: float) -> RankStacks:
    """What py-spy would show of this rank at ``now``, digested."""
    node = job.nodes[rank // job.ranks_per_node]
    sample = rank_sample(job, rank, now)
    frames, waiting_in = stack_of(job, rank, now)
    digest = StackDigest(
        rank=rank,
        pid=sample.pid,
        state="S",
        frames=frames,
        waiting_in=waiting_in,
        key=key_of(frames),
        node=node,
        job=JOB,
        taken_at=now,
    )
    return RankStacks(
        pid=sample.pid,
        rank=rank,
        job=JOB,
        node=node,
        taken_at=now,
        took_s=0.02,
        before=sample,
        after=replace(sample),
        digests=[digest],
    )


def stack_of(job: SimulatedJob, rank: int, now: float) -> tuple[list[Frame], str | None]:
    """Leaf-first frames and the collective waited in. Names and lines are those of torch 2.6."""
    step = int(job.progress_s(now) / STEP_S)
    train = Frame("train", "job/train.py", 0, {"step": step})
    base = [Frame("main", "job/train.py", 214), Frame("<module>", "job/train.py", 231)]
    if job.hung(now) and rank == job.culprit:
        return [*_LOADING, replace(train, line=148), *base], None
    computing = not job.hung(now) and (int(now / STEP_S * 4) + rank * 5) % 4 > 0
    if computing:
        return [*_COMPUTING, replace(train, line=151), *base], None
    return [*_WAITING, replace(train, line=156), *base], "all_reduce"


def key_of(frames: list[Frame]) -> str:
    """Equal for equal frames whatever their integer locals."""
    text = "\n".join(f"{frame.function} {frame.file}:{frame.line}" for frame in frames)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_C10D = "torch/distributed/distributed_c10d.py"
_LOADER = "torch/utils/data/dataloader.py"
_WAITING = [Frame("all_reduce", _C10D, 2808), Frame("all_reduce_grads", "job/train.py", 97)]
_COMPUTING = [
    Frame("Linear.forward", "torch/nn/modules/linear.py", 125),
    Frame("Block.forward", "job/model.py", 71),
    Frame("Transformer.forward", "job/model.py", 118),
]
_LOADING = [
    Frame("ShardDataset.__getitem__", "job/data.py", 53),
    Frame("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py", 54),
    Frame("_SingleProcessDataLoaderIter._next_data", _LOADER, 764),
    Frame("_BaseDataLoaderIter.__next__", _LOADER, 708),
]
