"""The simulated all-reduce: one launcher per node, as active/all_reduce speaks, without a word between them.

All launchers compute the same figures from the same round, so that those of two processes fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mltop.probes.active.asked import Asked
from mltop.probes.demo.probe_collectives import Member, collective_times
from mltop.probes.demo.probe_machine import INTERFACE, TORCH, ProbeMachine
from mltop.probes.demo.probe_timeline import Timeline
from mltop.probes.model.probe import ProbeEvent, RankTimes

IMPORT_S = 0.6
MEASURE_S = 0.3  # per size, or the budget where that is less
PORT = 41_000

MachineOf = Callable[[str], ProbeMachine]


class Launcher(Timeline):
    """Raises NoSuchGpu. ``machine_of`` gives any node of the demo, also those that other processes simulate."""

    def __init__(
        self, machine: ProbeMachine, asked: Asked, now: float, machine_of: MachineOf, speed: float = 1.0
    ) -> None:
        super().__init__(machine, asked, now, speed)
        self._machine_of = machine_of
        self._gpus: list[int] = []
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
            self._gpus = taken[:ranks] if ranks else taken
            self._is_up = True
            self._plan_start(bool(options.get("leader")))

    def tell(self, line: dict[str, Any], now: float) -> None:
        if line.get("tell") == "end":
            self._planned, self._is_up = [], False
        elif line.get("tell") == "round" and self._is_up:
            self._plan_round(line, now)

    def _is_open(self) -> bool:
        return self._is_up

    def _take_devices(self) -> list[int]:
        """GPUs that cannot be used are left out, told in a note; refused when none is left."""
        chosen = self.machine.chosen(self.asked.gpus)
        self._plan(0.0, ProbeEvent("devices", data=self.machine.devices_data(chosen)))
        refusals = {index: self.machine.refusal(index, self.asked.force) for index in chosen}
        taken = [index for index in chosen if not refusals[index][0]]
        for index in chosen:
            why, fix = refusals[index]
            if why and taken:
                self._plan(0.0, ProbeEvent("note", text=f"{self.machine.name} GPU {index} takes no part: {why}"))
            elif why:
                self._plan(0.0, ProbeEvent("refused", device=self.machine.uuid(index), why=why, fix=fix))
        return taken

    def _plan_start(self, is_leader: bool) -> None:
        if is_leader:
            self._plan_stage(0.05, "listen")
            addresses = [{"address": self.machine.address, "interface": INTERFACE}]
            data = {"port": PORT + self.machine.number, "addresses": addresses}
            self._plan(0.1, ProbeEvent("listening", data=data))
        self._plan_stage(0.15, "import torch")
        self._plan_stage(0.15 + IMPORT_S, "join")
        ready = {
            "import_s": IMPORT_S,
            "torch": TORCH,
            "backend": self._backend,
            "interface": INTERFACE,
            "address": self.machine.address,
            "ranks": len(self._gpus),
            "inherited": {},
        }
        self._plan(0.25 + IMPORT_S, ProbeEvent("ready", data=ready))

    def _plan_round(self, line: dict[str, Any], now: float) -> None:
        """Does nothing where this node is in no group."""
        groups = [[str(node) for node in group] for group in line.get("groups") or []]
        number = next((number for number, group in enumerate(groups) if self.machine.name in group), None)
        if number is None:
            return
        ranks = {str(node): int(count) for node, count in (line.get("ranks") or {}).items()}
        members = self._members(groups[number], ranks)
        own = [place for place, member in enumerate(members) if member.node == self.machine.name]
        first = self._first_rank(ranks) - own[0]
        step_s = min(MEASURE_S, float(line.get("budget_s") or MEASURE_S))
        at = 0.1
        for place in own:
            self._plan_stage(0.0, "init", rank=first + place, since=now)
        for collective in line.get("collectives") or ["all-reduce"]:
            for size in line.get("sizes_bytes") or []:
                for place in own:
                    self._plan_stage(at, stage_of(str(collective), int(size)), rank=first + place, since=now)
                at += step_s
                for times in self._times(line, number, members, str(collective), int(size), own):
                    event = ProbeEvent("times", device=times.uuid, rank=first + times.rank, data=asdict(times))
                    self._plan(at, event, since=now)
        self._plan(at + 0.02, ProbeEvent("round", data={"round": int(line.get("round") or 0)}), since=now)

    def _members(self, group: list[str], ranks: dict[str, int]) -> tuple[Member, ...]:
        """Everyone in the group, as each of its launchers sees it: of another node the first GPUs that can be used."""
        members: list[Member] = []
        for node in group:
            machine = self._machine_of(node)
            gpus = self._gpus
            if node != self.machine.name:
                usable = [index for index in range(machine.gpus) if not machine.refusal(index, self.asked.force)[0]]
                gpus = usable[: ranks.get(node, len(usable))]
            members += [Member.of(machine, index) for index in gpus]
        return tuple(members)

    def _first_rank(self, ranks: dict[str, int]) -> int:
        """The number of this node's first rank among all nodes' ranks."""
        before = self._nodes[: self._nodes.index(self.machine.name)] if self.machine.name in self._nodes else []
        return sum(ranks.get(node, 0) for node in before)

    def _times(
        self, line: dict[str, Any], group: int, members: tuple[Member, ...], collective: str, size: int, own: list[int]
    ) -> list[RankTimes]:
        run = f"{self.asked.key} {line.get('round')} {group}"
        works = bool(line.get("work"))
        times = collective_times(members, collective, size, self._backend, works, run)
        return [
            RankTimes(
                round=int(line.get("round") or 0),
                group=group,
                collective=collective,
                size_bytes=size,
                rank=place,
                ranks=len(members),
                node=self.machine.name,
                gpu=members[place].gpu,
                uuid=self.machine.uuid(members[place].gpu),
                times_s=list(times[place]),
                work_s=members[place].work_s if works else None,
            )
            for place in own
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
