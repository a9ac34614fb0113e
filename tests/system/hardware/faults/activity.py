"""One fault for each check of the slice `activity`, in the record of a run in which all agreed."""

from __future__ import annotations

from tests.hardware.activity_checks import COPIED, FROM_HOST, LOADS, METRICS, MULTIPLIED, OTHERS, PCIE_RX
from tests.system.hardware.faults.fault import Fault, Lie


def told(load: str, metric: str, value: float, *also: str) -> Fault:
    """mltop and NVML say so of a load. A number that no such load can lead to."""
    ours = Lie("record", f"loads/{load}/series/{metric}", f"[{value}]")
    theirs = Lie("record", f"loads/{load}/nvml/{metric}", f"[{value}]")
    return Fault((ours, theirs) if metric in METRICS else (ours,), frozenset(also))


def record(path: str, text: str, *also: str) -> Fault:
    return Fault((Lie("record", path, text),), frozenset(also))


def both(first: Fault, second: Fault) -> Fault:
    return Fault((*first.lies, *second.lies), first.also | second.also)


def under_bf16(metric: str, *also: str) -> tuple[str, ...]:
    """What else looks at the bf16 GEMM."""
    return (f"{metric} (nvidia-smi dmon)", f"{metric} {OTHERS}", *also)


BURSTS = {metric: f"{metric}: bursts to bf16" for metric in ("sm_active", "tensor_active")}
TENSOR, COPY, MEMORY, OCCUPANCY, SPIN = (
    "tensor_active: bf16 over fp32",
    "dram_active: copy over bf16",
    "dram_active: memory over fp32",
    "sm_occupancy: memory over bf16",
    "spin: busy over sm_active",
)
FAULTS: dict[str, Fault] = {
    "gpm": record("own/nvml/sample_code", "4"),
    "sm_active (idle)": told("idle", "sm_active", 0.3),
    "tensor_active (idle)": told("idle", "tensor_active", 0.3),
    "dram_active (idle)": told("idle", "dram_active", 0.3),
    "busy (idle)": told("idle", "busy", 0.1),
    "sm_active (spin)": told("spin", "sm_active", 0.1),
    "tensor_active (spin)": told("spin", "tensor_active", 0.3),
    "dram_active (spin)": told("spin", "dram_active", 0.3),
    "busy (spin)": told("spin", "busy", 0.87),
    "sm_active (host)": told("host", "sm_active", 0.3),
    "tensor_active (host)": told("host", "tensor_active", 0.3),
    "tensor_active (copy)": told("copy", "tensor_active", 0.3),
    "dram_active (copy)": told("copy", "dram_active", 0.1, COPY, COPIED),
    "sm_active (memory)": told("memory", "sm_active", 0.3),
    "tensor_active (memory)": told("memory", "tensor_active", 0.3),
    "dram_active (memory)": told("memory", "dram_active", 0.5),
    "sm_occupancy (memory)": told("memory", "sm_occupancy", 0.1, OCCUPANCY),
    "sm_active (fp32)": told("fp32", "sm_active", 0.3),
    "tensor_active (fp32)": told("fp32", "tensor_active", 0.2),
    "dram_active (fp32)": told("fp32", "dram_active", 0.65, MEMORY),
    "fp32_active (fp32)": told("fp32", "fp32_active", 0.1),
    "sm_active (bursts)": told("bursts", "sm_active", 0.9, BURSTS["sm_active"]),
    "tensor_active (bursts)": told("bursts", "tensor_active", 0.9, BURSTS["tensor_active"]),
    "sm_active (bf16)": told("bf16", "sm_active", 0.75, *under_bf16("sm_active")),
    "tensor_active (bf16)": told(
        "bf16", "tensor_active", 0.3, *under_bf16("tensor_active", TENSOR, MULTIPLIED, BURSTS["tensor_active"])
    ),
    "dram_active (bf16)": told("bf16", "dram_active", 0.74, *under_bf16("dram_active")),
    "sm_occupancy (bf16)": told("bf16", "sm_occupancy", 0.8, OCCUPANCY, "sm_occupancy (nvidia-smi dmon)"),
    "fp32_active (bf16)": told("bf16", "fp32_active", 0.9),
    "busy (bf16)": told("bf16", "busy", 0.87),
    **{f"busy ({load}, nvidia-smi)": record(f"loads/{load}/smi_busy", "0.3") for load in LOADS},
    TENSOR: told("fp32", "tensor_active", 0.6, "tensor_active (fp32)"),
    # From here to the next comment each value alone is within its band.
    COPY: both(told("copy", "dram_active", 0.72), told("bf16", "dram_active", 0.6, *under_bf16("dram_active"))),
    MEMORY: both(told("memory", "dram_active", 0.65), told("fp32", "dram_active", 0.4)),
    BURSTS["sm_active"]: told("bursts", "sm_active", 0.7),
    BURSTS["tensor_active"]: told("bursts", "tensor_active", 0.7),
    OCCUPANCY: both(told("memory", "sm_occupancy", 0.2), told("bf16", "sm_occupancy", 0.17)),
    SPIN: both(told("spin", "busy", 0.9), told("spin", "sm_active", 0.06)),
    # And here the other side is another.
    COPIED: record("memory_bytes_per_s", "8e12"),
    MULTIPLIED: record("loads/bf16/gpu_rate", "1.4e15"),
    FROM_HOST: told("host", PCIE_RX, 5e9),
    **{f"{metric} (NVML)": record(f"loads/bf16/nvml/{metric}", "[0.5]") for metric in METRICS},
    **{
        f"{metric} (nvidia-smi dmon)": record(f"loads/bf16/smi_gpm/{metric}", "[0.6]")
        for metric in ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
    },
    f"gpm {OTHERS}": record("other/nvml/sample_code", "4"),
    **{
        f"{metric} {OTHERS}": record(f"other_under/series/{metric}", "[0.6]")
        for metric in ("sm_active", "tensor_active", "dram_active")
    },
}
