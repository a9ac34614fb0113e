"""Simulated jobs as samples, for tests of what is told from outside (judge/stall).

``job = SimulatedJob(ranks=4)``; ``job.run(30, GLOO)``: all ranks train for 30 s; ``job.run(60, ASLEEP, {0: SAVING})``.
``job.motion`` is the newest motion, ``job.phases`` what was said and when. What a rank does in a second is an ``Act``,
or a function of the time (s since the job began) that returns one: ``stepping(2.1, GLOO, ASLEEP)``.
Rates are those measured on gloo jobs and in judge/stall/thresholds.py; of GPUs those of builders/health_samples.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.model import (
    GpuSample,
    HostSample,
    JobMotion,
    LinkSample,
    LogLine,
    LogLineKind,
    Nvlink,
    RankDeath,
    RankSample,
    Sample,
)
from tests.builders.health_samples import H100, LOADS

TICK_S, LONG_TICK_S = 0.05, 0.25  # the long one where nobody changes what he does
GPU_LOADS = {
    "training": LOADS["training"] | {"tensor_active": 0.4, "sm_active": 0.9, "dram_active": 0.4},
    "spinning": LOADS["spinning"] | {"tensor_active": 0.0, "sm_active": 0.15, "dram_active": 0.0},
    "idle": LOADS["idle"] | {"tensor_active": 0.0, "sm_active": 0.0, "dram_active": 0.0},
}


@dataclass(frozen=True)
class Act:
    """What a rank does, per second. ``main_calls``: reads and writes of its main thread, among those of all."""

    switches: float = 0.0
    main_cpu: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    cpu: float = 0.01
    children_cpu: float = 0.0
    state: str = "S"
    wchan: str | None = "futex_do_wait"
    gpu: str = "idle"
    nvlink: float = 0.0
    main_calls: float = 0.0


ASLEEP = Act()  # in a collective of gloo, on a lock, in a fifo
GLOO = Act(36, 0.007, 12, 14, 0.02)
LOADER_POLL = Act(0.4, 0.0001)
POLLING = Act(10, 0.0005, cpu=0.0)
# Ray Train: a main thread that looks after the one that trains, which waits or works.
LOOKING_AFTER = Act(66, 0.022, cpu=0.03)
RAY = replace(LOOKING_AFTER, reads=12, writes=14, cpu=0.2)
SPINNING = Act(main_cpu=0.98, cpu=0.98, state="R", wchan=None)
IMPORTING = Act(2, 0.95, 2500, 3, 0.95, state="R", wchan=None, main_calls=2503)
COMPILING = Act(children_cpu=6.0)
SAVING = Act(30, 0.4, 1, 60, 0.5, main_calls=61)
STOPPED = Act(state="T", wchan="do_signal_stop")
BLOCKED = Act(state="D", wchan="rpc_wait_bit_killable")
NCCL = Act(22, 0.95, 4, 5, 1.2, gpu="training", nvlink=26e9)
NCCL_WAIT = Act(0, 1.0, cpu=2.0, state="R", wchan=None, gpu="spinning")
NCCL_SAVING = replace(SAVING, gpu="idle")

Doing = Act | Callable[[float], Act]


def stepping(period_s: float, work: Act, rest: Act, share: float = 0.2, spread: float = 0.0, seed: int = 1) -> Doing:
    """``work`` for ``share`` of every step and then ``rest``; steps differ by ``spread`` (standard deviation)."""
    source = random.Random(seed)
    starts = [0.0]
    place = 0

    def at(time_s: float) -> Act:
        nonlocal place
        while starts[-1] <= time_s:
            starts.append(starts[-1] + max(0.2, source.gauss(1.0, spread)) * period_s)
        while starts[place + 1] <= time_s:
            place += 1
        while starts[place] > time_s:
            place -= 1
        return work if time_s - starts[place] < share * period_s else rest

    return at


@dataclass
class SimulatedRank:
    rank: int
    pid: int
    counts: list[float] = field(default_factory=lambda: [1000.0, 10.0, 500.0, 500.0, 50.0])
    cpu_s: float = 0.0
    children_cpu_s: float = 0.0
    act: Act = ASLEEP
    gpu_sums: dict[str, float] = field(default_factory=dict)


class SimulatedJob:
    """``node_of`` gives ranks their nodes; ``seen``: only these nodes are watched. ``with_gpus``: one for each rank.

    ``calls_readable``: a container's may not be. ``gpus_matched``: whether it is known which GPU is whose.
    ``look``: the phases are noted at every sample.
    """

    def __init__(
        self,
        ranks: int = 4,
        *,
        per_node: int = 8,
        interval_s: float = 1.0,
        with_gpus: bool = False,
        calls_readable: bool = True,
        gpus_matched: bool = True,
        seen: int | None = None,
        motions: JobMotions | None = None,
        job: str = "train",
        first_pid: int = 100,
        age_s: float = 5.0,
        launcher: str = "torchrun",
    ) -> None:
        self.motions = JobMotions() if motions is None else motions
        self.interval_s, self.with_gpus = interval_s, with_gpus
        self.calls_readable, self.gpus_matched = calls_readable, gpus_matched
        self.job, self.world_size, self.per_node, self.launcher = job, ranks, per_node, launcher
        self.ranks = {rank: SimulatedRank(rank, first_pid + rank) for rank in range(ranks)}
        self.nodes = range((ranks + per_node - 1) // per_node)[:seen]
        self.began_at, self.at = 1000.0 - age_s, 1000.0
        self.deaths: list[RankDeath] = []
        self.log_lines: list[LogLine] = []
        self.phases: list[tuple[float, str]] = []
        self.host = HostSample(cpu_count=64, load_1m=8.0, memory_total_bytes=1 << 40, memory_available_bytes=1 << 39)
        self.gpu_changes: dict[int, dict[str, object]] = {}
        self.links: list[LinkSample] = []
        self.source = random.Random(7)
        self._next = {node: 1000.0 + interval_s * (node + 1) / (len(self.nodes) + 1) for node in self.nodes}
        self._before = dict(self._next)
        self.look = True
        self.without_cpu = False
        self.see = self.motions.see

    @property
    def motion(self) -> JobMotion:
        return next(motion for motion in self.motions.motions() if motion.job == self.job)

    @property
    def phase(self) -> str:
        return self.motion.phase

    def said(self, phase: str) -> float | None:
        """When this phase was first said, s since the job began to be watched."""
        return next((at - 1000.0 for at, said in self.phases if said == phase), None)

    def run(self, seconds: float, doing: Doing, others: Mapping[int, Doing] | None = None) -> SimulatedJob:
        others = others or {}
        until = self.at + seconds
        tick_s = TICK_S if any(map(callable, (doing, *others.values()))) else LONG_TICK_S
        while self.at < until - 1e-9:
            self.at += tick_s
            now = doing(self.at - 1000.0) if callable(doing) else doing
            for number, rank in self.ranks.items():
                other = others.get(number)
                act = now if other is None else other(self.at - 1000.0) if callable(other) else other
                _advance(rank, act, tick_s)
            for node in self.nodes:
                if self._next[node] <= self.at:
                    self._sample(node)
        return self

    def lose(self, rank: int, death: RankDeath | None = None) -> None:
        gone = self.ranks.pop(rank)
        if death is not None:
            told = replace(death, pid=gone.pid, rank=rank, job=self.job, uid=0, at=self.at)
            self.deaths.append(told)

    def log(self, kind: LogLineKind, waited_s: float | None = None, rank: int = 0) -> None:
        """What a rank's log says now."""
        pid = self.ranks[rank].pid
        self.log_lines.append(LogLine(kind, "…", "/out.log", self.at, 1, self.job, 0, pid, rank, waited_s))

    def _sample(self, node: int) -> None:
        seconds = self.at - self._before[node]
        self._before[node], self._next[node] = self.at, self._next[node] + self.interval_s
        here = [rank for rank in self.ranks.values() if rank.rank // self.per_node == node]
        sample = Sample(
            f"node-{node}",
            self.at,
            interval_s=self.interval_s,
            host=self.host,
            links=self.links,
            ranks=[self._rank(rank, seconds) for rank in here],
            gpus=[self._gpu(rank, seconds) for rank in here] if self.with_gpus else [],
            deaths=list(self.deaths),
            log_lines=list(self.log_lines),
        )
        for rank in here:
            rank.cpu_s = rank.children_cpu_s = 0.0
            rank.gpu_sums.clear()
        self.see(sample)
        if self.look:
            said = next((motion.phase for motion in self.motions.motions() if motion.job == self.job), "none")
            if not self.phases or self.phases[-1][1] != said:
                self.phases.append((self.at, said))

    def _rank(self, rank: SimulatedRank, seconds: float) -> RankSample:
        switches, main_cpu_s, reads, writes, main_calls = rank.counts
        return RankSample(
            pid=rank.pid,
            rank=rank.rank,
            world_size=self.world_size,
            job=self.job,
            launcher=self.launcher,
            uid=0,
            user="ada",
            state=rank.act.state,
            wchan=rank.act.wchan,
            started_at=self.began_at,
            gpus=[rank.rank % self.per_node] if self.with_gpus and self.gpus_matched else [],
            cpu_fraction=rank.cpu_s / seconds if seconds and not self.without_cpu else None,
            children_cpu_fraction=rank.children_cpu_s / seconds if seconds else None,
            voluntary_switches=int(switches),
            main_cpu_s=main_cpu_s,
            main_syscalls=int(main_calls) if self.calls_readable else None,
            read_syscalls=int(reads) if self.calls_readable else None,
            write_syscalls=int(writes) if self.calls_readable else None,
        )

    def _gpu(self, rank: SimulatedRank, seconds: float) -> GpuSample:
        sums = {name: value / seconds for name, value in rank.gpu_sums.items()} if seconds else {}
        index = rank.rank % self.per_node
        gpu = GpuSample(index, name=H100, power_limit_w=700.0, memory_used_bytes=60 << 30, nvlink=Nvlink())
        for name in ("busy", "power_w", "tensor_active", "sm_active", "dram_active"):
            setattr(gpu, name, sums.get(name))
        gpu.sm_clock_mhz = int(GPU_LOADS[rank.act.gpu]["sm_clock_mhz"])
        gpu.throttle_reasons = []
        gpu.nvlink.rx_bytes_per_s = gpu.nvlink.tx_bytes_per_s = sums.get("nvlink")
        for name, value in self.gpu_changes.get(rank.rank, {}).items():
            setattr(gpu, name, value)
        return gpu


def _advance(rank: SimulatedRank, act: Act, tick_s: float) -> None:
    rank.act = act
    for place, per_s in enumerate((act.switches, act.main_cpu, act.reads, act.writes, act.main_calls)):
        rank.counts[place] += per_s * tick_s
    rank.cpu_s += act.cpu * tick_s
    rank.children_cpu_s += act.children_cpu * tick_s
    load = GPU_LOADS[act.gpu]
    for name in ("busy", "power_w", "tensor_active", "sm_active", "dram_active"):
        rank.gpu_sums[name] = rank.gpu_sums.get(name, 0.0) + load[name] * tick_s
    rank.gpu_sums["nvlink"] = rank.gpu_sums.get("nvlink", 0.0) + act.nvlink * tick_s / 2
