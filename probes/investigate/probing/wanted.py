"""What the user wants measured, of which sizes and for how long, and how a running probe reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mltop.probes.investigate.progress import FINISHED, End
from mltop.probes.model import ProbeKind
from mltop.probes.model.probe import DeviceResult, ProbeFailure, ProbeReport
from mltop.probes.model.probe_kinds import PROBE_OF, ProbeRow

ProbePhase = Literal["connecting", "running"] | End


@dataclass(frozen=True)
class ProbeWanted:
    """``nodes``, ``gpus`` (indexes or UUIDs): none means all. ``sizes_bytes``: none means the kind's own.

    ``ranks``: per node, 0: one per GPU, or what fits the cores. ``python``: that has torch on the nodes, "" looks for
    one; ``trust_python``: root runs it whoever can change it. ``backend``: nccl | gloo, "" takes what the devices need.
    ``deadline_s``: for everything, 0: the kind's own. ``round_robin``: of pairs: every pair once. ``force``: also
    devices that somebody uses.
    """

    kind: ProbeKind
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    dtype: str = "bf16"
    collective: str = "all-reduce"
    backend: str = ""
    sizes_bytes: tuple[int, ...] = ()
    sweep: bool = False
    ranks: int = 0
    round_robin: bool = False
    force: bool = False
    python: str = ""
    trust_python: bool = False
    deadline_s: float = 0.0

    @property
    def row(self) -> ProbeRow:
        return PROBE_OF[self.kind]


@dataclass(frozen=True)
class DeviceProgress:
    """One line of the screen: a device (or rank) and how far it is. ``result``: once there is one (model.probe)."""

    node: str
    gpu: int | None
    uuid: str = ""
    name: str = ""
    rank: int | None = None
    stage: str = ""
    fraction: float | None = None
    problem: str = ""
    result: DeviceResult | None = None


@dataclass(frozen=True)
class ProbeProgress:
    """``text``: one line of what happens now.

    ``report`` is partial while it runs (what is known so far, or None) and final when ``finished``.
    """

    wanted: ProbeWanted
    phase: ProbePhase
    text: str = ""
    elapsed_s: float = 0.0
    deadline_s: float = 0.0
    devices: tuple[DeviceProgress, ...] = ()
    failures: tuple[ProbeFailure, ...] = ()
    report: ProbeReport | None = None
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED


KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
GPU_SIZES = (MI, 256 * MI, GI)  # latency; two of which figures are known (96 % of the 16 GiB value on H200)
CPU_SIZES = (MI, 16 * MI, 64 * MI)
GPU_SWEEP = tuple(KI << step for step in range(5, 24))  # 32 KiB to 4 GiB
CPU_SWEEP = tuple(KI << step for step in range(5, 17))  # 32 KiB to 64 MiB
PAIR_GPU_SIZE, PAIR_CPU_SIZE = 256 * MI, 8 * MI
BUDGET_S, SWEEP_BUDGET_S, PAIR_BUDGET_S = 0.6, 0.25, 0.4


def sizes_of(wanted: ProbeWanted, on_cpu: bool) -> tuple[int, ...]:
    if wanted.sizes_bytes:
        return wanted.sizes_bytes
    if wanted.sweep:
        return CPU_SWEEP if on_cpu else GPU_SWEEP
    return CPU_SIZES if on_cpu else GPU_SIZES


def pair_size(wanted: ProbeWanted, on_cpu: bool) -> int:
    return wanted.sizes_bytes[0] if wanted.sizes_bytes else PAIR_CPU_SIZE if on_cpu else PAIR_GPU_SIZE
