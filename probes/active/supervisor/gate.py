"""What a probe may measure on this node: which GPUs, MIG instances or processors, and whether each is free, and if not,
whose it is. Pure but for ``cpu_device``.

What is not known is not taken as free: of a GPU's processes and its memory at least one must be known, and what is not
is said (``unknowns``). Who uses a GPU by its process list alone is enough to refuse; graphics processes (a login
screen) do not count unless they keep the GPU busy.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from mltop.probes.active.host import cpu_info, total_memory_bytes
from mltop.probes.active.supervisor.request import ProbeRequest
from mltop.probes.model import DeviceKind, GpuSample, MigInstance, Sample
from mltop.probes.model.gpu import IDLE_SM, IN_USE_BUSY, IN_USE_BYTES
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN
from mltop.probes.model.units import percent_words, size_words
from mltop.probes.model.unread import is_about_all_gpus, unread_gpus
from mltop.probes.model.vocabulary import RefusalCode

CPU_BUSY = 0.5  # of all cores; mltop itself may take one for a moment
_SHUT = {"prohibited": "Prohibited", "exclusive_process": "Exclusive", "exclusive_thread": "Exclusive"}
_FORCE = "wait until it is free, or --force"


@dataclass(frozen=True)
class Refusal:
    """``why``: of the device, which it does not name. ``code``: for others of its kind, whose figures differ;
    ``who``: user and command of the first of ``pids``, where processes are why.
    """

    why: str
    fix: str = ""
    code: RefusalCode = ""
    who: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Holder:
    """A process that holds a GPU. ``is_visible`` False: there is no such process here (another container, or it has
    just ended). ``job``: Slurm's or the launcher's; ``probe``: kind, of a probe of mltop.
    """

    pid: int
    user: str = ""
    command: str = ""
    job: str = ""
    probe: str = ""
    is_visible: bool = True

    def __str__(self) -> str:
        if self.probe:
            of_user = f" of {self.user}" if self.user else ""
            return f"{a_probe(self.probe)} (pid {self.pid}{of_user}) runs here"
        if not self.is_visible:
            return f"pid {self.pid}, which is not seen here (in another container, or it has just ended)"
        return f"{self.who} ({_pid_and_job(self.pid, self.job)})"

    @property
    def who(self) -> str:
        """Whose process it is, without its number."""
        return f"{a_probe(self.probe)} of {self.user}" if self.probe else _who(self.user, self.command)


def of_all(gpu: int | None, why: str) -> Refusal:
    """Of the others on a node where a collective, which takes all devices or none, was refused ``gpu``."""
    which = "another device of this node" if gpu is None else f"GPU {gpu} of this node"
    return Refusal(f"not started, because {which} is refused: {why}", "choose the devices: --gpus")


def a_probe(kind: str) -> str:
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind} probe of mltop"


def refusal(
    gpu: GpuSample,
    recent: Sequence[GpuSample],
    holders: Mapping[int, Holder],
    *,
    force: bool = False,
    instance: MigInstance | None = None,
) -> Refusal | None:
    """Why no probe may run on this GPU or MIG instance, None when it may.

    ``gpu``: newest; ``recent``: of the same GPU the last samples, ``gpu`` with them. ``holders``: of each pid of its
    process list that is foreign. ``force`` passes all but a GPU that is lost.
    """
    if gpu.state == "lost":
        return Refusal(f"lost: {gpu.error or 'it does not answer'}", "reboot the node")
    if force:
        return None
    if gpu.state != "ok":
        return Refusal(f"cannot be read: {gpu.error or gpu.state}", "look at the kernel log")
    used = _in_use(gpu, holders, instance) or next(_loaded(gpu, recent, instance), None)
    if used is not None and instance is not None:
        used = replace(used, why=f"MIG instance {instance.index}: {used.why}")
    broken = _broken(gpu)
    return broken if broken is not None and (used is None or used.code == "unknown") else used


def unknowns(gpu: GpuSample, recent: Sequence[GpuSample], instance: MigInstance | None = None) -> list[str]:
    """What the decision about a free GPU had to do without."""
    is_known = {
        "who uses it": gpu.processes is not None,
        "its memory use": (instance or gpu).memory_used_bytes is not None,
        "how busy it is": any(value is not None for value in _activity(recent, instance)),
    }
    return [f"of GPU {gpu.index} is not known: {what}" for what, is_there in is_known.items() if not is_there]


def cpu_refusal(samples: Sequence[Sample], others: Sequence[Holder], *, force: bool = False) -> Refusal | None:
    """Why no probe may run on the node's processors. ``samples``: the last ones, newest last; ``others``: probes of
    mltop that run here. A job whose ranks are all stopped (SIGSTOP) is out of the way; one that hangs is not.
    """
    if force:
        return None
    if others:
        return Refusal(str(others[0]), "wait until it is over, or --force", "probe", others[0].who)
    running = [rank for rank in samples[-1].ranks if rank.state not in ("T", "Z")]
    if running:
        first = running[0]
        who, number = _who(first.user, first.command), "" if first.rank is None else f"rank {first.rank}, "
        which = f"{who} ({number}{_pid_and_job(first.pid, first.job)})"
        why = f"a training job runs here: {which}{_more(len(running) - 1, 'rank')}"
        return Refusal(why, _FORCE, "job", who)
    return None


def cpu_remark(samples: Sequence[Sample]) -> str:
    """What else keeps the processors busy, which no figure shows; "" when little does. By the share of their time, by
    the load where that is not known.
    """
    busy = [sample.host.cpu_fraction for sample in samples]
    shares = [value for value in busy if value is not None]
    if shares and len(shares) == len(busy):
        if min(shares) > CPU_BUSY:
            return f"this node was busy before: {percent_words(shares[-1])} of its processors were in use"
        return ""
    host = samples[-1].host
    if host.load_1m is not None and host.cpu_count and host.load_1m > CPU_BUSY * host.cpu_count:
        return f"this node was busy before: load {host.load_1m:.1f} on {host.cpu_count} processors"
    return ""


def _in_use(gpu: GpuSample, holders: Mapping[int, Holder], instance: MigInstance | None) -> Refusal | None:
    """By processes that compute; of an instance also by those whose instance is not known."""
    computing = (process for process in gpu.processes or () if process.kind != "graphics")
    if instance is not None:
        computing = (process for process in computing if process.gpu_instance in (None, instance.gpu_instance))
    pids = sorted({process.pid for process in computing} & holders.keys())
    if not pids:
        return None
    first = holders[pids[0]]
    fix = _FORCE if first.is_visible else "try again in some seconds, or --force"
    more = _more(len(pids) - 1, "process")
    if first.probe:
        return Refusal(f"{first}{more}", fix, "probe", first.who)
    return Refusal(f"in use by {first}{more}", fix, "in_use", first.who if first.is_visible else "", tuple(pids))


def _loaded(gpu: GpuSample, recent: Sequence[GpuSample], instance: MigInstance | None) -> Iterator[Refusal]:
    """What shows without a process that it is used, or that nobody can tell."""
    nobody = "though no process is seen that uses it"
    shares = [value for value in _activity(recent, instance) if value is not None]
    if shares and len(shares) == len(recent) and min(shares) > (IN_USE_BUSY if instance is None else IDLE_SM):
        yield Refusal(f"busy: {percent_words(shares[-1])}, {nobody}", _FORCE, "busy")
    used = (instance or gpu).memory_used_bytes
    if used is not None and used > IN_USE_BYTES:
        fix = "sudo fuser -v /dev/nvidia*   shows who has it open; or --force"
        yield Refusal(f"{size_words(used)} of its memory are in use, {nobody}", fix, "full")
    if gpu.compute_mode in _SHUT:
        yield Refusal(f"in {_SHUT[gpu.compute_mode]} compute mode", "sudo nvidia-smi -c DEFAULT, or --force")
    if gpu.processes is None and used is None:
        why = "whether it is free is not known: neither its processes nor its memory can be read"
        yield Refusal(why, "--force", "unknown")


def _activity(recent: Sequence[GpuSample], instance: MigInstance | None) -> list[float | None]:
    """NVML's utilisation; in MIG mode it has none, but there may be the instance's own activity."""
    if instance is None:
        return [sample.busy for sample in recent]
    return [
        next((mig.sm_active for mig in sample.mig_instances if mig.uuid == instance.uuid), None) for sample in recent
    ]


def _broken(gpu: GpuSample) -> Refusal | None:
    remap = gpu.remap
    if remap.failed:
        return Refusal("could not repair its memory (row remapping failed)", "have it replaced, or --force", "broken")
    if remap.pending or gpu.retired_pages_pending:
        why = "waits for a reset to repair its memory (row remapping or page retirement is pending)"
        return Refusal(why, f"sudo nvidia-smi --gpu-reset -i {gpu.index}, or --force", "broken")
    return None


def _who(user: str, command: str) -> str:
    return f"{user or 'somebody'}: {command or 'unknown command'}"


def _pid_and_job(pid: int, job: str) -> str:
    return f"pid {pid}, job {job}" if job else f"pid {pid}"


def _more(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f" and {count} more {noun if count == 1 else plural}" if count > 0 else ""


CPU: DeviceKind = "cpu"


@dataclass(frozen=True)
class Target:
    """One device, and the GPU (and MIG instance) that it is. ``refusal``: why it cannot be measured, whether or not
    somebody uses it.
    """

    device: ProbeDevice
    gpu: GpuSample | None = None
    instance: MigInstance | None = None
    refusal: Refusal | None = None


def refused(device: ProbeDevice, refusal: Refusal) -> ProbeEvent:
    """As an event; ``data`` has what else is known of it, as far as it is."""
    data = {"device": asdict(device), "code": refusal.code, "who": refusal.who, "pids": list(refusal.pids)}
    return ProbeEvent("refused", device=device.uuid, why=refusal.why, fix=refusal.fix, data=data)


def choose(request: ProbeRequest, sample: Sample, cpu: ProbeDevice) -> Iterator[Target]:
    """The devices of the newest sample that are asked for; without GPUs in the machine its processors."""
    wanted = [name for name in request.gpus if name != CPU]
    if CPU in request.gpus or (not request.gpus and _has_no_gpus(sample)):
        if request.kind == "copies":
            yield Target(cpu, refusal=Refusal("no GPU here: copies are between a GPU and the host"))
        elif wanted:
            yield Target(cpu, refusal=Refusal("processors are measured by themselves, not together with GPUs"))
        else:
            yield Target(cpu)
        if not wanted:
            return
    if sample.gpus and sample.simulated:
        yield Target(
            ProbeDevice(""),
            refusal=Refusal("the GPUs of this node are made up (mltop demo): there is nothing to measure"),
        )
    elif not sample.gpus:
        unread = [
            (f"the GPUs of this node cannot be read: {gap.why}", gap.fix)
            for gap in sample.gaps
            if is_about_all_gpus(gap)
        ]
        yield Target(ProbeDevice(""), refusal=Refusal(*(unread or [("no GPU is seen on this node", "")])[0]))
    else:
        yield from _gpus(request.kind, sample, wanted)


def _gpus(kind: str, sample: Sample, wanted: Sequence[str]) -> Iterator[Target]:
    left = list(wanted)
    for gpu in sample.gpus:
        names = {str(gpu.index), gpu.uuid}
        instances = [mig for mig in gpu.mig_instances if not wanted or mig.uuid in left or names & set(left)]
        is_named = not wanted or bool(names & set(left))
        left = [name for name in left if name not in names and name not in {mig.uuid for mig in instances}]
        if gpu.mig_enabled and (is_named or instances):
            yield from _instances(kind, sample, gpu, instances)
        elif is_named:
            device = _device(gpu, sample)
            if gpu.uuid:
                yield Target(device, gpu)
            else:
                yield Target(device, refusal=Refusal(f"no UUID is known of it: {gpu.error or gpu.state}"))
    here = ", ".join(str(gpu.index) for gpu in sample.gpus)
    for name in left:
        yield Target(ProbeDevice(name), refusal=Refusal(f"no GPU {name} on this node (there are {here})"))


def _instances(kind: str, sample: Sample, gpu: GpuSample, instances: Sequence[MigInstance]) -> Iterator[Target]:
    parent = _device(gpu, sample)
    if CHILDREN[kind].not_on_mig:
        yield Target(parent, refusal=Refusal(f"in MIG mode: {CHILDREN[kind].not_on_mig}"))
        return
    if not instances:
        fix = f"sudo nvidia-smi mig -i {gpu.index} -cgi PROFILE -C"
        yield Target(parent, refusal=Refusal("in MIG mode and has no instance", fix))
    for instance in instances:
        name, total_bytes = f"{gpu.name or 'GPU'} MIG {instance.name or instance.index}", instance.memory_total_bytes
        device = ProbeDevice(instance.uuid or "", gpu.index, name, "mig", parent.pci_device, total_bytes)
        if instance.uuid:
            yield Target(device, gpu, instance)
        else:
            yield Target(device, refusal=Refusal(f"MIG instance {instance.index}: no UUID is known of it"))


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
    return unread_gpus(sample) is None


def cpu_device() -> ProbeDevice:
    """All processors of this node as one device. Sources: /proc/cpuinfo, /proc/meminfo."""
    return ProbeDevice(CPU, None, cpu_info("model name") or platform.machine(), CPU, "", total_memory_bytes())
