"""Simulated GPUs, labelled as such: a GPU source for the agent, and the pure function behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Callable

from mltop.probes.demo.curves import (
    IDLE,
    MEMORY_TOTAL_BYTES,
    POWER_LIMIT_W,
    SLOWDOWN_C,
    SM_CLOCK_MAX_MHZ,
    STARVED,
    TRAINING,
    WAITING,
    Moving,
    Shape,
    move,
)
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

NAME = "NVIDIA H100 80GB HBM3 (SIMULATED)"
HOT_GPU = 1
CONTEXT_BYTES = 600 * 1024**2  # held by the driver beside the process's own memory
NVLINKS, NVLINK_BYTES_PER_S = 18, 26.562e9  # of an H100, per direction
MEMORY_HOTTEST_C = 95.0
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
        activity = activity_of(t, index in pids, hung_since, index == culprit_gpu)
        moving = move(shape_of(seed, index, index == HOT_GPU), t, activity, hung_since or 0.0)
        gpus.append(sample_of(index, seed, pids.get(index, []), moving, activity == TRAINING))
    return gpus


def activity_of(t: float, has_ranks: bool, hung_since: float | None, is_culprit: bool) -> str:
    if not has_ranks:
        return IDLE
    if hung_since is None or t < hung_since:
        return TRAINING
    return STARVED if is_culprit else WAITING


@lru_cache(maxsize=8192)
def shape_of(seed: int, index: int, hot: bool) -> Shape:
    return Shape.of(seed, index, hot)


def sample_of(index: int, seed: int, pids: list[int], moving: Moving, training: bool) -> GpuSample:
    own = moving.memory_used_bytes - CONTEXT_BYTES
    return GpuSample(
        index=index,
        uuid=f"GPU-SIMULATED-{seed:04d}-{index:02d}",
        name=NAME,
        pci_bus_id=f"00000000:{0x1B + 0x18 * index:02X}:00.0",
        activity_source="gpm",
        memory_total_bytes=MEMORY_TOTAL_BYTES,
        temperature_slowdown_c=SLOWDOWN_C,
        memory_temperature_max_c=MEMORY_HOTTEST_C,
        memory_temperature_margin_c=MEMORY_HOTTEST_C - moving.memory_temperature_c,
        power_limit_w=POWER_LIMIT_W,
        power_limit_default_w=POWER_LIMIT_W,
        sm_clock_max_mhz=SM_CLOCK_MAX_MHZ,
        memory_clock_mhz=2619,
        memory_clock_max_mhz=2619,
        ecc=Ecc(
            enabled=True,
            enabled_pending=True,
            corrected_volatile=0,
            uncorrected_volatile=0,
            corrected_aggregate=2 if is_old(seed, index) else 0,
            uncorrected_aggregate=0,
            sram_uncorrected_aggregate=0,
            sram_threshold_exceeded=False,
        ),
        remap=Remap(
            int(is_old(seed, index)), 0, False, False, False, RemapBanks(2560 - is_old(seed, index), 0, 0, 0, 0)
        ),
        retired_pages=0,
        recovery_action="none",
        pcie=pcie_of(seed, index, training),
        nvlink=Nvlink(links_of(seed, index), 1.2e11 if training else 0.0, 1.2e11 if training else 0.0),
        fabric=Fabric("completed", "ok", clique_id=0, cluster_uuid="00000000-0000-0000-0000-000000000000"),
        mig_enabled=False,
        mig_pending=False,
        persistence=True,
        compute_mode="default",
        performance_state=0,
        driver="570.124.06",
        cuda="12.8",
        gsp_firmware="570.124.06",
        vbios="96.00.99.00.01",
        serial=f"SIMULATED{seed:04d}{index:02d}",
        processes=[GpuProcess(pid, own // len(pids)) for pid in pids],
        **vars(moving),
    )


def is_old(seed: int, index: int) -> bool:
    """One board in some sixty has repaired a row of its memory at some time."""
    return (seed * 8 + index) % 61 == 17


def pcie_of(seed: int, index: int, training: bool) -> Pcie:
    return Pcie(
        gen=5,
        gen_max=5,
        width=16,
        width_max=16,
        replay_count=0,
        rx_bytes_per_s=2.1e8 if training else 0.0,
        tx_bytes_per_s=0.9e8 if training else 0.0,
        errors={"replay_rollover": 0, "l0_to_recovery": 3 + (seed + index) % 5},
    )


def links_of(seed: int, index: int) -> list[NvlinkLink]:
    """All up to the switches; now and then one has an old replay, which means nothing as long as it does not grow."""
    return [
        NvlinkLink(
            index=link,
            active=True,
            version=4,
            speed_bytes_per_s=NVLINK_BYTES_PER_S,
            remote="switch",
            errors={"replay": int((seed * 144 + index * 18 + link) % 97 == 40), "recovery": 0, "crc": 0},
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
        seed: int = 0,
        problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._count = count
        self._ranks = ranks
        self._hung_since = hung_since
        self._culprit_gpu = culprit_gpu
        self._seed = seed
        self._problem = problem
        self._zero = time.time() - UPTIME_S

    def request(self, now: float) -> None:
        """Nothing to prepare: a simulation answers at once."""

    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]:  # noqa: ARG002
        """All GPUs at ``now`` (unix s). The only gap of a simulation is a job that does not run."""
        hung = self._hung_since()
        gpus = simulate(
            now - self._zero,
            self._count,
            self._seed,
            self._ranks(),
            None if hung is None else hung - self._zero,
            culprit_gpu=self._culprit_gpu,
        )
        for gpu in gpus:
            gpu.last_seen_at = now
        problem = self._problem()
        return gpus, [Gap("demo job", problem)] if problem else []

    def events(self) -> list[KernelEvent]:
        """Nothing ever happens to simulated hardware here; the fleet's faulty node has its own kernel log."""
        return []

    def close(self) -> None:
        """Nothing is held."""
