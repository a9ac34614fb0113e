"""What a row of the GPU table is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mltop.probes.model import GpuSample, RankSample
from mltop.tui.render.gpu_flags import flags
from mltop.tui.render.nvlink import rate_of
from mltop.tui.render.throttle import worst_share
from mltop.tui.render.units import known

Value = float | str | None

_OF_GPU: dict[str, Callable[[GpuSample], Value]] = {
    "gpu": lambda gpu: gpu.index,
    "busy": lambda gpu: gpu.busy,
    "trend": lambda gpu: gpu.busy,
    "sm": lambda gpu: gpu.sm_active,
    "tensor": lambda gpu: gpu.tensor_active,
    "dram": lambda gpu: gpu.dram_active,
    "clock": lambda gpu: gpu.sm_clock_mhz,
    "temperature": lambda gpu: gpu.temperature_c,
    "hbm": lambda gpu: gpu.memory_temperature_c,
    "margin": lambda gpu: gpu.temperature_margin_c,
    "power": lambda gpu: gpu.power_w,
    "memory": lambda gpu: gpu.memory_used_bytes,
    "throttle": lambda gpu: -worst_share(gpu),  # words sort upwards, and the worst is to come first
    "flags": lambda gpu: -float(len(flags(gpu))),
    "nvlink": lambda gpu: rate_of(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s),
    "pcie": lambda gpu: rate_of(gpu.pcie.rx_bytes_per_s, gpu.pcie.tx_bytes_per_s),
    "name": lambda gpu: gpu.name,
    "bus": lambda gpu: gpu.pci_bus_id,
}
_OF_RANK: dict[str, Callable[[RankSample], Value]] = {
    "rank": lambda rank: rank.rank,
    "pid": lambda rank: rank.pid,
    "user": lambda rank: rank.user or None,
    "state": lambda rank: rank.state or None,
    "command": lambda rank: rank.command or None,
}


def gpu_value(column: str, gpu: GpuSample, ranks: Sequence[RankSample]) -> Value:
    """None: unknown, or a GPU that does not answer. An instance is sorted with its GPU."""
    if gpu.state != "ok" and column != "gpu":
        return None
    if column in _OF_RANK:
        if ranks:
            return _OF_RANK[column](ranks[0])
        return gpu.processes[0].pid if column == "pid" and gpu.processes else None
    value = _OF_GPU[column](gpu) if column in _OF_GPU else None
    return value if isinstance(value, str) or known(value) else None
