"""What simulated H100s give when they are measured. Pure: the same device and run give the same figures everywhere.

Orders of magnitude are those that are measured on H100 SXM: bf16 GEMMs 790 TFLOPS in bursts and 670 at the 700 W
limit, memory copy 2.9 TB/s, copies to and from the host 50 to 55 GB/s, between GPUs 375 GB/s.
"""

from __future__ import annotations

import random
from typing import Any

from mltop.probes.demo.curves import POWER_LIMIT_W, SM_CLOCK_MAX_MHZ
from mltop.probes.demo.gpus import NAME
from mltop.probes.demo.probe_machine import MULTIPROCESSORS, VERSIONS, ProbeMachine

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
