"""Which field of a GpuSample is compared with what: one row for each pair (the slice `values`)."""

from __future__ import annotations

from tests.hardware.rows import board, errors, links, throttling

ROWS = (
    *board.STATIC,
    *board.MEMORY,
    *board.CLOCKS,
    *board.POWER,
    *board.TEMPERATURES,
    *board.MODES,
    *throttling.THROTTLING,
    *errors.ECC,
    *errors.REPAIR,
    *links.PCIE,
    *links.NVLINK,
    *links.FABRIC,
    *board.PROCESSES,
)
# What nobody else tells, or another slice looks at.
NOT_HERE = {
    "index": "it is how GPUs are told apart here",
    "state": "of mltop's own",
    "unified_memory": "of mltop's own: whether the GPU has memory of its own to report",
    "error": "of mltop's own",
    "error_code": "of mltop's own",
    "last_seen_at": "of mltop's own",
    "activity_source": "the slice activity looks at it",
    **dict.fromkeys(
        ("sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active", "fp32_active", "fp16_active"),
        "nvidia-smi tells no activity but GPU-Util; the slice activity compares it with known loads",
    ),
    "throttle_share": "the slice throttling makes it from nvidia-smi's counters",
    "pcie.rx_bytes_per_s": "the slice probes copies known amounts",
    "pcie.tx_bytes_per_s": "the slice probes copies known amounts",
    "pcie.errors": "no second source tells these counters",
    "nvlink.rx_bytes_per_s": "the slice probes copies known amounts between GPUs",
    "nvlink.tx_bytes_per_s": "the slice probes copies known amounts between GPUs",
    "fabric.problems": "nvidia-smi sums them up: see fabric.health",
}
