"""How long collectives take among simulated H100s with one 400 Gb/s NIC each, and who comes last. Pure."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from mltop.probes.demo.probe_figures import speed_share
from mltop.probes.demo.probe_machine import ProbeMachine

MIB = 1 << 20
ITERATIONS = 20
ALL_REDUCE_BYTES_PER_S = 480e9  # 8 GPUs of one node with NVLS; rings, and so all other collectives, reach 363
RING_BYTES_PER_S = 363e9
NVLS_FROM_RANKS = 5
NIC_BYTES_PER_S = 47e9
SLOW_NIC_SHARE = 0.45
GLOO_BYTES_PER_S = 1.6e9
WORK_S = 0.004  # of a healthy GPU between two collectives
JITTER_S = 4e-6  # of arrivals, beside the work
NOISE = 0.01  # of a collective's time, from iteration to iteration


@dataclass(frozen=True)
class Member:
    """A rank: ``work_s`` is what its own work takes it between two collectives."""

    node: str
    gpu: int
    work_s: float
    slow_nic: bool

    @classmethod
    def of(cls, machine: ProbeMachine, gpu: int) -> Member:
        share = speed_share(machine, gpu)
        return cls(machine.name, gpu, round(WORK_S * _own(machine.uuid(gpu)) / share, 6), machine.slow_nic)


@lru_cache(maxsize=8192)
def _own(uuid: str) -> float:
    """How a GPU's work differs from that of its model."""
    return random.Random(f"{uuid} work").gauss(1.0, 0.004)


@lru_cache(maxsize=64)
def collective_times(
    members: tuple[Member, ...], collective: str, size_bytes: int, backend: str, *, works: bool, run: str
) -> tuple[tuple[float, ...], ...]:
    """Every iteration's time of every rank, s. Who comes late waits less than the others, who wait for it.

    ``works``: each does its own work first, so that slow GPUs come late.
    """
    source = random.Random(f"{run} {collective} {size_bytes}")
    together_s = duration(members, collective, size_bytes, backend)
    least_work = min(member.work_s for member in members)
    late = [member.work_s - least_work if works else 0.0 for member in members]
    times: list[list[float]] = [[] for _ in members]
    for _ in range(ITERATIONS):
        arrivals = [one + abs(source.gauss(0.0, JITTER_S)) for one in late]
        last, took = max(arrivals), together_s * max(0.9, source.gauss(1.0, NOISE))
        for mine, arrival in zip(times, arrivals):
            mine.append(round(took + last - arrival, 9))
    return tuple(map(tuple, times))


def duration(members: tuple[Member, ...], collective: str, size_bytes: int, backend: str = "nccl") -> float:
    """Seconds from the last arrival on."""
    ranks = len(members)
    if ranks < 2:
        return 5e-6
    factor = (2.0 if collective == "all-reduce" else 1.0) * (ranks - 1) / ranks
    return size_bytes * factor / busbw(members, collective, size_bytes, backend)


def busbw(members: tuple[Member, ...], collective: str, size_bytes: int, backend: str = "nccl") -> float:
    """Bus bandwidth at this size, bytes/s: half of the most is reached at 10 MiB in a node, at 40 MiB beyond it."""
    on_node = Counter(member.node for member in members)
    nodes, ranks = len(on_node), len(members)
    if backend == "gloo":
        most = GLOO_BYTES_PER_S
    else:
        nvls = collective == "all-reduce" and max(on_node.values()) >= NVLS_FROM_RANKS
        most = ALL_REDUCE_BYTES_PER_S if nvls else RING_BYTES_PER_S
        if nodes > 1:
            # What each NIC has to carry, of a ring that enters and leaves every node once per GPU.
            most = min(most, NIC_BYTES_PER_S * (ranks - 1) / (nodes - 1)) * (0.92 if nodes == 2 else 0.85)
            most *= SLOW_NIC_SHARE if any(member.slow_nic for member in members) else 1.0
    half = (10 if nodes == 1 else 40) * MIB
    return float(most / (1 + (half / max(1, size_bytes)) ** 0.7))
