"""Simulated probes of single devices: which event comes when. Compressed: what takes 20 s there takes 4 s here."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mltop.probes.active.asked import Asked
from mltop.probes.active.deadlines import deadline_s
from mltop.probes.demo.probe_figures import FLOP_PER_CLOCK, copies_result, matmul_result, memory_result
from mltop.probes.demo.probe_machine import ProbeMachine
from mltop.probes.model.probe import ProbeDevice, ProbeEvent

# When each stage begins, s after the start; at the last one is the result.
MATMUL = (
    (0.05, "start python"),
    (0.2, "import torch"),
    (0.7, "device"),
    (0.9, "warm"),
    (1.4, "scan"),
    (2.2, "burst"),
    (2.7, "sustained"),
    (3.6, "check"),
    (3.9, ""),
)
MEMORY = ((0.05, "start python"), (0.2, "import torch"), (0.7, "device"), (0.9, "copy"), (1.6, ""))
COPIES = (
    (0.05, "start python"),
    (0.2, "import torch"),
    (0.6, "device"),
    (0.7, "to device"),
    (1.2, "to host"),
    (1.7, "together"),
    (2.3, "peers"),
    (3.3, ""),
)
CHOOSE = "choose the devices: --gpus"
LATEST_S = 0.35  # one device after the other, so that it looks like several


class Timeline:
    """Events of one running probe. Times are of any one clock, s; ``speed``: how much faster than planned it runs."""

    def __init__(self, machine: ProbeMachine, asked: Asked, now: float, speed: float = 1.0) -> None:
        self.machine, self.asked = machine, asked
        self.ended = False
        self._speed = speed
        self._began, self._until = now, now + asked.total_s
        self._planned: list[tuple[float, int, ProbeEvent]] = []
        self._numbers = itertools.count()

    @property
    def next_at(self) -> float:
        """When ``due`` has something to say."""
        return min(self._planned[0][0], self._until) if self._planned else self._until

    def due(self, now: float) -> list[ProbeEvent]:
        """What has happened until ``now`` and was not given yet."""
        events = []
        while self._planned and self._planned[0][0] <= now:
            events.append(heapq.heappop(self._planned)[2])
        self.ended = not self._planned and not self._is_open()
        if not self.ended and now >= self._until:
            events.append(ProbeEvent("failed", why=f"not over within {self.asked.total_s:g} s"))
            self.ended = True
        return events

    def tell(self, line: dict[str, Any], now: float) -> None:
        """A line to the running probe: these take none, as they read nothing after their order."""

    def _is_open(self) -> bool:
        """Whether something may still be planned."""
        return False

    def _plan(self, after_s: float, event: ProbeEvent, since: float | None = None) -> None:
        at = (self._began if since is None else since) + after_s / self._speed
        heapq.heappush(self._planned, (at, next(self._numbers), event))

    def _plan_stage(self, after_s: float, stage: str, device: str = "", since: float | None = None) -> None:
        limit_s = deadline_s(self.asked.kind, stage, self.asked.deadlines_s)
        event = ProbeEvent("stage", device=device, stage=stage, fraction=0.0, deadline_s=limit_s)
        self._plan(after_s, event, since)

    def _take_devices(self) -> list[int]:
        """Says which there are and which are refused; the others. Collectives take all that were asked for, or none."""
        machine, asked = self.machine, self.asked
        chosen, unknown = machine.chosen(asked.gpus)
        self._plan(0.0, ProbeEvent("devices", data=machine.devices_data(chosen)))
        for name in unknown:
            self._refuse(ProbeDevice(name), f"no GPU {name} on this node (there are 0-{machine.gpus - 1})")
        refusals = {index: machine.refusal(index, asked.force) for index in chosen}
        whys = [why for why, _ in refusals.values() if why]
        if asked.kind == "all_reduce" and whys:
            all_of_them = f"not started, because another device of this node is refused: {whys[0]}"
            refusals = {index: why if why[0] else (all_of_them, CHOOSE) for index, why in refusals.items()}
        for index, (why, fix) in refusals.items():
            if why:
                self._refuse(machine.device(index), why, fix)
        return [index for index in chosen if not refusals[index][0]]

    def _refuse(self, device: ProbeDevice, why: str, fix: str = "") -> None:
        data = {"device": asdict(device)}
        self._plan(0.0, ProbeEvent("refused", device=device.uuid, why=why, fix=fix, data=data))


class DeviceProbe(Timeline):
    """matmul, memory and copies."""

    def __init__(self, machine: ProbeMachine, asked: Asked, now: float, speed: float = 1.0) -> None:
        super().__init__(machine, asked, now, speed)
        dtype = str(asked.options.get("dtype") or "bf16")
        taken = self._take_devices()
        if asked.kind == "copies":
            self._plan_copies(taken)
            return
        if asked.kind == "matmul" and dtype not in FLOP_PER_CLOCK:
            self._plan_no_such_dtype(taken, dtype)
            return
        for index in taken:
            is_matmul = asked.kind == "matmul"
            result = (
                matmul_result(machine, index, dtype, asked.key)
                if is_matmul
                else memory_result(machine, index, asked.key)
            )
            self._plan_device(index, MATMUL if is_matmul else MEMORY, result)

    def _plan_no_such_dtype(self, taken: list[int], dtype: str) -> None:
        fix = f"one of {', '.join(FLOP_PER_CLOCK)}"
        for index in taken:
            uuid, why = self.machine.uuid(index), f"no such data type: {dtype}"
            self._plan(0.7, ProbeEvent("failed", device=uuid, stage="device", why=why, fix=fix))

    def _plan_device(self, index: int, stages: Sequence[tuple[float, str]], result: dict[str, Any]) -> None:
        uuid = self.machine.uuid(index)
        late_s = random.Random(f"{uuid} {self.asked.key}").uniform(0.0, LATEST_S)
        for (begins, stage), (ends, _) in zip(stages, stages[1:]):
            self._plan_stage(begins + late_s, stage, uuid)
            if ends - begins > 0.6:
                half = ProbeEvent("stage", device=uuid, stage=stage, fraction=0.5)
                self._plan((begins + ends) / 2 + late_s, half)
        self._plan(stages[-1][0] + late_s, ProbeEvent("result", device=uuid, data=result))

    def _plan_copies(self, taken: list[int]) -> None:
        """One process has all devices: its stages are the node's."""
        if not taken:
            return
        for begins, stage in COPIES[:-1]:
            self._plan_stage(begins, stage)
        for index in taken:
            result = copies_result(self.machine, index, taken, self.asked.key)
            self._plan(COPIES[-1][0], ProbeEvent("result", device=self.machine.uuid(index), data=result))
