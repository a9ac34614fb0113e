"""Simulated GPUs, labelled as such: how they behave over time, and a GPU source of them for the agent.

Pure arithmetic, cheap enough for thousands of GPUs a second. Orders of magnitude are those of an H100 SXM: 700 W limit,
1980 MHz boost, about 70 W idle. A GPU whose rank waits in a collective reports busy 1.0 at a fraction of its power: the
collective's kernel only spins.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, NamedTuple

from mltop.probes.demo.machine import HEALTHY, gpu_bus
from mltop.probes.model import (
    Ecc,
    Fabric,
    Gap,
    GpuProcess,
    GpuSample,
    KernelEvent,
    Nvlink,
    NvlinkLink,
    Pcie,
    Remap,
    RemapBanks,
)

_FIXED = HEALTHY["gpu"]
NAME: str = _FIXED["name"]
SM_CLOCK_MAX_MHZ: int = _FIXED["sm_clock_max_mhz"]
SLOWDOWN_C: float = _FIXED["temperature_slowdown_c"]
MEMORY_TOTAL_BYTES: int = _FIXED["memory_total_bytes"]

TRAINING, WAITING, STARVED, IDLE = "training", "waiting", "starved", "idle"


class _Load(NamedTuple):
    """What an activity does to a GPU; shares are 0..1."""

    mean_w: float
    busy: float = 0.0
    sm_active: float = 0.0
    sm_occupancy: float = 0.0


_LOADS = {
    TRAINING: _Load(545.0, 0.97, 0.74, 0.31),
    WAITING: _Load(131.0, 1.0, 0.11, 0.05),
    STARVED: _Load(112.0),
    IDLE: _Load(69.0),
}
_WAVES = ((47.0, 60.0), (11.0, 35.0), (3.1, 20.0))  # period in s, amplitude in W: epochs, steps, noise
_SMALL = 0.05  # of those amplitudes when nothing is computed
_CAP_FROM_W = 640.0  # above this the power cap begins to take clocks away
_CAPPED = 0.03  # of the time spent training, about
_COOLING_S = 20.0

EPISODE_PERIOD_S, EPISODE_S = 40.0, 12.0
_EPISODE_W = 330.0
_EPISODE_CLOCK_MHZ = 1095
_EPISODE_FROM_C, _EPISODE_TO_C = 72.0, SLOWDOWN_C


@dataclass(frozen=True)
class Shape:
    """What makes one GPU differ from the next. ``hot``: badly cooled, hw_thermal episodes while training."""

    phases: tuple[float, float, float]
    offset_w: float
    memory_bytes: int
    hot: bool


@lru_cache(maxsize=8192)
def shape_of(seed: int, index: int, hot: bool) -> Shape:
    source = random.Random(seed * 1009 + index)
    first, second, third = (source.uniform(0, math.tau) for _ in range(3))
    memory = int(source.uniform(0.78, 0.92) * MEMORY_TOTAL_BYTES)
    return Shape((first, second, third), source.uniform(-20, 20), memory, hot)


def set_moving(gpu: GpuSample, shape: Shape, t: float, activity: str, since: float) -> None:
    """Set all that moves as it is at ``t`` seconds. The GPU has been at ``activity`` since ``since`` and was training
    before.
    """
    training = activity == TRAINING
    wave = math.sin(math.tau * t / _WAVES[1][0] + shape.phases[1])
    throttled = training and shape.hot and in_episode(t)
    power = _power(shape, t, activity)
    temperature = _temperature(shape, t, activity, since)
    trained_s = t if training else since
    reasons, clock = _clock(activity, throttled, power)
    gpu.pcie.rx_bytes_per_s, gpu.pcie.tx_bytes_per_s = (2.1e8, 0.9e8) if training else (0.0, 0.0)
    gpu.nvlink.rx_bytes_per_s = gpu.nvlink.tx_bytes_per_s = 1.2e11 if training else 0.0
    vars(gpu).update(
        {
            "busy": round(_LOADS[activity].busy + (0.03 * wave if training else 0.0), 2),  # NVML gives whole percents
            "sm_active": round(_LOADS[activity].sm_active * (1 + 0.08 * wave), 4),
            "sm_occupancy": round(_LOADS[activity].sm_occupancy * (1 + 0.08 * wave), 4),
            "tensor_active": round(0.46 * (1 + 0.15 * wave), 4) if training else 0.0,
            "dram_active": round(0.55 * (1 + 0.12 * wave), 4) if training else 0.0,
            "fp64_active": 0.0,
            "fp32_active": round(0.09 * (1 + 0.1 * wave), 4) if training else 0.01 if activity == WAITING else 0.0,
            "fp16_active": round(0.04 * (1 + 0.1 * wave), 4) if training else 0.0,
            "memory_used_bytes": 4 * 1024**2 if activity == IDLE else shape.memory_bytes,
            "temperature_c": float(round(temperature)),
            "memory_temperature_c": float(round(temperature + 7)),
            "memory_temperature_margin_c": _FIXED["memory_temperature_max_c"] - float(round(temperature + 7)),
            "temperature_margin_c": SLOWDOWN_C - round(temperature),
            "power_w": round(power, 1),
            "energy_j": round(_energy(shape, t, activity, since), 1),
            "sm_clock_mhz": clock,
            "throttle_reasons": reasons,
            "throttle_ns": {
                "hw_thermal": int(episode_seconds(trained_s) * 1e9) if shape.hot else 0,
                "sw_power_cap": int(trained_s * _CAPPED * 1e9) if activity != IDLE else 0,
            },
            "throttle_share": _shares(shape, t, activity, reasons),
        }
    )


def _shares(shape: Shape, t: float, activity: str, reasons: list[str]) -> dict[str, float]:
    """The throttle shares of the last second, as far as they are not 0."""
    shares = {"sw_power_cap": 1.0} if "sw_power_cap" in reasons else {}
    if activity == TRAINING and shape.hot:
        hot = round(episode_seconds(t) - episode_seconds(t - 1.0), 2)
        shares = {**shares, "hw_thermal": hot} if hot else shares
    return shares


def in_episode(t: float) -> bool:
    return t % EPISODE_PERIOD_S >= EPISODE_PERIOD_S - EPISODE_S


def episode_seconds(t: float) -> float:
    """How much of the time from 0 to ``t`` lay in episodes."""
    whole, part = divmod(max(0.0, t), EPISODE_PERIOD_S)
    return whole * EPISODE_S + max(0.0, part - (EPISODE_PERIOD_S - EPISODE_S))


def _power(shape: Shape, t: float, activity: str) -> float:
    if activity == TRAINING and shape.hot and in_episode(t):
        return _EPISODE_W
    scale = 1.0 if activity == TRAINING else _SMALL
    waves = sum(
        amplitude * math.sin(math.tau * t / period + phase) for (period, amplitude), phase in zip(_WAVES, shape.phases)
    )
    return _LOADS[activity].mean_w + scale * (shape.offset_w + waves)


def _clock(activity: str, throttled: bool, power_w: float) -> tuple[list[str], int]:
    if throttled:
        return ["hw_slowdown", "hw_thermal"], _EPISODE_CLOCK_MHZ
    if activity == IDLE:
        return ["gpu_idle"], 345
    if activity == STARVED:
        return ["gpu_idle"], SM_CLOCK_MAX_MHZ
    if power_w > _CAP_FROM_W:
        return ["sw_power_cap"], SM_CLOCK_MAX_MHZ - int((power_w - _CAP_FROM_W) * 4)
    return [], SM_CLOCK_MAX_MHZ


def _settled_c(power_w: float) -> float:
    """Where the temperature ends at this power."""
    return 30.0 + 0.055 * power_w


def _temperature(shape: Shape, t: float, activity: str, since: float) -> float:
    if activity == TRAINING:
        return _training_c(shape, t)
    if activity == IDLE:
        return _settled_c(_LOADS[IDLE].mean_w)
    settled = _settled_c(_LOADS[activity].mean_w)
    return settled + (_training_c(shape, since) - settled) * math.exp(-max(0.0, t - since) / _COOLING_S)


def _training_c(shape: Shape, t: float) -> float:
    if shape.hot:
        part, build_s = t % EPISODE_PERIOD_S, EPISODE_PERIOD_S - EPISODE_S
        rise = part / build_s if part < build_s else 1 - (part - build_s) / EPISODE_S
        return _EPISODE_FROM_C + (_EPISODE_TO_C - _EPISODE_FROM_C) * rise
    # The slow wave arrives late, the fast ones hardly at all: the heat sink is a low pass.
    (period, amplitude), phase = _WAVES[0], shape.phases[0]
    slow = amplitude * 0.8 * math.sin(math.tau * (t - 6) / period + phase)
    return _settled_c(_LOADS[TRAINING].mean_w + shape.offset_w + slow)


def _energy(shape: Shape, t: float, activity: str, since: float) -> float:
    """The integral of the power from 0 to ``t``; episodes are counted with the mean power they replace."""
    if activity == IDLE:
        return _integral(shape, t, IDLE)
    trained_s = t if activity == TRAINING else since
    energy = _integral(shape, trained_s, TRAINING)
    if shape.hot:
        energy -= episode_seconds(trained_s) * (_LOADS[TRAINING].mean_w + shape.offset_w - _EPISODE_W)
    if activity != TRAINING:
        energy += _integral(shape, t, activity) - _integral(shape, since, activity)
    return energy


def _integral(shape: Shape, t: float, activity: str) -> float:
    scale = 1.0 if activity == TRAINING else _SMALL
    waves = sum(
        amplitude * period / math.tau * (math.cos(phase) - math.cos(math.tau * t / period + phase))
        for (period, amplitude), phase in zip(_WAVES, shape.phases)
    )
    return (_LOADS[activity].mean_w + scale * shape.offset_w) * t + scale * waves


HOT_GPU = 1
CONTEXT_BYTES = 600 * 1024**2  # held by the driver beside the process's own memory
NVLINKS = 18
SEED = 0  # of SimulatedGpus: what makes them differ from other nodes'
UPTIME_S = 5_000.0  # the counters of SimulatedGpus begin as if the node had been up this long

Ranks = Sequence[tuple[int, int]]


def simulate(
    t: float,
    count: int,
    seed: int,
    ranks: Ranks,
    hung_since: float | None,
    *,
    culprit_gpu: int | None = None,
) -> list[GpuSample]:
    """``count`` GPUs at ``t`` seconds after their counters were 0; ``hung_since`` on that clock or None.

    ``ranks`` are (pid, GPU index). From ``hung_since`` on, GPUs with ranks spin in a collective (busy 1.0,
    low power), except ``culprit_gpu``, whose rank launches nothing. GPU 1 runs hot while it has a rank.
    """
    pids: dict[int, list[int]] = {}
    for pid, index in ranks:
        pids.setdefault(index, []).append(pid)
    gpus = []
    for index in range(count):
        gpu = still_gpu(index, seed)
        activity = activity_of(t, index in pids, hung_since, index == culprit_gpu)
        set_moving(gpu, shape_of(seed, index, index == HOT_GPU), t, activity, hung_since or 0.0)
        gpu.processes = processes_of(gpu, pids.get(index, []))
        gpus.append(gpu)
    return gpus


def activity_of(t: float, has_ranks: bool, hung_since: float | None, is_culprit: bool) -> str:
    if not has_ranks:
        return IDLE
    if hung_since is None or t < hung_since:
        return TRAINING
    return STARVED if is_culprit else WAITING


def still_gpu(index: int, seed: int) -> GpuSample:
    """All that does not move."""
    old = is_old(seed, index)
    return GpuSample(
        index=index,
        uuid=f"GPU-SIMULATED-{seed:04d}-{index:02d}",
        pci_bus_id=f"0000{gpu_bus(index).upper()}",
        minor=index,
        unified_memory=False,
        ecc=Ecc(**{**HEALTHY["ecc"], "corrected_aggregate": 2 if old else 0}),
        remap=Remap(int(old), 0, False, False, False, RemapBanks(2560 - old, 0, 0, 0, 0)),
        pcie=Pcie(errors={"replay_rollover": 0, "l0_to_recovery": 3 + (seed + index) % 5}, **HEALTHY["pcie"]),
        nvlink=Nvlink(links_of(seed, index)),
        fabric=Fabric(**HEALTHY["fabric"]),
        serial=f"SIMULATED{seed:04d}{index:02d}",
        **_FIXED,
    )


def processes_of(gpu: GpuSample, pids: list[int]) -> list[GpuProcess]:
    return [GpuProcess(pid, ((gpu.memory_used_bytes or 0) - CONTEXT_BYTES) // len(pids)) for pid in pids]


def is_old(seed: int, index: int) -> bool:
    """One board in some sixty has repaired a row of its memory at some time."""
    return (seed * 8 + index) % 61 == 17


def links_of(seed: int, index: int) -> list[NvlinkLink]:
    """All up to the switches; now and then one has an old replay, which means nothing as long as it does not grow."""
    return [
        NvlinkLink(
            index=link,
            errors={"replay": int((seed * 144 + index * 18 + link) % 97 == 40), "recovery": 0, "crc": 0},
            **HEALTHY["nvlink"],
        )
        for link in range(NVLINKS)
    ]


class SimulatedGpus:
    """A GPU source as the agent takes it. ``simulated`` makes every sample say so.

    ``ranks`` gives (pid, GPU index), ``hung_since`` unix seconds or None, ``problem`` why the job does not run
    or None; all are asked for every sample.
    """

    simulated = True

    def __init__(
        self,
        count: int,
        ranks: Callable[[], Ranks],
        hung_since: Callable[[], float | None],
        *,
        culprit_gpu: int | None = None,
        problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.count = count
        self._ranks = ranks
        self._hung_since = hung_since
        self._culprit_gpu = culprit_gpu
        self._problem = problem
        self._zero = time.time() - UPTIME_S

    def request(self, now: float) -> None:
        """Nothing to prepare: a simulation answers at once."""

    def times(self, now: float) -> tuple[float, float | None]:
        """``now`` (unix s) and the hang, None before it, as seconds since the simulated counters were 0."""
        hung = self._hung_since()
        return now - self._zero, None if hung is None else hung - self._zero

    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]:  # noqa: ARG002
        """All GPUs at ``now`` (unix s). The only gap of a simulation is a job that does not run."""
        t, hung = self.times(now)
        gpus = simulate(t, self.count, SEED, self._ranks(), hung, culprit_gpu=self._culprit_gpu)
        for gpu in gpus:
            gpu.last_seen_at = now
        problem = self._problem()
        return gpus, [Gap("demo job", problem)] if problem else []

    def events(self) -> list[KernelEvent]:
        """Nothing ever happens to simulated hardware here; the fleet's faulty node has its own kernel log."""
        return []

    def close(self) -> None:
        """Nothing is held."""
