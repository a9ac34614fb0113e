"""Which GPUs there are and how they are set: missing ones, drivers, modes, lemons."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health import gpu_driver
from mltop.probes.judge.health.gpu_driver import is_mismatch
from mltop.probes.judge.health.gpu_words import bus_key, gpu_name, plural
from mltop.probes.judge.health.rule import GPU_LOST, Hit, Moment, Rule
from mltop.probes.model import GpuSample, PciDevice, Sample

NVIDIA = 0x10DE


def missing(moment: Moment) -> Iterator[Hit]:
    """Fewer GPUs than the PCI bus has or than were asked for. Those that NVML has lost are told by gpu.lost.

    What the bus has counts only where this program sees the whole machine; a number that was asked for always counts.
    """
    now, asked = moment.now, moment.asked.expect_gpus or 0
    if len(now.gpus) >= asked and sum(device.kind == "gpu" for device in now.pci) <= len(now.gpus):
        return
    if _is_starting(now) or is_mismatch(now):
        return
    known = {gpu.index: gpu for gpu in (*moment.known_gpus.values(), *now.gpus)}
    absent = _absent(now, list(known.values()))
    expected = max(asked, len(known) + len(absent))
    if expected > len(known):
        there = sum(gpu.state != "lost" for gpu in now.gpus)
        yield Hit("GPUs", f"{there} of {expected} GPUs{_addresses(absent)}", tuple(_evidence(moment, absent)))


def _absent(sample: Sample, known: list[GpuSample]) -> list[PciDevice]:
    """GPUs on the bus that NVML does not list. One that another driver (vfio) has taken is not ours to list.

    One without any driver counts beside others that have theirs: its initialisation has failed.
    """
    if sample.host.is_confined or not sample.pci or (not sample.gpus and not known):
        return []
    on_bus = [device for device in sample.pci if device.kind == "gpu" and device.vendor_id in (NVIDIA, None)]
    if not any(device.driver == "nvidia" for device in on_bus):
        return []
    listed = {bus_key(gpu.pci_bus_id) for gpu in known if gpu.pci_bus_id}
    nameless = sum(not gpu.pci_bus_id for gpu in known)
    absent = [one for one in on_bus if one.driver in ("nvidia", None) and bus_key(one.bus_id) not in listed]
    return absent[nameless:]


def _is_starting(sample: Sample) -> bool:
    return not sample.gpus and any(
        gap.what.startswith("nvml") and (gap.kind == "starting" or gap.what == "nvml.starting") for gap in sample.gaps
    )


def _addresses(absent: list[PciDevice]) -> str:
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return f"; {', '.join(one.bus_id for one in absent)} {verb} on PCI but not in the driver"


def _evidence(moment: Moment, absent: list[PciDevice]) -> Iterator[str]:
    if moment.asked.expect_gpus:
        yield f"{plural(moment.asked.expect_gpus, 'GPU')} expected"
    unbound = [one.bus_id for one in absent if one.driver is None]
    if unbound:
        yield f"no kernel driver is bound to {', '.join(unbound)}"
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
            yield Hit(name, f"Persistence off on {name}: slow start, lost counters")


def prohibited(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        if gpu.compute_mode == "prohibited":
            name = gpu_name(gpu.index)
            yield Hit(name, f"{name} is in Prohibited compute mode: no job can start on it")


def mig(moment: Moment) -> Iterator[Hit]:
    gpus = moment.now.gpus
    if not any(gpu.mig_enabled or gpu.mig_pending for gpu in gpus):
        return
    in_mig = sum(gpu.mig_enabled is True for gpu in gpus)
    without = sum(gpu.mig_enabled is False for gpu in gpus)
    for gpu in gpus:
        own = gpu.mig_enabled
        if own is None:
            continue
        name = gpu_name(gpu.index)
        if gpu.mig_pending is not None and gpu.mig_pending != own:
            to = "goes into" if gpu.mig_pending else "leaves"
            yield Hit(name, f"{name} {to} MIG mode at its next reset", action=f"sudo nvidia-smi -r -i {gpu.index}")
        elif own and in_mig < without:
            action = f"sudo nvidia-smi -i {gpu.index} -mig 0, then reset it"
            yield Hit(name, f"{name} is in MIG mode, {without} others are not", action=action)
        elif not own and without < in_mig:
            action = f"sudo nvidia-smi -i {gpu.index} -mig 1, then reset it"
            yield Hit(name, f"{name} is not in MIG mode, {in_mig} others are", action=action)


FACTS = gpu_driver.FACTS

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
        needs=("gpu.*.uuid", "gpu.*.serial"),
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
        "nvidia-smi -mig",
        mig,
        meaning="a GPU's MIG mode is not that of the others, or changes at the next reset",
        threshold="another mode than most GPUs of the node, or the pending mode is another one",
        source="nvmlDeviceGetMigMode",
        needs=("gpu.*.mig_enabled",),
    ),
    *gpu_driver.RULES,
)
