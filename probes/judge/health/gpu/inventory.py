"""Which GPUs there are and how they are set: missing ones, drivers, modes, lemons."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu import driver
from mltop.probes.judge.health.gpu.driver import is_mismatch
from mltop.probes.judge.health.names import bus_key, gpu_name, in_slots, is_replaced, listed, plural, slots
from mltop.probes.judge.health.rule import GPU_LOST, Hit, Moment, Rule
from mltop.probes.model import GpuSample, PciDevice, Sample

NVIDIA = 0x10DE


def missing(moment: Moment) -> Iterator[Hit]:
    """Fewer GPUs than the PCI bus has or than were asked for. Those that NVML has lost are told by gpu.lost.

    What the bus has counts only where this program sees the whole machine; a number that was asked for always counts.
    """
    now, asked = moment.now, moment.asked.expect_gpus or 0
    listed = in_slots(moment)
    if len(listed) >= asked and sum(device.kind == "gpu" for device in now.pci) <= len(listed):
        return
    if _is_starting(now) or is_mismatch(now):
        return
    present = {gpu.index for gpu in now.gpus}
    vanished = (gpu for index, gpu in moment.known_gpus.items() if index not in present)
    known = [*listed, *(gpu for gpu in vanished if not is_replaced(moment, gpu))]
    absent = _absent(moment, known)
    expected = max(asked, len(known) + len(absent))
    if expected > len(known):
        there = sum(gpu.state != "lost" for gpu in listed)
        text = f"{there} of {expected} GPUs{_addresses(absent)}"
        about = tuple(bus_key(one.bus_id) for one in absent)
        yield Hit("GPUs", text, tuple(_evidence(moment, absent)), about=about)


def _absent(moment: Moment, known: list[GpuSample]) -> list[PciDevice]:
    """GPUs on the bus that NVML does not list. One that another driver (vfio) has taken is not ours to list.

    One without any driver counts beside others that have theirs: its initialisation has failed.
    """
    sample = moment.now
    if sample.host.is_confined or not sample.pci:
        return []
    if not sample.gpus and not known and any(gap.what.partition(".")[0] in ("nvml", "gpus") for gap in sample.gaps):
        return []  # none was ever seen, for a reason that is said
    on_bus = [device for device in sample.pci if device.kind == "gpu" and device.vendor_id in (NVIDIA, None)]
    if not any(device.driver == "nvidia" for device in on_bus):
        return []
    placed = slots(moment)
    nameless = {gpu.index for gpu in known if not gpu.pci_bus_id}.difference(placed.values())
    absent = [one for one in on_bus if one.driver in ("nvidia", None) and bus_key(one.bus_id) not in placed]
    return absent[len(nameless) :]


def _is_starting(sample: Sample) -> bool:
    return not sample.gpus and any(
        gap.what in ("nvml.starting", "gpus") or (gap.what == "nvml" and gap.kind == "starting") for gap in sample.gaps
    )


def _addresses(absent: list[PciDevice]) -> str:
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return f"; {listed([one.bus_id for one in absent])} {verb} on PCI but not in the driver"


def _evidence(moment: Moment, absent: list[PciDevice]) -> Iterator[str]:
    if moment.asked.expect_gpus:
        yield f"{plural(moment.asked.expect_gpus, 'GPU')} expected"
    unbound = [one.bus_id for one in absent if one.driver is None]
    if unbound:
        yield f"no kernel driver is bound to {listed(unbound)}"
    yield from (f"NVML: {gap.why}" for gap in moment.now.gaps if gap.what == "nvml")


def lemon(moment: Moment) -> Iterator[Hit]:
    lemons = moment.asked.lemons
    if not lemons:
        return
    for gpu in moment.now.gpus:
        for identity in (gpu.uuid, gpu.serial):
            if identity and identity in lemons:
                name, why = gpu_name(gpu.index), lemons[identity]
                text = f"{name}: you had this broken GPU before" + (f" ({why})" if why else "")
                yield Hit(name, text, (identity,))
                break


def persistence(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        if gpu.persistence is False:
            name = gpu_name(gpu.index)
            action = f"sudo nvidia-smi -i {gpu.index} -pm 1"
            yield Hit(name, f"Persistence off on {name}: slow start, lost counters", action=action)


def prohibited(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        if gpu.compute_mode == "prohibited":
            name = gpu_name(gpu.index)
            action = f"sudo nvidia-smi -i {gpu.index} -c DEFAULT"
            yield Hit(name, f"{name} is in Prohibited compute mode: no job can start on it", action=action)


def mig(moment: Moment) -> Iterator[Hit]:
    """Some GPUs in MIG mode beside others that are not is what many sites want: only a change that waits is told."""
    for gpu in moment.now.gpus:
        own, pending = gpu.mig_enabled, gpu.mig_pending
        if own is not None and pending is not None and pending != own:
            name = gpu_name(gpu.index)
            to = "goes into" if pending else "leaves"
            yield Hit(name, f"{name} {to} MIG mode at its next reset", action=f"sudo nvidia-smi -r -i {gpu.index}")


FACTS = driver.FACTS

RULES = (
    Rule(
        "gpu.missing",
        "critical",
        0.0,
        "look for Xid lines in dmesg; reboot the node; if it stays away: reseat it, then service",
        missing,
        meaning="the node has fewer GPUs than its PCI bus, or than you expect",
        threshold=(
            "NVML's count < GPUs on PCI bound to the nvidia driver (not in a container or a job's cgroup), or < "
            "--expect-gpus"
        ),
        source="nvmlDeviceGetCount; /sys/bus/pci/devices",
        needs=("nvml", "pci"),
        explains=("gpu.xid.", "gpu.recovery", "pcie."),
        remedy="reboot",
        precedence=GPU_LOST,
    ),
    Rule(
        "gpu.lemon",
        "warning",
        0.0,
        "return the node and report the GPU",
        lemon,
        meaning="a GPU that you noted as broken is back",
        threshold="its UUID or serial number is in your list",
        source="the list of known bad GPUs that mltop was given",
        needs=("gpu.*.uuid | gpu.*.serial",),
        remedy="replace",
    ),
    Rule(
        "gpu.persistence",
        "info",
        0.0,
        "sudo nvidia-smi -pm 1",
        persistence,
        meaning="without persistence the driver unloads between jobs: they start slowly and counters are lost",
        threshold="off",
        source="nvmlDeviceGetPersistenceMode",
        needs=("gpu.*.persistence",),
        whole_node=("Persistence off on all {count} GPUs: slow start, lost counters", "sudo nvidia-smi -pm 1"),
    ),
    Rule(
        "gpu.compute_mode",
        "warning",
        0.0,
        "sudo nvidia-smi -c DEFAULT",
        prohibited,
        meaning="somebody has forbidden to compute on a GPU: CUDA says that it is busy or not available",
        threshold="Prohibited",
        source="nvmlDeviceGetComputeMode",
        needs=("gpu.*.compute_mode",),
        whole_node=("All {count} GPUs are in Prohibited compute mode: no job can start", "sudo nvidia-smi -c DEFAULT"),
    ),
    Rule(
        "gpu.mig",
        "warning",
        0.0,
        "reset the GPU, or take it back: sudo nvidia-smi -mig",
        mig,
        meaning="a GPU's MIG mode changes at the next reset",
        threshold="the pending mode is another one; some GPUs in MIG mode and others not is a usual set-up",
        source="nvmlDeviceGetMigMode",
        needs=("gpu.*.mig_enabled", "gpu.*.mig_pending"),
        remedy="reset",
    ),
    *driver.RULES,
)
