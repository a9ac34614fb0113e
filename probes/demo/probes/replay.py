"""What a simulated node has for probes, and what probes of its single GPUs say: recorded events, played again.

The events (events.jsonl) are of GPUs in each condition that the demo shows; tests/demo_recording.py made the file. They
are compressed: what takes 20 s on a GPU takes 4 s here. A GPU's rates differ a little from those of its model, and
from run to run: the same device and run give the same figures everywhere.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from mltop.probes.active.supervisor.gate import Holder, Refusal, of_all, refused
from mltop.probes.active.supervisor.request import ProbeRequest
from mltop.probes.demo.gpus import MEMORY_TOTAL_BYTES, NAME
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN, DTYPE_OF, DTYPES, stage_deadline_s

EVENTS = Path(__file__).with_name("events.jsonl")
PYTHON, TORCH, CUDA = "/opt/train/bin/python3.11", "2.9.1+cu129", "12.9"
INTERFACE = "bond0"
LATEST_S = 0.35  # one device after the other, so that it looks like several
DEVICE_SD, RUN_SD = 0.01, 0.003  # of its model's mean; of one device from run to run
_COPY_SD = 0.005


@dataclass(frozen=True)
class ProbeMachine:
    """``number`` is the seed of the node's GPUs. ``owners``: GPU -> whose process uses it.

    ``braked``: the power supply holds every GPU's clock down. ``slow_gpu`` computes slowly at its full clock, for no
    reason that it tells. ``hot_gpu`` is badly cooled. ``slow_nic``: traffic to other nodes is slow.
    """

    name: str
    number: int
    gpus: int = 8
    owners: dict[int, Holder] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    braked: bool = False
    slow_gpu: int | None = None
    hot_gpu: int | None = None
    slow_nic: bool = False

    @property
    def address(self) -> str:
        return f"10.0.{self.number // 250}.{self.number % 250 + 1}"

    def uuid(self, index: int) -> str:
        """The GPU's UUID as in the node's samples."""
        return f"GPU-SIMULATED-{self.number:04d}-{index:02d}"

    def condition(self, index: int) -> str:
        """Which of the recorded GPUs it is like."""
        if self.braked:
            return "braked"
        return "slow" if index == self.slow_gpu else "hot" if index == self.hot_gpu else "healthy"

    def chosen(self, wanted: Sequence[str]) -> tuple[list[int], list[str]]:
        """Indexes of the GPUs named by index or UUID (of none named: all), and the names that none has."""
        index_of = {name: index for index in range(self.gpus) for name in (str(index), self.uuid(index))}
        unknown = [name for name in wanted if name not in index_of]
        chosen = {index_of[name] for name in wanted if name in index_of} if wanted else range(self.gpus)
        return sorted(chosen), unknown

    def usable(self, wanted: Sequence[str], force: bool) -> list[int]:
        return [index for index in self.chosen(wanted)[0] if self.refusal(index, force) is None]

    def refusal(self, index: int, force: bool) -> Refusal | None:
        """Why this GPU is not measured, as an agent says it; None when it can be."""
        if index in self.lost:
            return Refusal("lost: it fell off the bus", "reboot the node")
        owner = self.owners.get(index)
        if owner is not None and not force:
            return Refusal(f"in use by {owner}", "wait until it is free, or --force", "in_use", owner.who, (owner.pid,))
        return None

    def device(self, index: int) -> ProbeDevice:
        return ProbeDevice(self.uuid(index), index, NAME, "gpu", "2330", MEMORY_TOTAL_BYTES)

    def devices_data(self, indexes: Sequence[int]) -> dict[str, Any]:
        """The data of the event "devices"."""
        return {
            "simulated": True,
            "python": PYTHON,
            "torch": TORCH,
            "cuda": CUDA,
            "hip": "",
            "devices": [asdict(self.device(index)) for index in indexes],
        }


Recorded = tuple[float, dict[str, Any]]  # s after the start, the event's fields


@lru_cache(maxsize=1)
def _recordings() -> dict[tuple[str, str, str], list[Recorded]]:
    """The recorded events by condition, kind and data type ("" where it has none)."""
    recordings: dict[tuple[str, str, str], list[Recorded]] = {}
    for line in EVENTS.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        key = fields["condition"], fields["kind"], fields.get("dtype", "")
        recordings.setdefault(key, []).append((fields["at_s"], fields["event"]))
    return recordings


def speed_share(machine: ProbeMachine, index: int) -> float:
    """The share of a healthy GPU's TFLOPS that this one reaches."""
    (_, mine), (_, healthy) = (
        _recordings()[condition, "matmul", DTYPES[0].name][-1] for condition in (machine.condition(index), "healthy")
    )
    return float(mine["data"]["sustained_tflops"] / healthy["data"]["sustained_tflops"])


def device_result(
    machine: ProbeMachine, index: int, kind: str, key: str, *, dtype: str = "", others: Sequence[int] = ()
) -> dict[str, Any]:
    """The fields of the result of the run ``key``; ``others``: the GPUs that are measured beside it, by copies."""
    result: dict[str, Any] = copy.deepcopy(_recordings()[machine.condition(index), kind, dtype][-1][1]["data"])
    result.update(node=machine.name, gpu=index, uuid=machine.uuid(index))

    def varied(value: float, what: str, sd: float = _COPY_SD) -> float:
        device = random.Random(f"{machine.uuid(index)} {what}").gauss(1.0, sd)
        return value * device * random.Random(f"{machine.uuid(index)} {what} {key}").gauss(1.0, RUN_SD)

    if kind == "matmul":  # under a power limit it is the clock in which GPUs differ
        for name, phase in (("burst", result["phases"][0]), ("sustained", result["phases"][1])):
            factor = varied(1.0, f"{name} clock", DEVICE_SD)
            phase["sm_clock_mhz"] = min(round(phase["sm_clock_mhz"] * factor, 1), phase["sm_clock_max_mhz"])
            for rate in (rate for rate in result if rate.startswith(name) and rate.endswith("tflops")):
                result[rate] = round(result[rate] * factor, 1)
    elif kind == "copies":
        recorded_peers = itertools.cycle(result["peers"])
        result["peers"] = [{**next(recorded_peers), "to_gpu": other} for other in others if other != index]
    for fields in (result, *result.get("peers", ())):
        for rate in (rate for rate in fields if rate.endswith("bytes_per_s")):
            what = "copy" if kind == "memory" else f"{rate} {fields.get('to_gpu', '')}"
            fields[rate] = round(varied(fields[rate], what))
    return result


class Timeline:
    """Events of one running probe. Times are of any one clock, s; ``speed``: how much faster than planned it runs."""

    def __init__(self, machine: ProbeMachine, request: ProbeRequest, now: float, speed: float = 1.0) -> None:
        self.machine, self.request = machine, request
        self.ended = self._is_up = False  # up: more may be planned
        self._speed = speed
        self._began, self._until = now, now + request.total_s
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
        self.ended = not self._planned and not self._is_up
        if not self.ended and now >= self._until:
            events.append(ProbeEvent("failed", why=f"not over within {self.request.total_s:g} s"))
            self.ended = True
        return events

    def tell(self, line: dict[str, Any], now: float) -> None:
        """A line to the running probe: these take none, as they read nothing after their order."""

    def _plan(self, after_s: float, event: ProbeEvent, since: float | None = None) -> None:
        at = (self._began if since is None else since) + after_s / self._speed
        heapq.heappush(self._planned, (at, next(self._numbers), event))

    def _plan_stage(self, after_s: float, stage: str, since: float | None = None) -> None:
        limit_s = stage_deadline_s(self.request.kind, stage, self.request.deadlines_s)
        event = ProbeEvent("stage", stage=stage, fraction=0.0, deadline_s=limit_s)
        self._plan(after_s, event, since)

    def _take_devices(self) -> list[int]:
        """Says which there are and which are refused; the others. Collectives take all that were asked for, or none."""
        machine, request = self.machine, self.request
        chosen, unknown = machine.chosen(request.gpus)
        self._plan(0.0, ProbeEvent("devices", data=machine.devices_data(chosen)))
        for name in unknown:
            why = f"no GPU {name} on this node (there are 0-{machine.gpus - 1})"
            self._refuse(ProbeDevice(name), Refusal(why))
        refusals = {index: machine.refusal(index, request.force) for index in chosen}
        first = next(((index, refusal.why) for index, refusal in refusals.items() if refusal is not None), None)
        if not CHILDREN[request.kind].one_gpu and first is not None:
            refusals = {index: refusal or of_all(*first) for index, refusal in refusals.items()}
        for index, refusal in refusals.items():
            if refusal is not None:
                self._refuse(machine.device(index), refusal)
        return [index for index in chosen if refusals[index] is None]

    def _refuse(self, device: ProbeDevice, refusal: Refusal) -> None:
        self._plan(0.0, refused(device, refusal))


class Replay(Timeline):
    """matmul, memory and copies."""

    def __init__(self, machine: ProbeMachine, request: ProbeRequest, now: float, speed: float = 1.0) -> None:
        super().__init__(machine, request, now, speed)
        dtype = str(request.options.get("dtype") or DTYPES[0].name) if CHILDREN[request.kind].has_dtype else ""
        taken = self._take_devices()
        for index in taken:
            uuid = machine.uuid(index)
            if dtype and dtype not in DTYPE_OF:
                why, fix = f"no such data type: {dtype}", f"one of {', '.join(DTYPE_OF)}"
                self._plan(0.7, ProbeEvent("failed", device=uuid, stage="device", why=why, fix=fix))
                continue
            late_s = random.Random(f"{uuid} {request.key}").uniform(0.0, LATEST_S)
            for at_s, fields in _recordings()[machine.condition(index), request.kind, dtype]:
                event = ProbeEvent(**fields)
                event.device = uuid if event.device else ""
                if event.event == "result":
                    event.data = device_result(machine, index, request.kind, request.key, dtype=dtype, others=taken)
                if event.deadline_s is not None:
                    event.deadline_s = stage_deadline_s(request.kind, event.stage, request.deadlines_s)
                # What one process does for all devices is said once, and is over at once.
                if event.device or index == taken[0]:
                    self._plan(at_s + (late_s if CHILDREN[request.kind].per_device else 0.0), event)
