"""PCIe links of GPUs and NICs: slower than they could be, errors; and what stands between GPUs and NICs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.moment import HOUR_S, MINUTE_S, FleetMoment, Moment, once_per_moment
from mltop.probes.judge.health.names import board, bus_id, gpu_key, group, listed, named_gpus, owners, rdma_ports
from mltop.probes.judge.health.relations import BRIDGE, SLOWS, STOPS
from mltop.probes.judge.health.rule import HOLD, Hit, device_rule, port_fault, rule
from mltop.probes.judge.values import grouped
from mltop.probes.model import GpuSample, KernelEvent, PciDevice, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.verdict import gpu_name

BUSY = 0.5  # of a GPU
NIC_BUSY_BYTES_PER_S = 1e8
GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # by PCIe generation
ERROR_RATE = 0.001  # DCGM: 1e-12 errors per bit = 0.001 per second at 1 GT/s and one lane
DMA_BUF_KERNEL = (5, 12)  # the first with RDMA over DMA-BUF: GPUDirect needs no nvidia-peermem there
_WIDEST = 32  # sysfs shows 63 or 255 where there is no width
_FASTEST_GT_PER_S, _MOST_LANES = 32.0, 16  # where a link's own are unknown: the highest limit in use
_IDLE_GT_PER_S = GT_PER_S[1]  # GPUs may be probed before they have sped up
_BOOT_SLACK_S = 60.0
_GPU_WIDTH, _NIC_LINK, _LIMITED = "pcie.gpu_width", "pcie.nic_link", "pcie.limited"  # topics of facts
_AER = {name: f"aer {name}" for name in ("correctable", "nonfatal", "fatal")}
_REPLAY, _NVML_FATAL = "pcie replay", "fatal_error"
_VERSION = re.compile(r"(\d+)\.(\d+)")
_LIMITED_BY = re.compile(r"limited by ([\d.]+) GT/s")

Model = tuple[str, "int | None", "int | None"]  # kind, vendor and device


def replay_limit_per_min(gt_per_s: float | None, lanes: int | None) -> int:
    """What a healthy link may have in a minute, rounded up: 31 for generation 5 with 16 lanes."""
    return math.ceil(ERROR_RATE * (gt_per_s or _FASTEST_GT_PER_S) * MINUTE_S * (lanes or _MOST_LANES))


def _narrow(moment: FleetMoment) -> Iterator[Hit]:
    """A GPU's width is judged at full speed or at work: some platforms lower both while nothing runs."""
    for gpu in moment.now.gpus:
        pcie, name = gpu.pcie, gpu_name(gpu.index)
        if gpu.state == "ok" and pcie.width and pcie.width_max and pcie.width < pcie.width_max:
            usual = moment.peers.common(_GPU_WIDTH, gpu.name or "")
            at_work = _is_at_full_speed(gpu) or (gpu.busy or 0.0) >= BUSY
            if at_work and (usual is None or usual.value != pcie.width):
                text = f"{name} PCIe link at x{pcie.width} of x{pcie.width_max}"
                yield Hit(name, text, _address(gpu.pci_bus_id), key="width")
    yield from _narrow_nics(moment)


@port_fault("pcie.width", "warning", hold_s=10.0, remedy="reboot")(
    meaning="a GPU or NIC uses fewer lanes, or at work a lower speed, than it could",
    threshold=f"width < maximum; speed < maximum while busy for {HOLD}; not where like nodes have the same",
    source="NVML PCIe link width and generation, sysfs current_link_width; Imbue",
    action="reseat the card; reboot",
    needs=("gpu.*.pcie.width", "gpu.*.pcie.gen", "gpu.*.pcie.width_max", "gpu.*.pcie.gen_max", "pci.*.link"),
    whole_node=(
        "PCIe links are narrower or slower than they could be on all {count} GPUs",
        "reboot; if it stays, service: riser, switch or slots",
    ),
    explains=("pcie.limited", "pcie.replay"),
    explains_ranks=(*SLOWS, "job.starved"),
    compare=_narrow,
)
def narrow(moment: Moment) -> Iterator[Hit]:
    """The speed is judged at work only: idle links slow down."""
    for gpu in moment.now.gpus:
        if gpu.state != "ok" or _is_at_full_speed(gpu) or (gpu.busy or 0.0) < BUSY:
            continue
        before = moment.gpu_before(gpu)
        if before is not None and (before.busy or 0.0) >= BUSY:
            name = gpu_name(gpu.index)
            text = f"{name} PCIe link at gen {gpu.pcie.gen} of gen {gpu.pcie.gen_max} while busy"
            yield Hit(name, text, _address(gpu.pci_bus_id), key="speed")


def _is_at_full_speed(gpu: GpuSample) -> bool:
    pcie = gpu.pcie
    return pcie.gen is None or pcie.gen_max is None or pcie.gen >= pcie.gen_max


def _narrow_nics(moment: FleetMoment) -> Iterator[Hit]:
    """The kernel's maxima are the NIC's own, the slot may have less: like devices tell whether that is meant so."""
    for device in moment.now.pci:
        width, most = device.link_width, device.link_width_max
        speed, top = device.link_speed_gt_per_s, device.link_speed_max_gt_per_s
        if device.kind != "nic" or (width == most and speed == top):
            continue
        usual = moment.peers.common(_NIC_LINK, _position(device.bus_id, device.vendor_id, device.device_id))
        if usual is not None and usual.value == _linked(device):
            continue  # it is built so
        less = {}
        if width and most and width < most <= _WIDEST:
            less["width"] = f"x{width} of x{most}"
        if speed and top and speed < top and bus_id(device.bus_id) in _busy_nics(moment):
            less["speed"] = f"{speed:g} of {top:g} GT/s while busy"
        for key, what in less.items():
            name, evidence = owners(moment).get(bus_id(device.bus_id), device.bus_id), _address(device.bus_id)
            links = _links_by_model(moment)[_model_of(device)]
            is_built_so = len(links) > 1 and len(set(links)) == 1
            if is_built_so:
                alike = f"all {len(links)} NICs of this model are linked like this: the slots may be built this way"
                evidence = (*evidence, alike)
            yield Hit(name, f"{name} PCIe link at {what}", evidence, "info" if is_built_so else None, key=key)


@once_per_moment
def _busy_nics(moment: Moment) -> set[str]:
    traffic = ((link, (link.rx_bytes_per_s or 0.0) + (link.tx_bytes_per_s or 0.0)) for link in moment.now.links)
    return {bus_id(link.pci_bus_id) for link, bytes_per_s in traffic if bytes_per_s >= NIC_BUSY_BYTES_PER_S}


@once_per_moment
def _links_by_model(moment: Moment) -> dict[Model, list[str]]:
    """How the devices of each model are linked."""
    return {model: [*map(_linked, devices)] for model, devices in grouped(moment.now.pci, _model_of).items()}


def _model_of(device: PciDevice) -> Model:
    return device.kind, device.vendor_id, device.device_id


def _linked(device: PciDevice) -> str:
    return f"x{device.link_width} at {device.link_speed_gt_per_s} GT/s"


@lru_cache(maxsize=65_536)
def _position(address: str, vendor: int | None, device: int | None) -> str:
    """The same model in the same place of another node."""
    return f"{address} {vendor or 0:04x}:{device or 0:04x}"


def _address(text: str | None) -> tuple[str, ...]:
    return (f"PCI {bus_id(text)}",) if text else ()


@port_fault("pcie.limited", "warning", compares_nodes=True)(
    meaning="the kernel found less PCIe bandwidth on the way to a GPU or NIC than it could use",
    threshold="the kernel said so since boot; info where all devices of the model or like nodes have it",
    source="kernel log: available PCIe bandwidth, limited by; Imbue",
    action="check slot and riser, or the upstream switch",
    needs=("kernel_log", "pci"),
    explains_ranks=(*SLOWS, "job.starved"),
    explains_peers=(),
)
def limited(moment: FleetMoment) -> Iterator[Hit]:
    """The kernel says it once, when it finds the device. Where all devices of a model have it, the machine is so."""
    events = _limited_events(moment.now)
    if not events:
        return
    reported: set[str] = set()
    names, model_at = owners(moment), {bus_id(device.bus_id): _model_of(device) for device in moment.now.pci}
    for address, event in events.items():
        model = model_at.get(address)
        if model is None or model[0] not in ("gpu", "nic") or address in reported:
            continue
        alike = [other for other in model_at if model_at[other] == model]
        limited_too = [other for other in alike if other in events]
        usual = moment.peers.common(_LIMITED, group(board(moment.now), str(model)))
        # Only nodes whose kernel said so have such a fact: that most of all have it makes it usual.
        if usual is not None and usual.value == len(limited_too) and 2 * usual.count > moment.peers.nodes:
            why = f"the same on {usual}: they are built this way"
        elif len(limited_too) == len(alike) > 1:
            why = "the same for all devices of this model here: the machine may be built this way"
        else:
            name = names.get(address, address)
            yield Hit(name, f"{name}: less PCIe bandwidth than it could use", (event.text,), since=event.at)
            continue
        reported.update(limited_too)
        named = tuple(names.get(other, other) for other in limited_too)
        text = f"{listed([*named])}: less PCIe bandwidth than they could use"
        action = "check whether the machine is designed this way"
        yield Hit(named[0], text, (event.text, why), "info", action, event.at, about=named)


def _limited_events(sample: Sample) -> dict[str, KernelEvent]:
    """By PCI address, of this boot; not the speed of a link that was asleep."""
    uptime_s = sample.host.uptime_s
    booted_at = 0.0 if uptime_s is None else sample.sampled_at - uptime_s - _BOOT_SLACK_S
    return {
        bus_id(event.subject): event
        for event in sample.kernel_events
        if event.kind == "pcie_limited" and event.at >= booted_at
        if not ((limit := _LIMITED_BY.search(event.text)) and float(limit[1]) <= _IDLE_GT_PER_S)
    }


class _Trouble(NamedTuple):
    """What is wrong with one device, and who says so."""

    name: str
    text: str
    evidence: str
    is_fatal: bool = False


@port_fault("pcie.replay", "warning", clear_s=60.0)(
    meaning="PCIe packets are damaged and sent again, or lost",
    threshold=f"replays or corrected > ceil({ERROR_RATE} x GT/s x {MINUTE_S:.0f} x lanes)/min "
    f"({replay_limit_per_min(GT_PER_S[5], 16)} for gen 5 x16); any nonfatal*; critical: any fatal",
    source="NVML field 94, sysfs aer_dev_*, kernel log; DCGM",
    action="reseat the card; service if it comes again",
    needs=("gpu.*.pcie.replay_count", "pci.*.aer"),
    grows=("gpus", "pci"),
    explains_ranks=(*STOPS, *SLOWS, "job.starved"),
)
def errors(moment: Moment) -> Iterator[Hit]:
    troubles = [*_counted(moment)] if moment.trails.any_grew(counters, HOUR_S) else []
    # Counters of a device that is reset start anew: fatal errors also as the kernel's log has them.
    for event in moment.events("aer"):
        if event.severity == "fatal":
            name = owners(moment).get(bus_id(event.subject), BRIDGE)
            troubles.append(_Trouble(name, "fatal PCIe error", event.text, is_fatal=True))
    for name, of_device in grouped(troubles, lambda trouble: trouble.name).items():
        fatal = [trouble for trouble in of_device if trouble.is_fatal]
        # Fatal errors are in the message once, as the first of sysfs, NVML and the kernel's log reports them.
        texts = [trouble.text for trouble in of_device if not trouble.is_fatal or trouble is fatal[0]]
        evidence = tuple(trouble.evidence for trouble in of_device)
        yield Hit(name, f"{' and '.join(texts)} on {name}", evidence, "critical" if fatal else "warning")


def _counted(moment: Moment) -> Iterator[_Trouble]:
    for device in moment.now.pci:
        if not device.aer:
            continue
        corrected = moment.trails.grown(device.bus_id, _AER["correctable"], MINUTE_S).per(MINUTE_S)
        uncorrected = moment.trails.grown(device.bus_id, _AER["nonfatal"], MINUTE_S).amount
        fatal = moment.trails.grown(device.bus_id, _AER["fatal"], HOUR_S).amount
        is_more = corrected > replay_limit_per_min(device.link_speed_gt_per_s, device.link_width)
        texts = [f"{corrected:.0f} corrected PCIe errors/min"] if is_more else []
        texts += [f"{uncorrected:.0f} uncorrected PCIe errors"] if uncorrected else []
        texts += [f"{fatal:.0f} fatal PCIe errors"] if fatal else []
        if texts:
            name = owners(moment).get(bus_id(device.bus_id), f"{device.kind} {device.bus_id}")
            yield _Trouble(name, " and ".join(texts), f"aer_dev_* of {device.bus_id}", bool(fatal))
    for gpu, name in named_gpus(moment):
        rate = moment.trails.grown(gpu_key(gpu), _REPLAY, MINUTE_S).per(MINUTE_S)
        limit = replay_limit_per_min(GT_PER_S.get(gpu.pcie.gen or 0), gpu.pcie.width)
        if rate > limit:
            yield _Trouble(name, f"{rate:.0f} PCIe replays/min", f"its link may have {limit}/min")
        fatal = moment.trails.grown(gpu_key(gpu), _NVML_FATAL, HOUR_S).amount
        if fatal:
            yield _Trouble(name, f"{fatal:.0f} fatal PCIe errors", "counted by NVML", is_fatal=True)


@device_rule("pcie.acs", "warning")(
    meaning="PCI access control sends traffic between GPUs and NICs through the CPU's root complex",
    threshold="bare metal, and source validation on",
    source="PCI capability ACSCtl SrcValid; gpud",
    action="disable ACS (and the IOMMU) in the BIOS or with setpci",
    needs=("pci.acs", "host.is_virtual"),
    explains_ranks=SLOWS,
)
def access_control(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    if now.host.is_virtual is not False:
        return
    with_acs = [device.bus_id for device in now.pci if device.acs]
    if with_acs and (len(now.gpus) > 1 or (now.gpus and rdma_ports(now))):
        text = f"ACS is on above {len(with_acs)} GPUs and NICs: they reach each other through the CPU"
        yield Hit("host", text, (f"source validation is on above {listed(with_acs)}",))


@rule("gdr.peermem", "warning")(
    meaning="NICs may not read GPU memory directly",
    threshold=f"module absent with active RDMA ports and a kernel before {'.'.join(map(str, DMA_BUF_KERNEL))}; or its "
    "error in the kernel log",
    source="/sys/module/nvidia_peermem, kernel log; Imbue, gpud",
    action="sudo modprobe nvidia-peermem",
    needs=("host.modules", "host.kernel", "kernel_log"),
    explains_ranks=SLOWS,
)
def peermem(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    failed = [*moment.events("peermem")]
    if failed:
        action = "reload nvidia-peermem after the job, with the driver's own version"
        text = "nvidia-peermem reports an invalid context: GPUDirect RDMA may be off"
        yield Hit("host", text, (failed[-1].text,), action=action, since=failed[-1].at)
        return
    modules, version = now.host.modules, _VERSION.match(now.host.kernel)
    if modules.get("nvidia_peermem") is not False or modules.get("nv_peer_mem") or not now.gpus:
        return
    if version is None or (int(version[1]), int(version[2])) >= DMA_BUF_KERNEL:
        return
    # Virtual machines have a RoCE port for their everyday network.
    kinds = ("infiniband", "roce") if now.host.is_virtual is False else ("infiniband",)
    ports = [port for port in rdma_ports(now) if port.up and port.link.kind in kinds]
    if ports:
        came_with = f"it came with {'.'.join(map(str, DMA_BUF_KERNEL))}"
        evidence = (
            "the module nvidia_peermem is not loaded",
            f"kernel {now.host.kernel} has no RDMA over DMA-BUF ({came_with})",
            f"{len(ports)} RDMA ports are active",
        )
        yield Hit("host", "GPUDirect RDMA may be off: network traffic goes through host memory", evidence)


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for gpu in sample.gpus:
        if gpu.state == "ok":
            if gpu.pcie.replay_count is not None:
                yield gpu_key(gpu), _REPLAY, gpu.pcie.replay_count
            if _NVML_FATAL in gpu.pcie.errors:
                yield gpu_key(gpu), _NVML_FATAL, gpu.pcie.errors[_NVML_FATAL]
    for device in sample.pci:
        if device.kind != "nvme":  # a disk's errors are the disks' rules' business
            for name, value in device.aer.items():
                yield device.bus_id, _AER.get(name, name), value


def facts(sample: Sample) -> Iterator[Fact]:
    widest: dict[str, int] = {}
    for gpu in sample.gpus:
        if gpu.pcie.width and gpu.name:
            widest[gpu.name] = max(widest.get(gpu.name, 0), gpu.pcie.width)
    yield from ((_GPU_WIDTH, name, width) for name, width in widest.items())
    for device in sample.pci:
        if device.kind == "nic" and device.link_width:
            yield _NIC_LINK, _position(device.bus_id, device.vendor_id, device.device_id), _linked(device)
    if sample.kernel_events:
        events = _limited_events(sample)
        models = Counter(_model_of(device) for device in sample.pci if bus_id(device.bus_id) in events)
        yield from ((_LIMITED, group(board(sample), str(model)), count) for model, count in models.items())
