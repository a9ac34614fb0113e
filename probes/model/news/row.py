"""What of a node changes every second: a row of half floats in fixed places, its lanes.

A row is all of a node's lanes, then those of each of its GPUs. A value takes two bytes (11 bits of precision) and has
a known unit. Rows travel every second, and are what is kept of the past; a whole sample travels on change, once a
minute and while somebody looks at the node. Python 3.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from struct import Struct

from mltop.probes.model.gpu import GpuSample
from mltop.probes.model.sample import Sample, traffic_of
from mltop.probes.model.vocabulary import GpuState

UNKNOWN = math.nan
MOST_GPUS_IN_ROW = 256  # of a node; one of a higher index is in no row
MOST_HALF = 60_000.0  # half floats end at 65,504; what is rounded up there would be infinite

Reduce = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Lane:
    """``unit``: what 1 in memory stands for. ``spared``: so many of the lowest bits are rounded away when a chunk of
    rows is packed, as noise does not pack: of fractions 2 (0.1 to 0.2 %). ``reduce``: many values to one.
    """

    name: str
    unit: float = 1.0
    spared: int = 0
    reduce: Reduce | None = None  # None: the mean


def _union(values: Sequence[float]) -> float:
    bits = 0
    for value in set(values):
        bits |= max(0, int(value))
    return float(bits) if any(value >= 0.0 for value in values) else values[-1]


NODE_LANES = (
    Lane("cpu_fraction", spared=3),
    Lane("network_bytes_per_s", unit=1e8, spared=2),
    Lane("power_w", unit=10.0, spared=1),
)
# Where a mean would hide what matters: the lowest clock, the highest temperature, what is used at the end.
GPU_LANES = (
    Lane("clock_mhz", reduce=min),
    Lane("power_w", spared=1),
    Lane("temperature_c", reduce=max),
    Lane("busy", spared=2),
    Lane("sm_active", spared=2),
    Lane("tensor_active", spared=2),
    Lane("dram_active", spared=2),
    Lane("nvlink_bytes_per_s", unit=1e8, spared=3),
    Lane("memory_used_bytes", unit=float(1 << 24), spared=1, reduce=lambda values: values[-1]),
    Lane("reasons", reduce=_union),
)
NODE_WIDTH, GPU_WIDTH = len(NODE_LANES), len(GPU_LANES)
POWER_AT, BUSY_AT, SM_AT = (
    NODE_WIDTH + [lane.name for lane in GPU_LANES].index(name) for name in ("power_w", "busy", "sm_active")
)
NETWORK_AT = 1

# Bits of the reasons' lane. A reason that is not here is not remembered.
REASONS = (
    "hw_thermal",
    "power_brake",
    "hw_slowdown",
    "sw_thermal",
    "sw_power_cap",
    "applications_clocks",
    "sync_boost",
    "display_clocks",
    "gpu_idle",
)
REASON_BITS = {reason: 1 << bit for bit, reason in enumerate(REASONS)}
# In the place of the reasons of a GPU that does not answer: it has none.
STATES: dict[float, GpuState] = {-1.0: "lost", -2.0: "error"}
_NO_GPU = (UNKNOWN,) * GPU_WIDTH
_NOT_OK = {state: (*_NO_GPU[:-1], code) for code, state in STATES.items()}


def width_of(gpus: int) -> int:
    """Values in a row of so many GPUs."""
    return NODE_WIDTH + gpus * GPU_WIDTH


def gpus_of(row: Sequence[float]) -> int:
    """How many GPUs a row has room for."""
    return (len(row) - NODE_WIDTH) // GPU_WIDTH


def place_of(gpu: int, lane: int) -> int:
    """Where in a row a value of this GPU is."""
    return NODE_WIDTH + gpu * GPU_WIDTH + lane


def row_of(sample: Sample) -> list[float]:
    """All values of a sample, in memory's units, NaN where unknown. GPUs are in the places of their indexes."""
    indexes = [gpu.index for gpu in sample.gpus if 0 <= gpu.index < MOST_GPUS_IN_ROW]
    gpus = 1 + max(indexes, default=-1)
    row: list[float] = [UNKNOWN] * width_of(gpus)
    taken = set()
    power_w, is_known = 0.0, False
    for gpu in sample.gpus:
        if not 0 <= gpu.index < gpus or gpu.index in taken:
            continue
        taken.add(gpu.index)
        begin = place_of(gpu.index, 0)
        row[begin : begin + GPU_WIDTH] = _values_of(gpu)
        if gpu.power_w is not None:
            power_w, is_known = power_w + gpu.power_w, True
    received, sent = _network_of(sample)
    network = None if received is None or sent is None else (received + sent) / NODE_LANES[NETWORK_AT].unit
    row[0], row[1] = _or_unknown(sample.host.cpu_fraction), _or_unknown(network)
    row[2] = power_w / NODE_LANES[2].unit if is_known else UNKNOWN
    return row


def _network_of(sample: Sample) -> tuple[float | None, float | None]:
    """Of all ports; of agents that do not report it, of network interfaces (without RDMA)."""
    host = sample.host
    received, sent = host.ports_rx_bytes_per_s, host.ports_tx_bytes_per_s
    if received is None:
        received, sent = traffic_of(sample.links)
    if received is None or sent is None:
        received, sent = host.network_rx_bytes_per_s, host.network_tx_bytes_per_s
    return received, sent


def _values_of(gpu: GpuSample) -> Sequence[float]:
    if gpu.state != "ok":
        return _NOT_OK.get(gpu.state, _NO_GPU)
    received, sent, used = gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s, gpu.memory_used_bytes
    reasons = gpu.throttle_reasons
    values = (
        gpu.sm_clock_mhz,
        gpu.power_w,
        gpu.temperature_c,
        gpu.busy,
        gpu.sm_active,
        gpu.tensor_active,
        gpu.dram_active,
        None if received is None or sent is None else (received + sent) / GPU_LANES[7].unit,
        None if used is None else used / GPU_LANES[8].unit,
        None if reasons is None else sum(REASON_BITS.get(reason, 0) for reason in reasons),
    )
    return [UNKNOWN if value is None else value for value in values]


def _or_unknown(value: float | None) -> float:
    return UNKNOWN if value is None else value


def reasons_of(bits: int) -> list[str]:
    """The reasons that these bits stand for."""
    return [reason for reason in REASONS if bits & REASON_BITS[reason]]


@cache
def _packing(width: int) -> Struct:
    return Struct(f"<{width}e")


def pack_row(row: Sequence[float]) -> bytes:
    """Two bytes for each value."""
    try:
        return _packing(len(row)).pack(*row)
    except OverflowError:
        return _packing(len(row)).pack(*map(_bounded, row))


def _bounded(value: float) -> float:
    return value if value != value else max(-MOST_HALF, min(MOST_HALF, value))  # noqa: PLR0124 - NaN stays


def values_of(row: bytes) -> tuple[float, ...]:
    """The values of one row, in memory's units."""
    return _packing(len(row) // 2).unpack(row)


def with_row(sample: Sample, at: float, row: Sequence[float]) -> Sample:
    """An earlier sample of the node with the values of the row of ``at``. It shares what a row says nothing about. Of
    traffic a row knows the sum of both directions, which counts as received.
    """
    gpus = [copy(gpu) for gpu in sample.gpus]
    for gpu in gpus:
        begin = place_of(gpu.index, 0)
        if 0 <= gpu.index < MOST_GPUS_IN_ROW and begin < len(row):
            gpu.nvlink = copy(gpu.nvlink)
            take_gpu_values(gpu, row[begin : begin + GPU_WIDTH])
    then, cpu = copy(sample), row[0]
    then.sampled_at, then.gpus, then.host = at, gpus, copy(sample.host)
    then.host.cpu_fraction = None if cpu != cpu else cpu  # noqa: PLR0124
    return then


def take_gpu_values(gpu: GpuSample, values: Sequence[float]) -> None:
    known = [
        None if value != value else value * lane.unit  # noqa: PLR0124
        for lane, value in zip(GPU_LANES, values)
    ]
    clock, power, heat, busy, sm, tensor, dram, nvlink, used, bits = known
    gpu.state = STATES.get(bits, "ok") if bits is not None and bits < 0 else "ok"
    gpu.sm_clock_mhz = None if clock is None else int(clock)
    gpu.power_w, gpu.temperature_c = power, heat
    gpu.busy, gpu.sm_active, gpu.tensor_active, gpu.dram_active = busy, sm, tensor, dram
    gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s = nvlink, None if nvlink is None else 0.0
    gpu.memory_used_bytes = None if used is None else int(used)
    gpu.throttle_reasons = reasons_of(int(bits)) if bits is not None and bits >= 0 else None
