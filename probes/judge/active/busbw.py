"""What a collective should reach on known hardware, at the size that was measured and never at another one's plateau.

one node    measured curves, interpolated over the logarithm of the size
more nodes  measured curves of nodes with 8 GPUs and 8 x 400 Gb/s; elsewhere, uncertain, the smaller of one node's
            busbw and r (gk - 1)/(k - 1): k nodes of g GPUs, r bytes/s of NIC for each GPU (the hierarchical model
            of the ml-engineering book turned round). Two nodes have figures of their own: pairs are compared with
            those alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mltop.probes.judge.active.busbw_table import (
    FAMILY,
    MANY_NODES,
    MANY_NODES_NIC,
    NVL72,
    ONE_NODE,
    RING,
    USUAL_NIC,
    Curve,
)
from mltop.probes.judge.active.expected import Expected
from mltop.probes.judge.active.peaks import peak_of

__all__ = ["Expected", "expected_busbw", "network_ceiling"]

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
    measured = _first(_curves(ONE_NODE, family, gpus, 1, collective), size_bytes)
    if measured is not None or collective not in _ON_THE_RING or family not in RING:
        return measured
    of_all_reduce = _first(_curves(ONE_NODE, family, gpus, 1, "all-reduce"), size_bytes)
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
        measured = _first(_curves(MANY_NODES, family, gpus, nodes, collective), size_bytes)
        if measured is not None:
            with_nics = f"{measured.source}, with 8 x 400 Gb/s"
            return Expected(measured.bytes_per_s, with_nics, measured.certain and nic is not None)
    inside = _one_node(family, gpus, size_bytes, collective)
    if inside is None:
        return None
    most = min(inside.bytes_per_s, network_ceiling(gpus, nodes, known_nic))
    how = "" if nic is not None else ", assumed"
    text = f"estimate: one node's busbw ({inside.source}) or {known_nic * 8e-9:.0f} Gb/s of NIC for each GPU{how}"
    return Expected(most, text, certain=False)


def _curves(among: Iterable[Curve], family: str, gpus: int, nodes: int, collective: str) -> list[Curve]:
    wanted = (family, gpus, nodes, collective)
    return [curve for curve in among if (curve.model, curve.gpus, curve.nodes, curve.collective) == wanted]


def _first(curves: Iterable[Curve], size_bytes: int) -> Expected | None:
    return next((found for found in (_at(curve, size_bytes) for curve in curves) if found is not None), None)


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
