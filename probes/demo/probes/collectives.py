"""The simulated all-reduce among H100s with one 400 Gb/s NIC each: one launcher per node, as active/all_reduce speaks.

What collectives take depends on who takes part, so it is computed, not recorded. All launchers compute the same figures
from the same round, without a word between them, so that those of two processes fit together.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from mltop.probes.active.all_reduce.collectives import stage_of
from mltop.probes.active.all_reduce.options import Round, round_of
from mltop.probes.active.supervisor.request import ProbeRequest
from mltop.probes.demo.probes.replay import INTERFACE, TORCH, ProbeMachine, Timeline, speed_share
from mltop.probes.judge.probes.collective import busbw_factor
from mltop.probes.model.probe import ProbeEvent, RankTimes

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
        unlike_its_model = random.Random(f"{machine.uuid(gpu)} work").gauss(1.0, 0.004)
        return cls(machine.name, gpu, round(WORK_S * unlike_its_model / share, 6), machine.slow_nic)


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
        arrivals = [late_s + abs(source.gauss(0.0, JITTER_S)) for late_s in late]
        last, took = max(arrivals), together_s * max(0.9, source.gauss(1.0, NOISE))
        for of_rank, arrival in zip(times, arrivals):
            of_rank.append(round(took + last - arrival, 9))
    return tuple(map(tuple, times))


def duration(members: tuple[Member, ...], collective: str, size_bytes: int, backend: str = "nccl") -> float:
    """Seconds from the last arrival on."""
    ranks = len(members)
    if ranks < 2:
        return 5e-6
    return size_bytes * busbw_factor(collective, ranks) / busbw(members, collective, size_bytes, backend)


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


IMPORT_S = 0.6
MEASURE_S = 0.3  # per size, or the budget where that is less
PORT = 41_000
GROUPS_KEPT = 512

MachineOf = Callable[[str], ProbeMachine]


@dataclass
class World:
    """``machine_of`` gives any node of the demo, also those that other processes simulate.

    ``groups``: who was in them, by key, round and number; for all launchers of this process.
    """

    machine_of: MachineOf
    groups: dict[tuple[str, int, int], tuple[Member, ...]] = field(default_factory=dict)


class Launcher(Timeline):
    """Raises ValueError or TypeError for options that cannot be read."""

    def __init__(self, machine: ProbeMachine, request: ProbeRequest, now: float, speed: float, world: World) -> None:
        super().__init__(machine, request, now, speed)
        self._world = world
        options = request.options
        self._first_rank = 0
        self._backend = str(options.get("backend") or "nccl")
        taken, ranks = self._take_devices(), int(options.get("ranks") or 0)
        if not taken:
            return
        if ranks > len(taken):
            why = f"{ranks} ranks were asked for, and {len(taken)} GPUs can be used"
            self._plan(0.1, ProbeEvent("failed", stage="listen", why=why, fix="fewer ranks"))
        else:
            self._is_up, self._ranks = True, ranks or len(taken)
            self._plan_stage(0.05, "listen")
            place = {"address": machine.address, "port": PORT + machine.number, "ranks": self._ranks}
            self._plan(0.1, ProbeEvent("listening", data=place))
            self._plan_stage(0.15, "import torch")
            self._plan_stage(0.15 + IMPORT_S, "join")

    def tell(self, line: dict[str, Any], now: float) -> None:
        """What its caller says (active/all_reduce/node.py). Raises ValueError or TypeError for what cannot be read."""
        kind = line.get("tell")
        if kind == "end":
            self._planned, self._is_up = [], False
        elif kind == "reach" and self._is_up:
            self._plan(0.0, ProbeEvent("reached", data={"cannot": {}}), since=now)
        elif kind == "go" and self._is_up:
            self._first_rank = int(line["first_rank"])
            imported_s = max(0.0, self._began + IMPORT_S / self._speed - now) * self._speed
            self._plan(0.1 + imported_s, ProbeEvent("ready", data=self._readiness()), since=now)
        elif kind == "round" and self._is_up:
            self._plan_round(line, now)

    def _readiness(self) -> dict[str, Any]:
        return {
            "import_s": IMPORT_S,
            "join_s": 0.1,
            "torch": TORCH,
            "backend": self._backend,
            "interface": INTERFACE,
            "address": self.machine.address,
            "ranks": self._ranks,
            "inherited": {},
        }

    def _plan_round(self, line: dict[str, Any], now: float) -> None:
        wanted = round_of(line)
        group = next((number for number, nodes in enumerate(wanted.groups) if self.machine.name in nodes), -1)
        members = self._members(wanted, group) if group >= 0 else ()
        own = [place for place, member in enumerate(members) if member.node == self.machine.name]
        if not own:
            self._plan(0.0, ProbeEvent("round", data={"round": wanted.round, "idle": True}), since=now)
            return
        first = self._first_rank - own[0]  # what makes global ranks of places
        at = 0.1
        self._plan_stage(0.0, "init", since=now)
        for collective, size in itertools.product(wanted.collectives, wanted.sizes_bytes):
            stage = stage_of(collective, size)
            self._plan_stage(at, stage, since=now)
            at += min(MEASURE_S, wanted.budget_s)
            run = f"{self.request.key} {wanted.round} {group}"
            times = collective_times(members, collective, size, self._backend, works=wanted.work, run=run)
            for place in own:
                told = RankTimes(
                    round=wanted.round,
                    group=group,
                    collective=collective,
                    size_bytes=size,
                    rank=place,
                    ranks=len(members),
                    node=self.machine.name,
                    gpu=members[place].gpu,
                    uuid=self.machine.uuid(members[place].gpu),
                    times_s=list(times[place]),
                    work_s=members[place].work_s if wanted.work else None,
                )
                event = ProbeEvent("times", rank=first + place, stage=stage, data=asdict(told))
                self._plan(at, event, since=now)
        self._plan(at + 0.02, ProbeEvent("round", data={"round": wanted.round, "group": group}), since=now)

    def _members(self, wanted: Round, group: int) -> tuple[Member, ...]:
        """Everyone in the group, on the first usable GPUs of each node: the same for all of its launchers, and found
        once for those of this process.
        """
        groups, key = self._world.groups, (self.request.key, wanted.round, group)
        if key not in groups:
            if len(groups) >= GROUPS_KEPT:
                groups.clear()
            machines = [self._world.machine_of(node) for node in wanted.groups[group]]
            groups[key] = tuple(
                Member.of(machine, gpu)
                for machine in machines
                for gpu in self._gpus(machine)[: wanted.ranks.get(machine.name)]
            )
        return groups[key]

    def _gpus(self, machine: ProbeMachine) -> list[int]:
        named = self.request.gpus if machine.chosen(self.request.gpus)[0] else ()  # by UUIDs of another node
        return machine.usable(named, self.request.force)
