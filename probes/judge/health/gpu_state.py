"""A GPU that NVML no longer answers for, or answers for with an error."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from mltop.probes.judge.health.rule import DRIVER, GPU_LOST, Hit, Moment, Rule
from mltop.probes.model import GpuSample

# A GPU that detaches shows no numbers before it goes: its missing values are the signal (arXiv 2603.28781).


def lost(moment: Moment) -> Iterator[Hit]:
    """NVML_ERROR_GPU_IS_LOST (15), NVML_ERROR_RESET_REQUIRED (16), or a GPU that vanished from the list."""
    listed = {gpu.index for gpu in moment.now.gpus}
    for gpu in moment.now.gpus:
        if gpu.state == "lost":
            yield _lost(gpu, gpu.error or "NVML has lost it")
    if _nvml_is_silent(moment):
        return  # then nothing is listed, and nvml.stuck says why
    for index, gpu in moment.known_gpus.items():
        if index not in listed:
            yield _lost(gpu, "it vanished from NVML's list")


def error(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        if gpu.state == "error":
            what = gpu.error or "NVML reports an error for it"
            yield Hit(f"GPU {gpu.index}", f"GPU {gpu.index}: {what}", _identity(gpu))


def _nvml_is_silent(moment: Moment) -> bool:
    return not moment.now.gpus and any(gap.what == "nvml" for gap in moment.now.gaps)


def _lost(gpu: GpuSample, why: str) -> Hit:
    seen = ""
    if gpu.last_seen_at is not None:
        seen = f" (last seen {datetime.fromtimestamp(gpu.last_seen_at, timezone.utc):%H:%M:%S} UTC)"
    return Hit(f"GPU {gpu.index}", f"GPU {gpu.index} lost{seen}", (why, *_identity(gpu)), since=gpu.last_seen_at)


def _identity(gpu: GpuSample) -> tuple[str, ...]:
    known = [part for part in (gpu.name, gpu.uuid, gpu.pci_bus_id) if part]
    return (", ".join(known),) if known else ()


RULES = (
    Rule(
        "gpu.lost",
        "critical",
        0.0,
        "save what you can, reboot the node; if it comes back, reseat it",
        lost,
        meaning="NVML has lost the GPU, or it vanished from the list",
        threshold="NVML error 15 or 16, or no longer listed",
        source="nvmlReturn_t; arXiv 2603.28781",
        precedence=GPU_LOST,
        explains=("gpu.", "nvlink."),
    ),
    Rule(
        "gpu.error",
        "critical",
        0.0,
        "look for Xid lines: dmesg | grep -i xid",
        error,
        meaning="NVML answers for the GPU with an error",
        threshold="any",
        source="nvmlReturn_t",
        precedence=DRIVER,
        explains=("gpu.throttle.",),
    ),
)
