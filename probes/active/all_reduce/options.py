"""What a launcher is asked to do: its order's options, and the rounds it is told, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.active.all_reduce.collectives import NAMES
from mltop.probes.active.child import Order
from mltop.probes.model.probe import ProbeDevice

INIT_S, JOIN_S, IMPORT_S, READY_S = 10.0, 12.0, 30.0, 20.0
# A size may take three times its budget, and what it takes to make its buffers.
MEASURE_BUDGETS, MEASURE_S = 3.0, 5.0
PATHS = {"gloo": "gloo over TCP: not the training path", "nccl": "NCCL"}


@dataclass
class Options:
    """``nodes``: all, in the order of their ranks; ``addresses``, ``port``: the leader's; ``key``: of this probe,
    equal on all nodes, so that no launcher joins another probe.
    """

    node: str
    nodes: list[str]
    backend: str
    ranks: int
    devices: list[ProbeDevice]
    leader: bool
    leader_node: str
    addresses: list[str] = field(default_factory=list)
    port: int = 0
    key: str = ""
    join_s: float = JOIN_S
    deadlines_s: dict[str, float] = field(default_factory=dict)

    def device(self, local: int) -> ProbeDevice:
        gpus = [device for device in self.devices if device.kind == "gpu"]
        return gpus[local] if self.backend == "nccl" else ProbeDevice("cpu", kind="cpu")

    def limit_s(self, stage: str, default_s: float) -> float:
        return float(self.deadlines_s.get(stage, default_s))


def options_of(order: Order) -> Options:
    """Raises ValueError with a sentence for what cannot be done."""
    told = order.options
    backend = str(told.get("backend", "gloo"))
    if backend not in PATHS:
        raise ValueError(f"{backend} is no backend (one of: {', '.join(PATHS)})")
    if any(device.kind == "mig" for device in order.devices):
        raise ValueError("MIG instances cannot take part in collectives: NCCL does not support them")
    gpus = [device for device in order.devices if device.kind == "gpu"]
    ranks = int(told.get("ranks") or (len(gpus) if backend == "nccl" else 1))
    if backend == "nccl" and not gpus:
        raise ValueError("nccl needs GPUs, and none takes part here (--backend gloo measures with the processors)")
    if backend == "nccl" and not 1 <= ranks <= len(gpus):
        raise ValueError(f"{ranks} ranks need as many GPUs; {len(gpus)} are given")
    nodes = [str(name) for name in told.get("nodes") or [order.node]]
    if order.node not in nodes or len(set(nodes)) != len(nodes):
        raise ValueError(f"the nodes ({', '.join(nodes)}) must be different and contain {order.node!r}")
    return Options(
        node=order.node,
        nodes=nodes,
        backend=backend,
        ranks=ranks,
        devices=order.devices,
        leader=bool(told.get("leader", len(nodes) == 1)),
        leader_node=str(told.get("leader_node") or nodes[0]),
        addresses=[str(one) for one in told.get("addresses") or []],
        port=int(told.get("port") or 0),
        key=str(told.get("key") or ""),
        join_s=float(told.get("join_s") or order.deadlines_s.get("join") or JOIN_S),
        deadlines_s=order.deadlines_s,
    )


@dataclass
class RoundTold:
    """{"tell": "round", ...}: who measures what with whom."""

    round: int
    groups: list[list[str]]
    collectives: list[str]
    sizes_bytes: list[int]
    budget_s: float
    work: bool


def round_of(told: Mapping[str, Any]) -> RoundTold:
    """Raises ValueError with a sentence."""
    try:
        found = RoundTold(
            round=int(told["round"]),
            groups=[[str(name) for name in group] for group in told["groups"]],
            collectives=[str(name) for name in told.get("collectives") or ["all-reduce"]],
            sizes_bytes=[int(size) for size in told["sizes_bytes"]],
            budget_s=float(told.get("budget_s", 1.0)),
            work=bool(told.get("work", False)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no round: {error!r}") from None
    unknown = [name for name in found.collectives if name not in NAMES]
    if unknown:
        raise ValueError(f"{unknown[0]} is no collective (one of: {', '.join(NAMES)})")
    return found
