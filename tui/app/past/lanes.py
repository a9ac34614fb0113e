"""Which values are kept of a node and its GPUs, and how they lie in memory: a row is all of them at one time.

A value is a half float of a known unit (two bytes, 11 bits of precision), a row those of the node and of each of its
GPUs behind each other. A chunk of rows is packed lane by lane, the high bytes apart from the low ones: what hardly
changes takes next to nothing then.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from struct import Struct
from typing import Any, cast

from msgspec.structs import astuple

from mltop.probes.model import GpuState
from mltop.probes.reach.view import GpuSummary, NvlinkSummary, SampleSummary
from mltop.tui.app.past.track import UNKNOWN, bits_of

Reduce = Callable[[Sequence[float]], float]
UNKNOWN_HALF = Struct("<e").pack(math.nan)
MOST_HALF = 60_000.0  # half floats end at 65,504; what is rounded up there would be infinite
_LEVEL = 1  # of zlib: 6 saves a twentieth and takes three times as long


@dataclass(frozen=True)
class Lane:
    """``unit``: what 1 in memory stands for. ``spared``: so many of the lowest bits are rounded away when a chunk is
    packed, as noise does not pack: of fractions 2 (0.1 to 0.2 %). ``reduce``: many values to one.
    """

    name: str
    unit: float = 1.0
    spared: int = 0
    reduce: Reduce | None = None  # None: the mean


def _last(values: Sequence[float]) -> float:
    return values[-1]


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
    Lane("memory_used_bytes", unit=float(1 << 24), spared=1, reduce=_last),
    Lane("reasons", reduce=_union),
)
NODE_WIDTH, GPU_WIDTH = len(NODE_LANES), len(GPU_LANES)
POWER_AT, BUSY_AT, SM_AT = (
    NODE_WIDTH + [lane.name for lane in GPU_LANES].index(name) for name in ("power_w", "busy", "sm_active")
)
NETWORK_AT = 1
_NVLINK_SHARE = 1.0 / GPU_LANES[7].unit
_MEMORY_SHARE = 1.0 / GPU_LANES[8].unit
_NETWORK_SHARE = 1.0 / NODE_LANES[1].unit
_NODE_POWER_SHARE = 1.0 / NODE_LANES[2].unit
_NO_GPU = (UNKNOWN,) * GPU_WIDTH
# In the place of the reasons of a GPU that does not answer: it has none.
STATES: dict[float, GpuState] = {-1.0: "lost", -2.0: "error"}
_NOT_OK = {state: (*_NO_GPU[:-1], code) for code, state in STATES.items()}

_BITS: dict[tuple[str, ...], float] = {(): 0.0}  # of the combinations that were seen
_MOST_BITS = 1000


def width_of(gpus: int) -> int:
    """Values in a row of so many GPUs."""
    return NODE_WIDTH + gpus * GPU_WIDTH


def place_of(gpu: int, lane: int) -> int:
    """Where in a row a value of this GPU is; of the node itself with GPU -1."""
    return lane if gpu < 0 else NODE_WIDTH + gpu * GPU_WIDTH + lane


def row_of(summary: SampleSummary, gpus: int) -> list[float]:
    """All values of a sample, NaN where unknown: of GPUs that are lost, hidden or beyond ``gpus``, too.

    This runs for every sample of a fleet: some 5 µs for 8 GPUs. So all fields of all GPUs are one list, and the lanes
    are cut out of it.
    """
    fields = list(chain.from_iterable(map(astuple, summary.gpus)))
    row: list[float | None] = [None] * width_of(gpus)
    if fields[0::_FIELDS] == _indexes(gpus) and fields[1::_FIELDS].count("ok") == gpus:
        _take_gpus(row, fields)
    else:
        for gpu in summary.gpus:
            begin = NODE_WIDTH + gpu.index * GPU_WIDTH
            if 0 <= gpu.index < gpus and row[begin : begin + GPU_WIDTH] == _NOTHING:  # none is told twice
                row[begin : begin + GPU_WIDTH] = _of_gpu(gpu)
    host = summary.host
    network = host.all_network_bytes_per_s
    row[0], row[1] = host.cpu_fraction, None if network is None else network * _NETWORK_SHARE
    powers = row[POWER_AT::GPU_WIDTH]
    known = powers if None not in powers else [power for power in powers if power == power and power is not None]  # noqa: PLR0124
    row[2] = sum(cast("list[float]", known)) * _NODE_POWER_SHARE if known else None
    if None in row:
        return [UNKNOWN if value is None else value for value in row]
    return cast("list[float]", row)


_FIELDS = len(GpuSummary.__struct_fields__)
_AT = {name: at for at, name in enumerate(GpuSummary.__struct_fields__)}
# The lanes that are fields as they are: (place in a row of the first GPU's, place among its fields).
_PLAIN = tuple(
    (NODE_WIDTH + at, _AT[name])
    for at, name in enumerate(
        ("sm_clock_mhz", "power_w", "temperature_c", "busy", "sm_active", "tensor_active", "dram_active")
    )
)
_NVLINK, _MEMORY, _REASONS = (NODE_WIDTH + at for at in (7, 8, 9))
_NOTHING = [None] * GPU_WIDTH


@cache
def _indexes(gpus: int) -> list[int]:
    return list(range(gpus))


def _take_gpus(row: list[float | None], fields: list[Any]) -> None:
    """``fields``: those of all GPUs behind each other; all of them are well, and in order."""
    for place, at in _PLAIN:
        row[place::GPU_WIDTH] = fields[at::_FIELDS]
    row[_NVLINK::GPU_WIDTH] = map(_nvlink_rate, fields[_AT["nvlink"] :: _FIELDS])
    used = fields[_AT["memory_used_bytes"] :: _FIELDS]
    row[_MEMORY::GPU_WIDTH] = [None if value is None else value * _MEMORY_SHARE for value in used]
    reasons = fields[_AT["throttle_reasons"] :: _FIELDS]
    row[_REASONS::GPU_WIDTH] = [None if told is None else _bits(told) for told in reasons]


def _nvlink_rate(nvlink: NvlinkSummary) -> float | None:
    received, sent = nvlink.rx_bytes_per_s, nvlink.tx_bytes_per_s
    return None if received is None or sent is None else (received + sent) * _NVLINK_SHARE


def _of_gpu(gpu: GpuSummary) -> list[float | None]:
    if gpu.state != "ok":
        return list(_NOT_OK.get(gpu.state, _NO_GPU))
    row: list[float | None] = [None] * (NODE_WIDTH + GPU_WIDTH)
    _take_gpus(row, list(astuple(gpu)))
    return row[NODE_WIDTH:]


def _bits(reasons: Sequence[str]) -> float:
    try:
        return _BITS[reasons]  # type: ignore[index]
    except (KeyError, TypeError):
        if len(_BITS) < _MOST_BITS:
            _BITS[tuple(reasons)] = bits_of(reasons)
        return bits_of(reasons)


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


def unknown_rows(gpus: int, count: int) -> bytes:
    return UNKNOWN_HALF * (width_of(gpus) * count)


@lru_cache(maxsize=32)
def _rounding(gpus: int, count: int) -> tuple[int, int]:
    """What is added to all rows as one number, and what is kept of it."""
    added, kept = bytearray(), bytearray()
    for lane in (*NODE_LANES, *GPU_LANES * gpus):
        added += ((1 << lane.spared) >> 1).to_bytes(2, "little")
        kept += ((0xFFFF << lane.spared) & 0xFFFF).to_bytes(2, "little")
    return int.from_bytes(added * count, "little"), int.from_bytes(kept * count, "little")


def pack_rows(rows: bytes, gpus: int) -> bytes:
    """A chunk: rows behind each other as one string, rounded and packed."""
    stride = 2 * width_of(gpus)
    added, kept = _rounding(gpus, len(rows) // stride)
    rounded = ((int.from_bytes(rows, "little") + added) & kept).to_bytes(len(rows), "little")
    return zlib.compress(b"".join([rounded[plane::stride] for plane in range(stride)]), _LEVEL)


@lru_cache(maxsize=640)  # a look at a moment of 512 nodes, or at ten minutes of some: 10 KB each
def planes_of(packed: bytes) -> bytes:
    """What ``pack_rows`` has packed: for each value of a row its low bytes, then its high ones."""
    return zlib.decompress(packed)


def lane_of_planes(planes: bytes, count: int, place: int) -> array[float]:
    """One value of all ``count`` rows of a chunk."""
    halves = bytearray(2 * count)
    begin = 2 * place * count
    halves[0::2] = planes[begin : begin + count]
    halves[1::2] = planes[begin + count : begin + 2 * count]
    return array("f", Struct(f"<{count}e").unpack(halves))


def rows_of_planes(planes: bytes, count: int) -> bytes:
    """The rows again, behind each other."""
    stride = len(planes) // count
    rows = bytearray(len(planes))
    for plane in range(stride):
        rows[plane::stride] = planes[plane * count : (plane + 1) * count]
    return bytes(rows)


def row_of_planes(planes: bytes, count: int, at: int) -> bytes:
    """One of the rows."""
    return planes[at::count]


def lane_of_rows(rows: bytes | bytearray, gpus: int, place: int) -> array[float]:
    """One value of all rows that are not packed."""
    stride = 2 * width_of(gpus)
    halves = bytearray(len(rows) // stride * 2)
    halves[0::2] = rows[2 * place :: stride]
    halves[1::2] = rows[2 * place + 1 :: stride]
    return array("f", Struct(f"<{len(halves) // 2}e").unpack(halves))


def values_of(row: bytes) -> tuple[float, ...]:
    """The values of one row, in memory's units."""
    return _packing(len(row) // 2).unpack(row)


_OTHERWISE = tuple((NODE_WIDTH + at, lane.reduce) for at, lane in enumerate(GPU_LANES) if lane.reduce is not None)


def reduced(rows: bytes, gpus: int) -> bytes:
    """Several rows as one: means, but see the lanes. What is unknown in all of them stays unknown."""
    width = width_of(gpus)
    count = len(rows) // (2 * width)
    values = Struct(f"<{count * width}e").unpack(rows)
    each = [values[begin : begin + width] for begin in range(0, len(values), width)]
    row = [total / count for total in map(sum, zip(*each, strict=True))]
    if (total := sum(row)) != total:
        return pack_row([_reduced_known(place, values[place::width]) for place in range(width)])
    for begin, reduce in _OTHERWISE:
        of_gpus = [values[begin::GPU_WIDTH] for values in each]
        same = len(set(of_gpus)) == 1
        row[begin::GPU_WIDTH] = of_gpus[0] if same else map(reduce, zip(*of_gpus, strict=True))
    return pack_row(row)


def _reduced_known(place: int, values: Sequence[float]) -> float:
    """Of values some of which are unknown."""
    known = [value for value in values if value == value]  # noqa: PLR0124
    reduce = None if place < NODE_WIDTH else GPU_LANES[(place - NODE_WIDTH) % GPU_WIDTH].reduce
    if not known:
        return UNKNOWN
    return sum(known) / len(known) if reduce is None else reduce(known)
