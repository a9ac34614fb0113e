"""The simulated all-reduce: one launcher per node, as active/all_reduce speaks, without a word between them.

All launchers compute the same figures from the same round, so that those of two processes fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.active.asked import Asked
from mltop.probes.demo.probe_collectives import Member, collective_times
from mltop.probes.demo.probe_machine import INTERFACE, TORCH, ProbeMachine
from mltop.probes.demo.probe_timeline import Timeline
from mltop.probes.model.probe import ProbeEvent, RankTimes

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


@dataclass(frozen=True)
class Round:
    """What a launcher has to do: ``own`` are its ranks' places among ``members``; ``first``: place -> global rank."""

    number: int
    group: int
    members: tuple[Member, ...]
    own: tuple[int, ...]
    first: int
    works: bool


class Launcher(Timeline):
    """Raises ValueError or TypeError for options that cannot be read."""

    def __init__(self, machine: ProbeMachine, asked: Asked, now: float, speed: float, world: World) -> None:
        super().__init__(machine, asked, now, speed)
        self._world = world
        self._is_up = False
        options = asked.options
        self._nodes = [str(node) for node in options.get("nodes") or [machine.name]]
        self._backend = str(options.get("backend") or "nccl")
        taken, ranks = self._take_devices(), int(options.get("ranks") or 0)
        if not taken:
            return
        if ranks > len(taken):
            why = f"{ranks} ranks were asked for, and {len(taken)} GPUs can be used"
            self._plan(0.1, ProbeEvent("failed", stage="listen", why=why, fix="fewer ranks"))
        elif not options.get("leader") and not options.get("addresses"):
            why = f"cannot connect to {options.get('leader_node') or 'the leader'}: it has no address"
            self._plan(0.1, ProbeEvent("failed", stage="join", why=why))
        else:
            self._is_up = True
            self._plan_start(bool(options.get("leader")), ranks or len(taken))

    def tell(self, line: dict[str, Any], now: float) -> None:
        """A round, or the end. Raises ValueError or TypeError for a round that cannot be read."""
        if line.get("tell") == "end":
            self._planned, self._is_up = [], False
        elif line.get("tell") == "round" and self._is_up:
            self._plan_round(line, now)

    def _is_open(self) -> bool:
        return self._is_up

    def _plan_start(self, is_leader: bool, ranks: int) -> None:
        if is_leader:
            self._plan_stage(0.05, "listen")
            addresses = [{"address": self.machine.address, "interface": INTERFACE}]
            data = {"port": PORT + self.machine.number, "addresses": addresses}
            self._plan(0.1, ProbeEvent("listening", data=data))
        self._plan_stage(0.15, "import torch")
        self._plan_stage(0.15 + IMPORT_S, "join")
        ready = {
            "import_s": IMPORT_S,
            "join_s": 0.1,
            "torch": TORCH,
            "backend": self._backend,
            "interface": INTERFACE,
            "address": self.machine.address,
            "ranks": ranks,
            "inherited": {},
        }
        self._plan(0.25 + IMPORT_S, ProbeEvent("ready", data=ready))

    def _plan_round(self, line: dict[str, Any], now: float) -> None:
        wanted = self._round(line)
        if wanted is None:
            idle = {"round": int(line.get("round") or 0), "idle": True}
            self._plan(0.0, ProbeEvent("round", data=idle), since=now)
            return
        step_s = min(MEASURE_S, float(line.get("budget_s") or MEASURE_S))
        at = 0.1
        self._plan_stage(0.0, "init", since=now)
        for collective in map(str, line.get("collectives") or ["all-reduce"]):
            for size in map(int, line.get("sizes_bytes") or []):
                stage = stage_of(collective, size)
                self._plan_stage(at, stage, since=now)
                at += step_s
                for times in self._times(wanted, collective, size):
                    rank = wanted.first + times.rank
                    self._plan(at, ProbeEvent("times", rank=rank, stage=stage, data=asdict(times)), since=now)
        done = {"round": wanted.number, "group": wanted.group}
        self._plan(at + 0.02, ProbeEvent("round", data=done), since=now)

    def _round(self, line: dict[str, Any]) -> Round | None:
        groups = [[str(node) for node in group] for group in line.get("groups") or []]
        group = next((number for number, nodes in enumerate(groups) if self.machine.name in nodes), None)
        if group is None:
            return None
        number = int(line.get("round") or 0)
        ranks = {str(node): int(count) for node, count in (line.get("ranks") or {}).items()}
        members = self._members(number, group, groups[group], ranks)
        own = tuple(place for place, member in enumerate(members) if member.node == self.machine.name)
        if not own:
            return None
        return Round(number, group, members, own, self._first_rank(ranks) - own[0], bool(line.get("work")))

    def _members(self, number: int, group: int, nodes: list[str], ranks: dict[str, int]) -> tuple[Member, ...]:
        """Everyone in the group: the same for all of its launchers, and found once for those of this process."""
        known, key = self._world.groups, (self.asked.key, number, group)
        if key not in known:
            while len(known) >= GROUPS_KEPT:
                known.pop(next(iter(known)))
            machines = [(self._world.machine_of(node), ranks.get(node)) for node in nodes]
            known[key] = tuple(
                Member.of(machine, gpu) for machine, most in machines for gpu in self._gpus(machine, most)
            )
        return known[key]

    def _gpus(self, machine: ProbeMachine, most: int | None) -> list[int]:
        """The first of its GPUs that can be used, as many as it has ranks."""
        named = self.asked.gpus if machine.chosen(self.asked.gpus)[0] else ()  # by UUIDs of another node
        return machine.usable(named, self.asked.force)[:most]

    def _first_rank(self, ranks: dict[str, int]) -> int:
        """The number of this node's first rank among all nodes' ranks."""
        before = self._nodes[: self._nodes.index(self.machine.name)] if self.machine.name in self._nodes else []
        return sum(ranks.get(node, 0) for node in before)

    def _times(self, wanted: Round, collective: str, size: int) -> list[RankTimes]:
        members, run = wanted.members, f"{self.asked.key} {wanted.number} {wanted.group}"
        times = collective_times(members, collective, size, self._backend, works=wanted.works, run=run)
        return [
            RankTimes(
                round=wanted.number,
                group=wanted.group,
                collective=collective,
                size_bytes=size,
                rank=place,
                ranks=len(members),
                node=self.machine.name,
                gpu=members[place].gpu,
                uuid=self.machine.uuid(members[place].gpu),
                times_s=list(times[place]),
                work_s=members[place].work_s if wanted.works else None,
            )
            for place in wanted.own
        ]


def stage_of(collective: str, size_bytes: int) -> str:
    """ "measure 256 MiB", "measure all-gather 32 KiB"."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):  # noqa: B007 - where it stopped
        if value < 1024:
            break
        value /= 1024
    name = "" if collective == "all-reduce" else f"{collective} "
    return f"measure {name}{value:g} {unit}"
