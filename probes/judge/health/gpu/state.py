"""A GPU that NVML no longer answers for, or answers for with an error."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu.nvml import fault_of, refusal
from mltop.probes.judge.health.gpu.recovery import advice
from mltop.probes.judge.health.names import at_time, gpu_name, is_replaced
from mltop.probes.judge.health.rule import DRIVER, GPU_LOST, Hit, Moment, Rule
from mltop.probes.model import GpuSample

# A GPU that detaches shows no numbers before it goes: its missing values are the signal (arXiv 2603.28781).


def lost(moment: Moment) -> Iterator[Hit]:
    """NVML_ERROR_GPU_IS_LOST (15), NVML_ERROR_RESET_REQUIRED (16), a GPU that vanished from the list, or a mute one."""
    now = moment.now
    for gpu in now.gpus:
        if gpu.state == "lost" and not is_replaced(moment, gpu):
            yield _lost(gpu, gpu.error or "NVML has lost it")
        elif gpu.temperature_c is None and gpu.power_w is None and _is_mute(moment, gpu):
            yield _mute(gpu)
    if moment.known_gpus and not _nothing_is_listed(moment):
        listed = {gpu.index for gpu in now.gpus}
        for index, gpu in moment.known_gpus.items():
            if index not in listed and not is_replaced(moment, gpu):
                yield _lost(gpu, "it vanished from NVML's list")


def error(moment: Moment) -> Iterator[Hit]:
    """What ails all of NVML is told once, by gpu.driver; what we may not read is not known to be broken."""
    whole = refusal(moment.now)
    for gpu in moment.now.gpus:
        fault = fault_of(gpu)
        told_once = fault == "no_permission" or (whole is not None and fault == fault_of(whole))
        if gpu.state == "error" and not told_once and not is_replaced(moment, gpu):
            name, what = gpu_name(gpu.index), gpu.error or "NVML reports an error for it"
            yield Hit(name, f"{name}: {what}", _identity(gpu))


def _is_mute(moment: Moment, gpu: GpuSample) -> bool:
    """Two samples in a row without any value, while others of the node have theirs."""
    before = moment.gpu_before(gpu)
    return (
        before is not None
        and _has_no_values(gpu)
        and _has_no_values(before)
        and any(other.temperature_c is not None and other.power_w is not None for other in moment.now.gpus)
    )


def _has_no_values(gpu: GpuSample) -> bool:
    values = (gpu.temperature_c, gpu.power_w, gpu.busy, gpu.memory_used_bytes, gpu.sm_clock_mhz, gpu.throttle_reasons)
    return gpu.state == "ok" and all(value is None for value in values)


def _nothing_is_listed(moment: Moment) -> bool:
    """For a reason that is said: NVML is silent, or mltop's agent has just begun and NVML has not answered yet."""
    return not moment.now.gpus and any(gap.what in ("nvml", "nvml.starting", "gpus") for gap in moment.now.gaps)


def _lost(gpu: GpuSample, why: str) -> Hit:
    name, seen_at = gpu_name(gpu.index), gpu.last_seen_at
    seen = "" if seen_at is None else f" (last seen {at_time(seen_at)})"
    evidence = (why, *_identity(gpu))
    if fault_of(gpu) == "needs_reset":
        action, remedy = advice("gpu_reset", gpu.index)
        return Hit(name, f"{name} needs a reset{seen}", evidence, action=action, remedy=remedy, since=seen_at)
    return Hit(name, f"{name} lost{seen}", evidence, since=seen_at)


def _mute(gpu: GpuSample) -> Hit:
    name = gpu_name(gpu.index)
    why = "NVML lists it, but gives none of its values; the GPUs beside it answer"
    return Hit(name, f"{name} lost: none of its values can be read", (why, *_identity(gpu)))


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
        meaning="NVML has lost the GPU, it vanished from the list, or none of its values can be read",
        threshold=(
            "NVML error 15 or 16 (which asks for a reset), no longer listed, or 2 samples* without any value while "
            "other GPUs have theirs"
        ),
        source="nvmlReturn_t; arXiv 2603.28781",
        needs=("nvml",),
        remedy="reboot",
        precedence=GPU_LOST,
        explains=("gpu.", "nvlink.", "pcie.", "fabric."),
        whole_node=(
            "All {count} GPUs lost",
            "look for what they share (power, PCIe switch, driver): dmesg; reboot the node",
        ),
        whole_node_by={
            "reset": ("All {count} GPUs need a reset", "end the jobs on the node, then: sudo nvidia-smi -r")
        },
    ),
    Rule(
        "gpu.error",
        "critical",
        0.0,
        "look for Xid lines: dmesg | grep -i xid",
        error,
        meaning="NVML answers for the GPU with an error",
        threshold="any but a lack of permission, which leaves it unknown, and what all of NVML is refused with",
        clear_s=10.0,
        source="nvmlReturn_t",
        needs=("nvml",),
        precedence=DRIVER,
        explains=("gpu.throttle.",),
        whole_node=(
            "NVML answers with an error for all {count} GPUs",
            "look for what they share: dmesg | grep -i nvrm",
        ),
    ),
)
