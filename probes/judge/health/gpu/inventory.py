"""Which GPUs there are and how they are set: lost, failing and missing ones, modes, lemons."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu.driver import refusal
from mltop.probes.judge.health.gpu.xid_catalog import gpu_reset
from mltop.probes.judge.health.moment import FleetMoment, Moment
from mltop.probes.judge.health.names import in_slots, is_of_nvml, is_replaced, listed, named_gpus, slot, slots
from mltop.probes.judge.health.relations import BRIDGE, GPU_LOST, RANK_ENDED, SLOWS, STOPS
from mltop.probes.judge.health.rule import HOLD, Hit, OfGpus, device_rule, gpu_fault
from mltop.probes.model import GpuGaps, GpuSample, PciDevice
from mltop.probes.model.units import clock_time, counted
from mltop.probes.model.verdict import gpu_name

NVIDIA = 0x10DE
_REBOOT = "reboot the node; if lost again, reseat it"
_SAVE = f"save what its ranks can, {_REBOOT}"


@gpu_fault("gpu.lost", "critical", remedy="reboot")(
    meaning="NVML has lost the GPU, it vanished from the list, or none of its values can be read",
    threshold="NVML error 15 or 16 (which asks for a reset), no longer listed, or 2 samples* without any value while "
    "other GPUs have theirs",
    source="nvmlReturn_t; arXiv 2603.28781",
    action=_REBOOT,
    needs=("nvml",),
    precedence=GPU_LOST,
    together="{each}",
    explains=("gpu.", "nvlink.", "pcie.", "fabric."),
    whole_node=(
        "All {count} GPUs lost",
        "look for what they share (power, PCIe switch, driver): dmesg; reboot the node",
    ),
    whole_node_by={"reset": ("All {count} GPUs need a reset", "end the jobs on the node, then: sudo nvidia-smi -r")},
    explains_ranks=(*STOPS, *SLOWS, "job.devices"),
)
def lost(moment: Moment) -> Iterator[Hit]:
    """NVML_ERROR_GPU_IS_LOST (15), NVML_ERROR_RESET_REQUIRED (16), a GPU that vanished from the list, or a mute one.

    A GPU that detaches shows no numbers before it goes: its missing values are the signal (arXiv 2603.28781).
    """
    now = moment.now
    answers = any(gpu.temperature_c is not None and gpu.power_w is not None for gpu in now.gpus)
    for gpu in now.gpus:
        if gpu.state == "lost" and not is_replaced(moment, gpu):
            yield _lost(moment, gpu, gpu.error or "NVML has lost it")
        elif _is_mute(gpu) and (before := moment.gpu_before(gpu)) is not None and _is_mute(before) and answers:
            name = gpu_name(gpu.index)
            why = "NVML lists it, but gives none of its values; the GPUs beside it answer"
            text = f"{name} lost: none of its values can be read"
            yield Hit(name, text, (why, *_identity(gpu)), action=_SAVE if now.ranks else "")
    # NVML is silent for a reason that is said, or mltop's agent has just begun and NVML has not answered yet.
    silent = (is_of_nvml(gap) or is_of_nvml(gap, "starting") or gap.source == "gpus" for gap in now.gaps)
    if moment.known_gpus and (now.gpus or not any(silent)):
        indexes = {gpu.index for gpu in now.gpus}
        for index, gpu in moment.known_gpus.items():
            if index not in indexes and not is_replaced(moment, gpu):
                yield _lost(moment, gpu, "it vanished from NVML's list")


def _lost(moment: Moment, gpu: GpuSample, why: str) -> Hit:
    name, seen_at = gpu_name(gpu.index), gpu.last_seen_at
    seen = "" if seen_at is None else f" (last seen {clock_time(seen_at)})"
    evidence = (why, *_identity(gpu))
    if gpu.error_code == "needs_reset":
        reset = gpu_reset(gpu.index)
        return Hit(name, f"{name} needs a reset{seen}", evidence, None, reset.action, seen_at, remedy=reset.remedy)
    action = _SAVE if moment.now.ranks else ""
    about = (BRIDGE, *(place for place, index in slots(moment).items() if index == gpu.index))
    return Hit(name, f"{name} lost{seen}", evidence, action=action, since=seen_at, about=about)


def _is_mute(gpu: GpuSample) -> bool:
    if gpu.temperature_c is not None:
        return False  # the most common case
    values = (gpu.power_w, gpu.busy, gpu.memory_used_bytes, gpu.sm_clock_mhz, gpu.throttle_reasons)
    return gpu.state == "ok" and all(value is None for value in values)


def _identity(gpu: GpuSample) -> tuple[str, ...]:
    names = ", ".join(filter(None, (gpu.name, gpu.uuid, gpu.pci_bus_id)))
    return (names,) if names else ()


@gpu_fault("gpu.error", "critical", clear_s=10.0, remedy="reset")(
    meaning="NVML answers for the GPU with an error",
    threshold="any but a lack of permission, which leaves it unknown, and what all of NVML is refused with",
    source="nvmlReturn_t",
    action="reset the GPU once its job has ended; if it stays: reboot the node",
    needs=("nvml",),
    explains=("gpu.throttle.", "gpu.recovery"),
    whole_node=(
        "NVML answers with an error for all {count} GPUs",
        "look for what they share: dmesg | grep -i nvrm",
    ),
)
def failing(moment: Moment) -> Iterator[Hit]:
    """What ails all of NVML is told once, by gpu.driver; what we may not read is not known to be broken."""
    whole = refusal(moment.now)
    reported = {"no_permission"} if whole is None else {"no_permission", whole.code}
    if "devices_denied" in reported:
        reported.add("blocked")  # as NVML's reader says it, which knows of no container
    for gpu, name in named_gpus(moment):
        if gpu.state == "error" and gpu.error_code not in reported and not is_replaced(moment, gpu):
            text = f"{name}: {gpu.error or 'NVML reports an error for it'}"
            action, remedy = moment.after_log(failing.action), failing.remedy
            if gpu.error_code == "unpowered":
                action, remedy = "connect the card's power cables", "service"
            yield Hit(name, text, _identity(gpu), action=action, remedy=remedy)


@gpu_fault("gpu.missing", "critical", remedy="reboot")(
    meaning="the node has fewer GPUs than its PCI bus, or than you expect",
    threshold="NVML's count < GPUs on PCI bound to the nvidia driver (not in a container or a job's cgroup), or < "
    "--expect-gpus",
    source="nvmlDeviceGetCount; /sys/bus/pci/devices",
    action="reboot the node; if it stays away: reseat it, then service",
    needs=("nvml", "pci"),
    precedence=GPU_LOST,
    explains=("gpu.xid.", "gpu.recovery", "pcie."),
    explains_ranks=(*STOPS, "job.devices"),
)
def missing(moment: Moment) -> Iterator[Hit]:
    """Those that NVML has lost are reported by gpu.lost. The bus counts only where we see the whole machine."""
    now, wanted = moment.now, moment.expectations.expect_gpus or 0
    of_slots = in_slots(moment)
    if len(of_slots) >= wanted and sum(device.kind == "gpu" for device in now.pci) <= len(of_slots):
        return
    refused = refusal(now)
    starting = (
        gap.source == "gpus" or is_of_nvml(gap, "starting") or (is_of_nvml(gap) and gap.kind == "starting")
        for gap in now.gaps
    )
    if (not now.gpus and any(starting)) or (refused is not None and refused.code in ("driver_mismatch", "old_driver")):
        return
    present = {gpu.index for gpu in now.gpus}
    vanished = (gpu for index, gpu in moment.known_gpus.items() if index not in present)
    gpus = [*of_slots, *(gpu for gpu in vanished if not is_replaced(moment, gpu))]
    absent = _absent(moment, gpus)
    expected = max(wanted, len(gpus) + len(absent))
    if expected > len(gpus):
        addresses = [device.bus_id for device in absent]
        text = f"{sum(gpu.state != 'lost' for gpu in of_slots)} of {expected} GPUs"
        if addresses:
            text += f"; {listed(addresses)} {'is' if len(absent) == 1 else 'are'} on PCI but not in the driver"
        unbound = [device.bus_id for device in absent if device.driver is None]
        evidence = [f"{counted(wanted, 'GPU')} expected"] if wanted else []
        evidence += [f"no kernel driver is bound to {listed(unbound)}"] if unbound else []
        evidence += [f"NVML: {gap.why}" for gap in now.gaps if is_of_nvml(gap)]
        action, about = moment.after_log(missing.action), (*map(slot, addresses), BRIDGE)
        yield Hit("GPUs", text, tuple(evidence), action=action, about=about)


def _absent(moment: Moment, gpus: list[GpuSample]) -> list[PciDevice]:
    """GPUs on the bus that NVML does not list. Not those of another driver (vfio); one without any driver has failed
    to initialise, if others have theirs.
    """
    sample = moment.now
    if sample.host.is_confined or not sample.pci:
        return []
    if not sample.gpus and not gpus and any(gap.source in ("nvml", "gpus") for gap in sample.gaps):
        return []  # none was ever seen, for a reason that is said
    on_bus = [device for device in sample.pci if device.kind == "gpu" and device.vendor_id in (NVIDIA, None)]
    if not any(device.driver == "nvidia" for device in on_bus):
        return []
    placed = slots(moment)
    nameless = {gpu.index for gpu in gpus if not gpu.pci_bus_id}.difference(placed.values())
    ours = (device for device in on_bus if device.driver in ("nvidia", None))
    return [device for device in ours if slot(device.bus_id) not in placed][len(nameless) :]


@device_rule("gpu.lemon", "warning", remedy="replace")(
    meaning="a GPU that you noted as broken is back",
    threshold="its UUID or serial number is in your list",
    source="the list of known bad GPUs that mltop was given",
    action="return the node and report the GPU",
    needs=("gpu.*.uuid | gpu.*.serial",),
    compares_nodes=True,  # the list is the watcher's
)
def lemon(moment: FleetMoment) -> Iterator[Hit]:
    lemons = moment.expectations.lemons
    for gpu, name in named_gpus(moment) if lemons else ():
        identity = next((identity for identity in (gpu.uuid, gpu.serial) if identity in lemons), None)
        if identity:
            why = f" ({lemons[identity]})" if lemons[identity] else ""
            yield Hit(name, f"{name}: you had this broken GPU before{why}", (identity,))


persistence = device_rule("gpu.persistence", "info")(
    meaning="without persistence the driver unloads between jobs: they start slowly and counters are lost",
    threshold="off",
    source="nvmlDeviceGetPersistenceMode",
    action="sudo nvidia-smi -pm 1",
    whole_node=("Persistence off on all {count} GPUs: slow start, lost counters", "sudo nvidia-smi -pm 1"),
)(
    OfGpus(
        ("persistence", "Persistence off on {gpu}: slow start, lost counters"),
        action="sudo nvidia-smi -i {index} -pm 1",
        equals=False,
    )
)
prohibited = device_rule("gpu.compute_mode", "warning")(
    meaning="somebody has forbidden to compute on a GPU: CUDA says that it is busy or not available",
    threshold="Prohibited",
    source="nvmlDeviceGetComputeMode",
    action="sudo nvidia-smi -c DEFAULT",
    whole_node=("All {count} GPUs are in Prohibited compute mode: no job can start", "sudo nvidia-smi -c DEFAULT"),
    explains_ranks=(RANK_ENDED,),
)(
    OfGpus(
        ("compute_mode", "{gpu} is in Prohibited compute mode: no job can start on it"),
        action="sudo nvidia-smi -i {index} -c DEFAULT",
        equals="prohibited",
    )
)


@device_rule("gpu.mig", "warning", hold_s=30.0, remedy="reset")(
    meaning="a GPU's MIG mode changes at the next reset; or it is in MIG mode without instances: no job can run on it",
    threshold=f"the pending mode is another one, or no instance, for {HOLD}; some GPUs in MIG mode and others not is a "
    "usual set-up",
    source="nvmlDeviceGetMigMode, nvmlDeviceGetMigDeviceHandleByIndex",
    action="reset the GPU, or take it back: sudo nvidia-smi -mig",
    needs=("gpu.*.mig_enabled", "gpu.*.mig_pending", "gpu.*.mig_instances"),
    whole_node=("The MIG mode of all {count} GPUs changes at their next reset", "sudo nvidia-smi -r"),
    whole_node_by={
        "none": (
            "All {count} GPUs in MIG mode without instances: no job can run",
            "sudo nvidia-smi mig -cgi PROFILE -C",
        )
    },
)
def mig(moment: Moment) -> Iterator[Hit]:
    """Some GPUs in MIG mode beside others that are not is what many sites want. Instances do not survive a reboot."""
    for gpu, name in named_gpus(moment):
        own, pending = gpu.mig_enabled, gpu.mig_pending
        is_empty = not gpu.mig_instances and not GpuGaps(moment.now.gaps, gpu.index).of("mig_instances")
        if gpu.state == "ok" and own and pending is not False and is_empty:
            text = f"{name} is in MIG mode without instances: no job can run on it"
            make = f"sudo nvidia-smi mig -i {gpu.index} -cgi PROFILE -C"
            leave = f"sudo nvidia-smi -i {gpu.index} -mig 0"
            action = f"{make}; or leave MIG mode: {leave}"
            yield Hit(name, text, action=action, key="empty", remedy="none")
        if own is not None and pending is not None and pending != own:
            to = "goes into" if pending else "leaves"
            yield Hit(name, f"{name} {to} MIG mode at its next reset", action=f"sudo nvidia-smi -r -i {gpu.index}")
