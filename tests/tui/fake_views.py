"""Scripted, deterministic samples: a node with a throttled and a lost GPU, a fleet, a node without a driver."""

from __future__ import annotations

import math

from mltop.probes.model import (
    Gap,
    GpuProcess,
    GpuSample,
    HostSample,
    NodeState,
    Nvlink,
    Pcie,
    RankSample,
    Sample,
)
from mltop.probes.reach.view import FleetView, NodeView

T0 = 1_763_640_000.0  # 2025-11-20 12:00:00 UTC
GIB = 2**30


def one_node(tick: int = 0, simulated: bool = False) -> FleetView:
    """node01: 8 GPUs, GPU 3 throttled by heat, GPU 6 lost; 4 ranks of a torchrun job on GPUs 0-3."""
    return _fleet_view((node_view("node01", tick, simulated=simulated),), tick)


def fleet(tick: int = 0, nodes: int = 64, simulated: bool = False) -> FleetView:
    """``nodes`` nodes of 8 GPUs; the third has a hot and a lost GPU, the fifth is stale, the seventh lost."""
    views = []
    for at in range(nodes):
        name = f"node{at + 1:03d}"
        state = {4: ("stale", "no sample", 6.0), 6: ("lost", "ssh: connection reset by peer", 41.0)}.get(at)
        views.append(node_view(name, tick, bad=at == 2, seed=at, state=state, simulated=simulated))
    return _fleet_view(tuple(views), tick)


def no_driver(tick: int = 0) -> FleetView:
    """node01 without an NVIDIA driver: no GPUs, a gap that says why, two ranks on CPUs."""
    sample = node_sample("node01", tick)
    sample.gpus = []
    sample.ranks = [rank_sample(number, tick, gpus=[], world_size=2) for number in range(2)]
    sample.gaps = [
        Gap(
            "nvml",
            "libnvidia-ml.so.1 not found: no NVIDIA driver on this machine",
            "install the NVIDIA driver",
        )
    ]
    return _fleet_view((_live("node01", sample),), tick)


def node_view(
    node: str,
    tick: int,
    bad: bool = True,
    seed: int = 0,
    state: tuple[str, str, float] | None = None,
    simulated: bool = False,
) -> NodeView:
    sample = node_sample(node, tick, bad, seed, simulated)
    if state is None:
        return _live(node, sample)
    return NodeView(NodeState(node, *state), sample)


def node_sample(node: str, tick: int, bad: bool = True, seed: int = 0, simulated: bool = False) -> Sample:
    return Sample(
        node=node,
        sampled_at=T0 + tick,
        boot_id="b",
        simulated=simulated,
        gpus=[gpu_sample(index, tick, bad, seed) for index in range(8)],
        ranks=[rank_sample(number, tick, gpus=[number]) for number in range(4)],
        host=_host(node, tick),
    )


def gpu_sample(index: int, tick: int, bad: bool = True, seed: int = 0) -> GpuSample:
    wave = math.sin((tick + 3 * index + 7 * seed) / 4)
    gpu = GpuSample(
        index=index,
        uuid=f"GPU-0000{index}",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{0x18 + index:02X}:00.0",
        last_seen_at=T0 + tick,
        busy=round(0.9 + 0.1 * wave, 2),
        sm_active=round(0.7 + 0.2 * wave, 3),
        tensor_active=round(0.4 + 0.2 * wave, 3),
        dram_active=round(0.3 + 0.1 * wave, 3),
        activity_source="gpm",
        memory_used_bytes=int((70 + index / 2) * GIB),
        memory_total_bytes=80 * GIB,
        temperature_c=60.0 + index,
        memory_temperature_c=72.0 + index,
        temperature_margin_c=25.0 - index,
        power_w=round(610 + 60 * wave, 1),
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        sm_clock_mhz=1755,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2619,
        memory_clock_max_mhz=2619,
        throttle_reasons=[],
        pcie=Pcie(gen=5, gen_max=5, width=16, width_max=16, rx_bytes_per_s=1.2e9, tx_bytes_per_s=0.8e9),
        nvlink=Nvlink(rx_bytes_per_s=9.1e10, tx_bytes_per_s=9.0e10),
        driver="570.86.15",
        processes=[_process(8120 + index)] if index < 4 else [],
    )
    if bad and index == 3:
        gpu.temperature_c, gpu.sm_clock_mhz, gpu.power_w = 91.0, 345, 310.0
        gpu.throttle_reasons = ["hw_thermal", "hw_slowdown"]
        gpu.temperature_margin_c = -4.0
    if bad and index == 6:
        return GpuSample(
            index=6,
            uuid=gpu.uuid,
            name=gpu.name,
            pci_bus_id=gpu.pci_bus_id,
            state="lost",
            error="GPU is lost (NVML_ERROR_GPU_IS_LOST)",
            last_seen_at=T0 - 95,
        )
    if index >= 4:
        gpu.busy = gpu.sm_active = gpu.tensor_active = gpu.dram_active = 0.0
        gpu.power_w, gpu.sm_clock_mhz, gpu.throttle_reasons = 70.0, 345, ["gpu_idle"]
        gpu.memory_used_bytes = 4 * 2**20
    return gpu


def _process(pid: int) -> GpuProcess:
    return GpuProcess(pid, 60 * GIB, user="ada", name="python3.11", state="R", ppid=8101, started_at=T0 - 7384)


def rank_sample(number: int, tick: int, gpus: list[int], world_size: int = 4) -> RankSample:
    """Rank 2 sits in S and burns nothing: the one that hangs; the others spin."""
    hangs = number == 2
    return RankSample(
        pid=8120 + number,
        rank=number,
        local_rank=number,
        world_size=world_size,
        local_world_size=world_size,
        job="llama-7b",
        master_address="node01",
        launcher="torchrun",
        identified_by="environment",
        user="ada",
        command="python3.11 -u train.py --config configs/llama.yaml",
        python="/opt/env/bin/python3.11",
        state="S" if hangs else "R",
        wchan="do_poll" if hangs else "0",
        started_at=T0 - 7384,
        gpus=gpus,
        cpu_fraction=0.0 if hangs else 1.0,
        rss_bytes=12 * GIB,
        voluntary_switches=1200 if hangs else 5000 + 40 * tick,
        read_syscalls=900,
        write_syscalls=700 + (0 if hangs else 3 * tick),
        cpus_allowed="0-95",
        numa_nodes="0",
    )


def _host(node: str, tick: int) -> HostSample:
    return HostSample(
        hostname=node,
        kernel="5.15.0-122-generic",
        uptime_s=864000.0 + tick,
        cpu_count=192,
        cpu_fraction=0.31,
        load_1m=64.2,
        load_5m=60.0,
        load_15m=58.5,
        memory_total_bytes=2048 * GIB,
        memory_available_bytes=1200 * GIB,
        shm_total_bytes=1024 * GIB,
        shm_used_bytes=64 * GIB,
        network_rx_bytes_per_s=1.5e9,
        network_tx_bytes_per_s=1.4e9,
    )


def _live(node: str, sample: Sample) -> NodeView:
    return NodeView(NodeState(node, "live", "", 0.4), sample)


def _fleet_view(nodes: tuple[NodeView, ...], tick: int) -> FleetView:
    return FleetView(taken_at=T0 + tick + 0.4, nodes=nodes, serial=tick)
