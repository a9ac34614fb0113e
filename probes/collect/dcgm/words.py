"""Why GPUs have no activity from DCGM, and what to do about it."""

from __future__ import annotations

START_DCGM = (
    "sudo systemctl start nvidia-dcgm; or start dcgm-exporter with DCGM_FI_PROF_SM_ACTIVE, "
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE in its metrics file (-f)"
)
# SM_ACTIVE and the pipes are commented out in etc/dcp-metrics-included.csv, which it reads by default.
EXPORT_PROFILING = (
    "uncomment DCGM_FI_PROF_SM_ACTIVE (and the others) in dcgm-exporter's metrics file, by default "
    "/etc/dcgm-exporter/default-counters.csv or dcp-metrics-included.csv, and restart it as root or with SYS_ADMIN"
)
SWITCH_ON = "unset MLTOP_DCGM_EXPORTER"


def needs(reason: str) -> str:
    """``reason``: e.g. "nothing listens on 127.0.0.1:9400"."""
    return f"needs GPM (Hopper) or a running DCGM: {reason}"


def stale(where: str, age_s: float) -> str:
    return f"the newest values from {where} are {age_s:.0f} s old"


def not_this_gpu(where: str) -> str:
    return f"{where} says nothing of this GPU"


def only_instances(where: str) -> str:
    return f"{where} measures the instances of a GPU in MIG mode, not the GPU"


def not_exported(where: str) -> str:
    return f"{where} does not export it"


def blank(where: str) -> str:
    return f"{where} has no value of it: the profiling counters are not to be had, or in use by a profiler"


def garbage(where: str, value: float) -> str:
    return f"{where} says {value:g}, which is not a value"
