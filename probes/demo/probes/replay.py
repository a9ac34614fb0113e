"""What a simulated node has for probes: its devices, who uses them, and what is wrong with them.

What simulated H100s give when they are measured. Pure: the same device and run give the same figures everywhere.

Orders of magnitude are those that are measured on H100 SXM: bf16 GEMMs 790 TFLOPS in bursts and 670 at the 700 W
limit, memory copy 2.9 TB/s, copies to and from the host 50 to 55 GB/s, between GPUs 375 GB/s.

Simulated probes of single devices: which event comes when. Compressed: what takes 20 s there takes 4 s here.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.active.supervisor.request import ProbeRequest
from mltop.probes.demo.gpus import MEMORY_TOTAL_BYTES, NAME, POWER_LIMIT_W, SM_CLOCK_MAX_MHZ
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import stage_deadline_s

PYTHON, TORCH, CUDA = "/opt/train/bin/python3.11", "2.9.1+cu129", "12.9"
VERSIONS = {"torch": TORCH, "cuda": CUDA, "driver": "570.124.06", "cublas": "12.9.1"}
MULTIPROCESSORS = 132
INTERFACE = "bond0"


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
        """As in the node's samples."""
        return f"GPU-SIMULATED-{self.number:04d}-{index:02d}"

    def chosen(self, wanted: Sequence[str]) -> tuple[list[int], list[str]]:
        """Indexes of the GPUs named by index or UUID (of none named: all), and the names that none has."""
        known = {name: index for index in range(self.gpus) for name in (str(index), self.uuid(index))}
        unknown = [name for name in wanted if name not in known]
        return sorted({known[name] for name in wanted if name in known}) if wanted else list(range(self.gpus)), unknown

    def usable(self, wanted: Sequence[str], force: bool) -> list[int]:
        return [index for index in self.chosen(wanted)[0] if not self.refusal(index, force)[0]]

    def refusal(self, index: int, force: bool) -> tuple[str, str]:
        """Why this GPU is not measured and what would help, as an agent says it; ("", "") when it can be."""
        if index in self.lost:
            return f"GPU {index} is lost: it fell off the bus", "reboot the node"
        owner = self.owners.get(index)
        if owner is not None and not force:
            return f"GPU {index} is in use by {owner}", "wait until it is free, or --force"
        return "", ""

    def device(self, index: int) -> ProbeDevice:
        return ProbeDevice(self.uuid(index), index, NAME, "gpu", "2330", MEMORY_TOTAL_BYTES)

    def devices_data(self, indexes: Sequence[int]) -> dict[str, Any]:
        """Of the event "devices"."""
        return {
            "simulated": True,
            "python": PYTHON,
            "torch": TORCH,
            "cuda": CUDA,
            "hip": "",
            "devices": [asdict(self.device(index)) for index in indexes],
        }


FLOP_PER_CLOCK = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "tf32": 2048, "fp32": 256}  # and SM, dense
BURST_EFFICIENCY, SUSTAINED_EFFICIENCY = 0.833, 0.88
BURST_MHZ, SUSTAINED_MHZ, BRAKED_MHZ, HOT_MHZ = 1755.0, 1410.0, 420.0, 1095.0
SLOW_SHARE = 0.6  # of what the slow GPU should give
DEVICE_SD, RUN_SD = 0.01, 0.003  # of its model's mean; of one device from run to run
BRAKE = {"hw_slowdown": 1.0, "power_brake": 1.0}
BURST_S, SUSTAINED_S = 0.8, 3.0
SHAPE, SUSTAINED_SHAPE = [2048, 2048, 13312], [8192, 8192, 8192]
COPY_BYTES, HOST_COPY_BYTES = 1 << 30, 256 << 20
GIGA = 1e9


def figure(mean: float, machine: ProbeMachine, index: int, what: str, run: str, *, sd: float = DEVICE_SD) -> float:
    """``mean`` as this device has it (``sd`` of it), and a little different in every run."""
    device = random.Random(f"{machine.uuid(index)} {what}").gauss(1.0, sd)
    return mean * device * random.Random(f"{machine.uuid(index)} {what} {run}").gauss(1.0, RUN_SD)


def speed_share(machine: ProbeMachine, index: int) -> float:
    """Of what a healthy GPU computes."""
    if machine.braked:
        return BRAKED_MHZ / SUSTAINED_MHZ
    if index == machine.slow_gpu:
        return SLOW_SHARE
    return HOT_MHZ / SUSTAINED_MHZ if index == machine.hot_gpu else 1.0


def matmul_result(machine: ProbeMachine, index: int, dtype: str, run: str) -> dict[str, Any]:
    """The fields of a MatmulResult. Raises KeyError for a dtype that there is not."""
    phases = [_phase(machine, index, name, run) for name in ("burst", "sustained")]
    burst = _tflops(dtype, BURST_EFFICIENCY, phases[0])
    sustained = _tflops(dtype, SUSTAINED_EFFICIENCY, phases[1])
    if index == machine.slow_gpu:
        burst, sustained = burst * SLOW_SHARE, sustained * SLOW_SHARE
    return {
        **_device(machine, index, 4.0),
        "phases": phases,
        "dtype": dtype,
        "shape": SHAPE,
        "iterations": 100,
        "burst_tflops": round(burst, 1),
        "burst_median_tflops": round(burst * 1.002, 1),
        "burst_p5_tflops": round(burst * 0.978, 1),
        "burst_best_tflops": round(burst * 1.013, 1),
        "sustained_shape": SUSTAINED_SHAPE,
        "sustained_tflops": round(sustained, 1),
        "shapes_tried": 43,
        "code_path": "cuBLAS (SIMULATED)",
        "multiprocessors": MULTIPROCESSORS,
        "still_heating": False,
        "checked_iterations": 228,
        "corrupt_iterations": 0,
        "checked_pflop": round(sustained * SUSTAINED_S / 1000, 3),
        "checksum": "9f2c41d07be6358a",
        "upload_intact": True,
    }


def memory_result(machine: ProbeMachine, index: int, run: str) -> dict[str, Any]:
    """The fields of a MemoryResult."""
    mean = 2.93e12 * (0.45 if machine.braked else 1.0)
    rate = figure(mean, machine, index, "copy", run, sd=DEVICE_SD / 2)
    return {
        **_device(machine, index, 2.5),
        "phases": [_copy_phase(machine, index, "copy", 0.7, 402.0)],
        "size_bytes": COPY_BYTES,
        "iterations": 20,
        "copy_bytes_per_s": round(rate),
        "copy_best_bytes_per_s": round(rate * 1.008),
        "intact": True,
    }


def copies_result(machine: ProbeMachine, index: int, others: list[int], run: str) -> dict[str, Any]:
    """The fields of a CopiesResult; ``others``: the GPUs that are measured beside it."""

    def rate(mean: float, what: str) -> int:
        return round(figure(mean * GIGA, machine, index, what, run, sd=DEVICE_SD / 2))

    return {
        **_device(machine, index, 4.0),
        "phases": [_copy_phase(machine, index, name, 0.5, 121.0) for name in ("to device", "to host", "together")],
        "size_bytes": HOST_COPY_BYTES,
        "iterations": 10,
        "to_device_bytes_per_s": rate(54.3, "to device"),
        "to_host_bytes_per_s": rate(52.7, "to host"),
        "to_device_together_bytes_per_s": rate(51.0, "all to device"),
        "to_host_together_bytes_per_s": rate(48.4, "all to host"),
        "peers": [
            {"to_gpu": other, "bytes_per_s": rate(375.0, f"to {other}"), "direct": True}
            for other in others
            if other != index
        ],
        "intact": True,
    }


def _copy_phase(machine: ProbeMachine, index: int, name: str, seconds: float, power_w: float) -> dict[str, Any]:
    """The fields of a Phase that keeps the tensor cores idle."""
    clock, throttle = (BRAKED_MHZ, BRAKE) if machine.braked else (float(SM_CLOCK_MAX_MHZ), {})
    return _phase_fields(machine, index, name, seconds, clock=clock, power=power_w, throttle=throttle)


def _device(machine: ProbeMachine, index: int, seconds: float) -> dict[str, Any]:
    return {
        "node": machine.name,
        "gpu": index,
        "uuid": machine.uuid(index),
        "name": NAME,
        "kind": "gpu",
        "pci_device": "2330",
        "seconds": seconds,
        "versions": VERSIONS,
    }


def _tflops(dtype: str, efficiency: float, phase: dict[str, Any]) -> float:
    return efficiency * MULTIPROCESSORS * FLOP_PER_CLOCK[dtype] * float(phase["sm_clock_mhz"]) / 1e6


def _phase(machine: ProbeMachine, index: int, name: str, run: str) -> dict[str, Any]:
    """The fields of a Phase. Under a power limit it is the clock in which GPUs differ."""
    is_burst = name == "burst"
    clock = figure(BURST_MHZ if is_burst else SUSTAINED_MHZ, machine, index, f"{name} clock", run)
    power, throttle = (585.0, {}) if is_burst else (0.993 * POWER_LIMIT_W, {"sw_power_cap": 0.97})
    if machine.braked:
        clock, power, throttle = BRAKED_MHZ, 214.0, BRAKE
    elif index == machine.slow_gpu:  # it draws too little for its clock: nothing else betrays it
        clock, power, throttle = figure(1740.0, machine, index, name, run), 431.0, {}
    elif index == machine.hot_gpu and not is_burst:
        clock, power, throttle = HOT_MHZ, 498.0, {"hw_slowdown": 0.41, "hw_thermal": 0.41}
    power = figure(power, machine, index, f"{name} power", run, sd=0.002)
    seconds = BURST_S if is_burst else SUSTAINED_S
    return _phase_fields(machine, index, name, seconds, clock=clock, power=power, throttle=throttle)


def _phase_fields(
    machine: ProbeMachine,
    index: int,
    name: str,
    seconds: float,
    *,
    clock: float,
    power: float,
    throttle: dict[str, float],
) -> dict[str, Any]:
    hot = 33.0 if index == machine.hot_gpu and power > POWER_LIMIT_W / 2 else 0.0
    return {
        "name": name,
        "seconds": seconds,
        "power_w": round(min(power, POWER_LIMIT_W), 1),
        "power_limit_w": POWER_LIMIT_W,
        "power_limit_default_w": POWER_LIMIT_W,
        "sm_clock_mhz": round(min(clock, SM_CLOCK_MAX_MHZ), 1),
        "sm_clock_max_mhz": SM_CLOCK_MAX_MHZ,
        "temperature_c": round(min(86.0, 27.0 + hot + power * 0.055 + index % 4)),
        "throttle_share": throttle,
        "pcie_gen": 5,
        "pcie_width": 16,
    }


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

    def __init__(self, machine: ProbeMachine, request: ProbeRequest, now: float, speed: float = 1.0) -> None:
        self.machine, self.request = machine, request
        self.ended = False
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
        self.ended = not self._planned and not self._is_open()
        if not self.ended and now >= self._until:
            events.append(ProbeEvent("failed", why=f"not over within {self.request.total_s:g} s"))
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
        limit_s = stage_deadline_s(self.request.kind, stage, self.request.deadlines_s)
        event = ProbeEvent("stage", device=device, stage=stage, fraction=0.0, deadline_s=limit_s)
        self._plan(after_s, event, since)

    def _take_devices(self) -> list[int]:
        """Says which there are and which are refused; the others. Collectives take all that were asked for, or none."""
        machine, request = self.machine, self.request
        chosen, unknown = machine.chosen(request.gpus)
        self._plan(0.0, ProbeEvent("devices", data=machine.devices_data(chosen)))
        for name in unknown:
            self._refuse(ProbeDevice(name), f"no GPU {name} on this node (there are 0-{machine.gpus - 1})")
        refusals = {index: machine.refusal(index, request.force) for index in chosen}
        whys = [why for why, _ in refusals.values() if why]
        if request.kind == "all_reduce" and whys:
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

    def __init__(self, machine: ProbeMachine, request: ProbeRequest, now: float, speed: float = 1.0) -> None:
        super().__init__(machine, request, now, speed)
        dtype = str(request.options.get("dtype") or "bf16")
        taken = self._take_devices()
        if request.kind == "copies":
            self._plan_copies(taken)
            return
        if request.kind == "matmul" and dtype not in FLOP_PER_CLOCK:
            self._plan_no_such_dtype(taken, dtype)
            return
        for index in taken:
            is_matmul = request.kind == "matmul"
            result = (
                matmul_result(machine, index, dtype, request.key)
                if is_matmul
                else memory_result(machine, index, request.key)
            )
            self._plan_device(index, MATMUL if is_matmul else MEMORY, result)

    def _plan_no_such_dtype(self, taken: list[int], dtype: str) -> None:
        fix = f"one of {', '.join(FLOP_PER_CLOCK)}"
        for index in taken:
            uuid, why = self.machine.uuid(index), f"no such data type: {dtype}"
            self._plan(0.7, ProbeEvent("failed", device=uuid, stage="device", why=why, fix=fix))

    def _plan_device(self, index: int, stages: Sequence[tuple[float, str]], result: dict[str, Any]) -> None:
        uuid = self.machine.uuid(index)
        late_s = random.Random(f"{uuid} {self.request.key}").uniform(0.0, LATEST_S)
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
            result = copies_result(self.machine, index, taken, self.request.key)
            self._plan(COPIES[-1][0], ProbeEvent("result", device=self.machine.uuid(index), data=result))
