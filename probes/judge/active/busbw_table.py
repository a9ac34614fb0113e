"""Measured bus bandwidth of collectives, bytes/s by size. busbw as nccl-tests defines it.

Sources: B: ml-engineering book (all_reduce_bench.py, nccl-tests); AG: Azure AI-benchmarking-guide; CW: coreweave's
nccl-tests runs; NV: NVIDIA at GTC 2024 and 2025; AZ, GC: health checks of Azure and Google.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
GB_PER_S = 1e9


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
MANY_NODES = (
    Curve("H100", 8, 2, _points(GIB, s8=440), "CW (nccl-tests#309 has 470)"),
    Curve("B200", 8, 2, _points(GIB, s8=690), "CW"),
    Curve("H200", 8, 4, _points(GIB, s4=365), "B"),
    Curve("B200", 8, 4, _points(MIB, s64=157, s256=229, s512=327) | _points(GIB, s1=362, s16=382), "B"),
    Curve("H100", 8, 8, _points(MIB, s512=356) | _points(GIB, s8=387), "CW", doubt="with SHARP in the switches"),
)
# GB/s of NIC for each GPU that such nodes usually have.
USUAL_NIC = {
    "A100": 25 * GB_PER_S,
    "H100": 50 * GB_PER_S,
    "H200": 50 * GB_PER_S,
    "B200": 50 * GB_PER_S,
}

# Large sizes without NVLS (ring): where all-gather and reduce-scatter stay, and all-reduce of few GPUs. NV.
RING = {"A100": 232 * GB_PER_S, "H100": 370 * GB_PER_S, "H200": 368 * GB_PER_S, "B200": 700 * GB_PER_S}

# For reading only: figures of large sizes that name none, and what field checks accept. (what, GB/s, source)
PLATEAUS = (
    ("V100 x 8", "122", "NV"),
    ("A100, H100, H200, B200 x 8 with NVLS", "– / 480 / 482 / 850", "NV"),
    ("8 x RTX 5090 on PCIe", "28, limited by the CPU", "NCCL issue"),
    ("PCIe Gen4 / Gen5 without NVLink", "24 / 48 at best", "NCCL issues"),
    ("H100, 4 nodes", "366", "nccl-tests#309"),
    ("H100, 64 nodes and more", "370 to 380, with SHARP 480", "NV"),
    ("GB200, 1440 GPUs", "381 at 8 GiB", "CW"),
    ("DGX A100, 8 x 200 Gb/s", "192", "NV"),
)
FIELD_MARKS = (
    ("V100 x 8, 8 GiB", "110", "AZ"),
    ("A100 x 8", "228", "AZ"),
    ("H100 NVL pair, 16 GiB", "208", "AZ"),
    ("H100 x 8, 16 GiB", "460", "AZ"),
    ("H200 x 8, 16 GiB", "431", "AZ"),
    ("MI300X x 8", "314", "AZ"),
    ("two nodes A3 / A3+ / A3U and A4 / A4X, 2 to 8 GiB", "60 / 150 / 250 / 160", "GC"),
    ("H100 on EKS / GKE / AKS", "300 / 250 / 100", "NVIDIA/aicr"),
)
