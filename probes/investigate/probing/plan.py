"""Which sizes are measured, and for how long."""

from __future__ import annotations

from mltop.probes.investigate.probing.wanted import ProbeWanted

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
GPU_SIZES = (MI, 256 * MI, GI)  # latency; two of which figures are known (96 % of the 16 GiB value on H200)
CPU_SIZES = (MI, 16 * MI, 64 * MI)
GPU_SWEEP = tuple(KI << step for step in range(5, 24, 1))  # 32 KiB to 4 GiB
CPU_SWEEP = tuple(KI << step for step in range(5, 17, 1))  # 32 KiB to 64 MiB
PAIR_GPU_SIZE, PAIR_CPU_SIZE = 256 * MI, 8 * MI
BUDGET_S, SWEEP_BUDGET_S, PAIR_BUDGET_S = 0.6, 0.25, 0.4
COLLECTIVE_DEADLINE_S, MANY_DEADLINE_S, MANY = 60.0, 120.0, 64
PAIRS_DEADLINE_S, PAIR_ROUND_S = 90.0, 3.0


def sizes_of(wanted: ProbeWanted, on_cpu: bool) -> tuple[int, ...]:
    if wanted.sizes_bytes:
        return wanted.sizes_bytes
    if wanted.sweep:
        return CPU_SWEEP if on_cpu else GPU_SWEEP
    return CPU_SIZES if on_cpu else GPU_SIZES


def pair_size(wanted: ProbeWanted, on_cpu: bool) -> int:
    return wanted.sizes_bytes[0] if wanted.sizes_bytes else PAIR_CPU_SIZE if on_cpu else PAIR_GPU_SIZE


def deadline_of(wanted: ProbeWanted, nodes: int) -> float:
    """For the whole run, s: what the kind needs on ``nodes`` nodes."""
    if wanted.kind == "pairs":
        rounds = nodes if wanted.round_robin else 4
        return PAIRS_DEADLINE_S + PAIR_ROUND_S * rounds
    return MANY_DEADLINE_S if nodes > MANY else COLLECTIVE_DEADLINE_S
