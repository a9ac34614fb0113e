"""What a collective should reach on known hardware, at the size that was measured and never at another one's plateau.

Bus bandwidth (busbw) as nccl-tests defines it, bytes/s by size; sources are those of ``peaks.SOURCES``.

one node    measured curves, interpolated over the logarithm of the size
more nodes  measured curves of nodes with 8 GPUs and 8 x 400 Gb/s; elsewhere, uncertain, the smaller of one node's
            busbw and r (gk - 1)/(k - 1): k nodes of g GPUs, r bytes/s of NIC for each GPU (the hierarchical model
            of the ml-engineering book turned round). Two nodes have figures of their own: pairs are compared with
            those alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mltop.probes.judge.probes.hardware.peaks import GB_PER_S, Expected, peak_of
from mltop.probes.judge.values import known

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Curve:
    """busbw by size of one model, ``nodes`` x ``gpus`` GPUs. ``doubt``: why it is uncertain, "" when it is not."""

    model: str
    gpus: int
    nodes: int
    points: Mapping[int, float]
    source: str
    collective: str = "all-reduce"
    doubt: str = ""


def _points(unit: int, **by_size: float) -> dict[int, float]:
    """``_points(MIB, s64=172)``: 172 GB/s at 64 MiB."""
    return {int(size[1:]) * unit: rate * GB_PER_S for size, rate in by_size.items()}


def gigabits(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-9:.0f} Gb/s"


# Rows of the peaks' table that share figures.
FAMILY = {
    "A100 SXM 40GB": "A100",
    "A100 SXM 80GB": "A100",
    "H100 SXM": "H100",
    "H200 SXM": "H200",
    "B200": "B200",
    "MI300X": "MI300X",
    "GB200": "GB200",
}

_H200 = {
    **_points(MIB, s1=39.93, s2=64.53, s4=107.16, s8=155.53, s16=219.89, s32=275.84, s64=346.51, s128=401.93),
    **_points(MIB, s256=436.15, s512=450.29),
    **_points(GIB, s1=463.58, s2=469.17, s4=473.10, s8=477.45, s16=482.26),
}
_B_STEPS = "B, nccl-tests at 8 GiB"
ONE_NODE = (
    Curve("A100", 8, 1, _points(MIB, s64=172, s256=194, s512=223) | _points(GIB, s1=229, s4=234, s16=235), "B"),
    Curve("H100", 8, 1, _points(MIB, s64=362, s256=423, s512=438) | _points(GIB, s1=466, s4=476), "AG"),
    Curve("H200", 8, 1, _H200, "B: torch 2.9.1, NCCL 2.27.7"),
    Curve("B200", 8, 1, _points(MIB, s64=401, s256=646, s512=689) | _points(GIB, s1=723, s4=741, s16=846), "B"),
    Curve("MI300X", 8, 1, _points(GIB, s4=312.9), "B"),
    Curve("MI300X", 2, 1, _points(GIB, s4=47.7), "B: two GPUs share one xGMI link"),
    *(
        Curve("H200", gpus, 1, _points(GIB, s8=rate), _B_STEPS)
        for gpus, rate in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0))
    ),
    *(
        Curve("B200", gpus, 1, _points(GIB, s8=rate), f"{_B_STEPS}, AWS p6-b200")
        for gpus, rate in ((4, 673.2), (5, 677.8), (6, 778.2), (7, 811.2))
    ),
    Curve("H200", 8, 1, _points(GIB, s16=361.4), "B, nccl-tests", "all-gather"),
    Curve("H200", 8, 1, _points(GIB, s16=362.9), "B, nccl-tests", "reduce-scatter"),
)
# GB200 NVL72: one NVLink domain over 18 nodes, so no network limits it.
NVL72 = Curve("GB200", 72, 1, _points(MIB, s512=586) | _points(GIB, s8=847), "NVL72 run", doubt="two sizes only")

# Nodes of 8 GPUs with one 400 Gb/s NIC for each.
MANY_NODES_NIC = 50 * GB_PER_S
MANY_NODES_NICS = f"8 x {gigabits(MANY_NODES_NIC)}"
MANY_NODES = (
    Curve("H100", 8, 2, _points(GIB, s8=440), "CW (nccl-tests#309 has 470)"),
    Curve("B200", 8, 2, _points(GIB, s8=690), "CW"),
    Curve("H200", 8, 4, _points(GIB, s4=365), "B"),
    Curve("B200", 8, 4, _points(MIB, s64=157, s256=229, s512=327) | _points(GIB, s1=362, s16=382), "B"),
    Curve("H100", 8, 8, _points(MIB, s512=356) | _points(GIB, s8=387), "CW", doubt="with SHARP in the switches"),
)
# GB/s of NIC for each GPU that such nodes usually have.
USUAL_NIC = {"A100": 25 * GB_PER_S, "H100": 50 * GB_PER_S, "H200": 50 * GB_PER_S, "B200": 50 * GB_PER_S}

# Large sizes without NVLS (ring): where all-gather and reduce-scatter stay, and all-reduce of few GPUs. NV.
RING = {"A100": 232 * GB_PER_S, "H100": 370 * GB_PER_S, "H200": 368 * GB_PER_S, "B200": 700 * GB_PER_S}

_ON_THE_RING = ("all-gather", "reduce-scatter")
_FAR_APART = 4.0  # sizes: between measured points further apart a straight line is a guess
_SAME_NIC = 0.1


def expected_busbw(
    model: str,
    gpus_per_node: int,
    nodes: int,
    size_bytes: int,
    collective: str = "all-reduce",
    *,
    nic_bytes_per_s: float | None = None,
) -> Expected | None:
    """busbw in bytes/s of ``nodes`` x ``gpus_per_node`` GPUs, None for what nobody has measured.

    ``model``: product name; ``nic_bytes_per_s``: of network for each GPU, None takes what such nodes usually have, and
    the result is uncertain.
    """
    peak = peak_of(model)
    family = FAMILY.get(peak.name) if peak is not None else None
    if family is None or gpus_per_node * nodes < 2:
        return None
    if family == "GB200":
        whole = gpus_per_node * nodes == NVL72.gpus and collective == "all-reduce"
        return _at(NVL72, size_bytes) if whole else None
    if nodes == 1:
        return _one_node(family, gpus_per_node, size_bytes, collective)
    return _many_nodes(family, gpus_per_node, nodes, size_bytes, collective, nic=nic_bytes_per_s)


def network_ceiling(gpus_per_node: int, nodes: int, nic_bytes_per_s: float) -> float:
    """The busbw that NICs of so many bytes/s for each GPU allow at most, where nodes reduce among themselves first."""
    return nic_bytes_per_s * (gpus_per_node * nodes - 1) / (nodes - 1)


def _one_node(family: str, gpus: int, size_bytes: int, collective: str) -> Expected | None:
    measured = _measured(ONE_NODE, (family, gpus, 1, collective), size_bytes)
    if measured is not None or collective not in _ON_THE_RING or family not in RING:
        return measured
    of_all_reduce = _measured(ONE_NODE, (family, gpus, 1, "all-reduce"), size_bytes)
    if of_all_reduce is None:
        return None
    most = min(of_all_reduce.bytes_per_s, RING[family])
    return Expected(most, f"estimate: all-reduce's ({of_all_reduce.source}), at most the ring's", certain=False)


def _many_nodes(
    family: str, gpus: int, nodes: int, size_bytes: int, collective: str, *, nic: float | None
) -> Expected | None:
    known_nic = nic if nic is not None else USUAL_NIC.get(family)
    if known_nic is None:
        return None
    if abs(known_nic / MANY_NODES_NIC - 1) < _SAME_NIC:
        measured = _measured(MANY_NODES, (family, gpus, nodes, collective), size_bytes)
        if measured is not None:
            with_nics = f"{measured.source}, with {MANY_NODES_NICS}"
            return Expected(measured.bytes_per_s, with_nics, measured.certain and nic is not None)
    inside = _one_node(family, gpus, size_bytes, collective)
    if inside is None:
        return None
    most = min(inside.bytes_per_s, network_ceiling(gpus, nodes, known_nic))
    how = "" if nic is not None else ", assumed"
    text = f"estimate: one node's busbw ({inside.source}) or {gigabits(known_nic)} of NIC for each GPU{how}"
    return Expected(most, text, certain=False)


def _measured(among: Iterable[Curve], setup: tuple[str, int, int, str], size_bytes: int) -> Expected | None:
    """By the first curve of this family, GPUs, nodes and collective that has the size."""
    curves = (curve for curve in among if (curve.model, curve.gpus, curve.nodes, curve.collective) == setup)
    return next(iter(known(_at(curve, size_bytes) for curve in curves)), None)


def _at(curve: Curve, size_bytes: int) -> Expected | None:
    """On the line between the two measured sizes around it; None outside of all."""
    if size_bytes in curve.points:
        return Expected(curve.points[size_bytes], curve.source, not curve.doubt)
    below = max((size for size in curve.points if size < size_bytes), default=None)
    above = min((size for size in curve.points if size > size_bytes), default=None)
    if below is None or above is None:
        return None
    share = math.log(size_bytes / below) / math.log(above / below)
    rate = curve.points[below] + share * (curve.points[above] - curve.points[below])
    return Expected(rate, f"{curve.source}, between two sizes", not curve.doubt and above / below <= _FAR_APART)
