"""What a probe measures on this node: which GPUs, MIG instances or processors. Pure but for ``cpu_device``."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from mltop.probes.active.host import cpu_info, total_memory_bytes
from mltop.probes.active.supervisor.gate import Refusal
from mltop.probes.active.supervisor.request import ProbeRequest
from mltop.probes.model import DeviceKind, Gap, GpuSample, MigInstance, Sample
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN

CPU: DeviceKind = "cpu"


@dataclass(frozen=True)
class Target:
    """One device, and the GPU (and MIG instance) that it is."""

    device: ProbeDevice
    gpu: GpuSample | None = None
    instance: MigInstance | None = None


@dataclass
class Choice:
    """``refused``: events for what cannot be measured, whether or not somebody uses it."""

    targets: list[Target] = field(default_factory=list)
    refused: list[ProbeEvent] = field(default_factory=list)

    def refuse(self, device: ProbeDevice, why: str, fix: str = "") -> None:
        self.refused.append(refused(device, Refusal(why, fix)))


def refused(device: ProbeDevice, refusal: Refusal) -> ProbeEvent:
    """As an event; ``data`` has what else is known of it, as far as it is."""
    data = {"device": asdict(device), "code": refusal.code, "who": refusal.who, "pids": list(refusal.pids)}
    return ProbeEvent("refused", device=device.uuid, why=refusal.why, fix=refusal.fix, data=data)


def choose(request: ProbeRequest, sample: Sample, cpu: ProbeDevice) -> Choice:
    """The devices of the newest sample that are asked for; without GPUs in the machine its processors."""
    choice = Choice()
    wanted = [name for name in request.gpus if name != CPU]
    if CPU in request.gpus or (not request.gpus and _has_no_gpus(sample)):
        if request.kind == "copies":
            choice.refuse(cpu, "no GPU here: copies are between a GPU and the host")
        elif wanted:
            choice.refuse(cpu, "processors are measured by themselves, not together with GPUs")
        else:
            choice.targets.append(Target(cpu))
        if not wanted:
            return choice
    if sample.gpus and sample.simulated:
        choice.refuse(ProbeDevice(""), "the GPUs of this node are made up (mltop demo): there is nothing to measure")
    elif not sample.gpus:
        unread = [(f"the GPUs of this node cannot be read: {gap.why}", gap.fix) for gap in sample.gaps if _is_nvml(gap)]
        choice.refuse(ProbeDevice(""), *(unread or [("no GPU is seen on this node", "")])[0])
    else:
        _add_gpus(choice, request.kind, sample, wanted)
    return choice


def _add_gpus(choice: Choice, kind: str, sample: Sample, wanted: Sequence[str]) -> None:
    left = list(wanted)
    for gpu in sample.gpus:
        names = {str(gpu.index), gpu.uuid}
        instances = [mig for mig in gpu.mig_instances if not wanted or mig.uuid in left or names & set(left)]
        is_named = not wanted or bool(names & set(left))
        left = [name for name in left if name not in names and name not in {mig.uuid for mig in instances}]
        if gpu.mig_enabled and (is_named or instances):
            _add_instances(choice, kind, sample, gpu, instances)
        elif is_named:
            device = _device(gpu, sample)
            if gpu.uuid:
                choice.targets.append(Target(device, gpu))
            else:
                choice.refuse(device, f"no UUID is known of it: {gpu.error or gpu.state}")
    here = ", ".join(str(gpu.index) for gpu in sample.gpus)
    for name in left:
        choice.refuse(ProbeDevice(name), f"no GPU {name} on this node (there are {here})")


def _add_instances(choice: Choice, kind: str, sample: Sample, gpu: GpuSample, instances: Sequence[MigInstance]) -> None:
    parent = _device(gpu, sample)
    if CHILDREN[kind].not_on_mig:
        choice.refuse(parent, f"in MIG mode: {CHILDREN[kind].not_on_mig}")
        return
    if not instances:
        fix = f"sudo nvidia-smi mig -i {gpu.index} -cgi PROFILE -C"
        choice.refuse(parent, "in MIG mode and has no instance", fix)
    for instance in instances:
        name, total_bytes = f"{gpu.name or 'GPU'} MIG {instance.name or instance.index}", instance.memory_total_bytes
        device = ProbeDevice(instance.uuid or "", gpu.index, name, "mig", parent.pci_device, total_bytes)
        if instance.uuid:
            choice.targets.append(Target(device, gpu, instance))
        else:
            choice.refuse(device, f"MIG instance {instance.index}: no UUID is known of it")


def _device(gpu: GpuSample, sample: Sample) -> ProbeDevice:
    """NVML writes a PCI domain with eight digits, the kernel with four."""
    bus_id = (gpu.pci_bus_id or "").lower()
    ids = (pci.device_id for pci in sample.pci if bus_id and bus_id.endswith(pci.bus_id))
    pci_device = next((f"{number:04x}" for number in ids if number is not None), "")
    return ProbeDevice(gpu.uuid or "", gpu.index, gpu.name or "", "gpu", pci_device, gpu.memory_total_bytes)


def _has_no_gpus(sample: Sample) -> bool:
    """A machine without GPUs, not one whose GPUs cannot be read."""
    if sample.gpus or any(device.kind == "gpu" for device in sample.pci):
        return False
    return all(gap.kind == "unsupported" or gap.code == "no_driver" for gap in sample.gaps if _is_nvml(gap))


def _is_nvml(gap: Gap) -> bool:
    return gap.source == "gpus" or (gap.source == "nvml" and gap.fields in ([], ["starting"]))


def cpu_device() -> ProbeDevice:
    """All processors of this node as one device. Sources: /proc/cpuinfo, /proc/meminfo."""
    return ProbeDevice(CPU, None, cpu_info("model name") or platform.machine(), CPU, "", total_memory_bytes())
