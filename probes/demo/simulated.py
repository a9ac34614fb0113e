"""A simulated fleet's one job, before and after one of its ranks hangs, and its nodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mltop.probes.demo.gpus import UPTIME_S, activity_of, processes_of, set_moving, shape_of, still_gpu
from mltop.probes.demo.machine import (
    HEALTHY,
    QUIET_LOAD,
    TRAINING_LOAD,
    cpus_of,
    host_of,
    kernel_events,
    links_of,
    moving_host,
    numa_of,
    pci_devices,
    set_traffic,
)
from mltop.probes.model import Frame, GpuSample, RankSample, RankStacks, Sample, StackDigest

JOB = "llama-70b"  # as a user would call it: that it is simulated is told by a mark of its own
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
    name: str = JOB

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
        job=job.name,
        master_address=job.nodes[0],
        started_at=job.started_at,
        gpus=[local],
        rss_bytes=9_400_000_000 + 3_000_000 * local,
        cpus_allowed=cpus_of(local),
        numa_nodes=numa_of(local, job.ranks_per_node),
        **HEALTHY["rank"],
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
    (frames, waiting_in), writing = stack_of(job, rank, now), _STACKS["writing"]
    digest = StackDigest(
        rank=rank,
        pid=sample.pid,
        state="S",
        frames=frames,
        waiting_in=waiting_in,
        key=key_of(frames),
        node=node,
        job=job.name,
        taken_at=now,
    )
    return RankStacks(
        pid=sample.pid,
        rank=rank,
        job=job.name,
        node=node,
        taken_at=now,
        took_s=0.02,
        before=sample,
        after=replace(sample),
        digests=[digest, replace(digest, thread="Thread-2", frames=writing, waiting_in=None, key=key_of(writing))],
    )


# Leaf first, by what a rank does; "writing" is a thread that every rank has beside its main one. Those of torch 2.6.
_STACKS = {name: [Frame(*frame) for frame in frames] for name, frames in HEALTHY["stacks"].items()}


def stack_of(job: SimulatedJob, rank: int, now: float) -> tuple[list[Frame], str | None]:
    """Leaf-first frames and the collective waited in."""
    step = int(job.progress_s(now) / STEP_S)
    train = Frame("train", "job/train.py", 0, {"step": step})
    base = [Frame("main", "job/train.py", 214), Frame("<module>", "job/train.py", 231)]
    if job.hung(now) and rank == job.culprit:
        return [*_STACKS["loading"], replace(train, line=148), *base], None
    computing = not job.hung(now) and (int(now / STEP_S * 4) + rank * 5) % 4 > 0
    if computing:
        return [*_STACKS["computing"], replace(train, line=151), *base], None
    return [*_STACKS["waiting"], replace(train, line=156), *base], "all_reduce"


def key_of(frames: list[Frame]) -> str:
    """Equal for equal frames whatever their integer locals."""
    text = "\n".join(f"{frame.function} {frame.file}:{frame.line}" for frame in frames)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


LOST_GPU = 3
BRAKED_CLOCK_MHZ = 420


@dataclass
class SimulatedNode:
    """``ranks`` of ``job`` run here, one per GPU from GPU 0; none on a spare node.

    ``lost_gpu``: GPU 3 fell off the bus. ``braked``: the power supply asserts the power brake on every GPU.
    ``faulty``: an InfiniBand port is down, a disk is nearly full, and there was an Xid 94 about an hour ago.
    What no sample shows: ``slow_gpu`` computes slowly, with ``slow_nic`` the way to other nodes is slow.
    """

    name: str
    number: int
    gpus: int
    interval_s: float
    job: SimulatedJob
    ranks: range
    began_at: float
    lost_gpu: bool = False
    braked: bool = False
    faulty: bool = False
    slow_gpu: int | None = None
    slow_nic: bool = False

    def sample(self, now: float) -> Sample:
        """All of it at ``now`` (unix s). It is the same object each time: what moves is set anew."""
        sample = self._sample
        sample.sampled_at = round(now, 3)
        for gpu in sample.gpus:
            self._move(gpu, now)
        for rank in sample.ranks:
            vars(rank).update(moving_counters(self.job, rank.rank or 0, now))
        training = bool(self.ranks) and not self.job.hung(now)
        set_traffic(sample.links, now - self.job.started_at, self.job.progress_s(now) if self.ranks else 0.0, training)
        load = TRAINING_LOAD if training else QUIET_LOAD
        vars(sample.host).update(moving_host(now - self.began_at + UPTIME_S, load, self.number, sample.links))
        return sample

    def _move(self, gpu: GpuSample, now: float) -> None:
        if gpu.state == "lost":
            return
        zero, index = self.began_at - UPTIME_S, gpu.index
        hung = self.job.hung_at - zero
        is_culprit = index < len(self.ranks) and self.ranks[index] == self.job.culprit
        activity = activity_of(now - zero, index < len(self.ranks), hung, is_culprit)
        set_moving(gpu, shape_of(self.number, index, False), now - zero, activity, hung)
        gpu.last_seen_at = round(now, 3)
        if self.braked:  # whatever runs on it
            gpu.sm_clock_mhz, gpu.throttle_reasons = BRAKED_CLOCK_MHZ, ["hw_slowdown", "power_brake"]
            gpu.throttle_ns, gpu.throttle_share = {"power_brake": int((now - zero) * 1e9)}, {"power_brake": 1.0}

    @cached_property
    def _sample(self) -> Sample:
        return Sample(
            node=self.name,
            sampled_at=self.began_at,
            boot_id=f"simulated-{self.number}",
            interval_s=self.interval_s,
            simulated=True,
            gpus=[self._gpu(index) for index in range(self.gpus)],
            ranks=[rank_sample(self.job, rank, self.began_at) for rank in self.ranks],
            host=host_of(self.name, self.faulty),
            links=links_of(self.number, self.gpus, self.faulty),
            pci=pci_devices(self.gpus),
            kernel_events=kernel_events(self.began_at) if self.faulty else [],
        )

    def _gpu(self, index: int) -> GpuSample:
        gpu = still_gpu(index, self.number)
        if self.lost_gpu and index == LOST_GPU:
            error, seen_at = "NVML: GPU is lost (fell off the bus; SIMULATED)", self.began_at - 312.0
            return GpuSample(index, gpu.uuid, gpu.name, gpu.pci_bus_id, state="lost", error=error, last_seen_at=seen_at)
        self._move(gpu, self.began_at)
        gpu.processes = [  # as /proc would say it of a rank; its parent is above every real pid, too
            replace(
                process,
                user="demo",
                name="python3.11",
                state="S",
                ppid=FIRST_PID - 1,
                started_at=self.job.started_at,
            )
            for process in processes_of(gpu, [FIRST_PID + rank for rank in self.ranks[index : index + 1]])
        ]
        return gpu
