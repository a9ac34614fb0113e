"""PCIe links of GPUs and NICs: slower than they could be, errors; and what stands between GPUs and NICs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from mltop.probes.judge.health.names import board, bus_id, gpu_key, group, listed, owners, rdma_ports
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import (
    BRIDGE,
    HOLD,
    HOUR_S,
    LINK_ERRORS,
    MINUTE_S,
    SLOW_PEER,
    SLOWS,
    STOPS,
    Hit,
    Moment,
    device_rule,
    once_per_moment,
    rule,
)
from mltop.probes.judge.values import grouped
from mltop.probes.model import GpuSample, KernelEvent, PciDevice, Sample
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

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
Linked = tuple["int | None", "float | None"]  # width and GT/s


def replay_limit_per_min(gt_per_s: float | None, lanes: int | None) -> int:
    """What a healthy link may have in a minute, rounded up: 31 for generation 5 with 16 lanes."""
    return math.ceil(ERROR_RATE * (gt_per_s or _FASTEST_GT_PER_S) * MINUTE_S * (lanes or _MOST_LANES))


@device_rule(
    "pcie.width",
    "warning",
    hold_s=10.0,
    meaning="a GPU or NIC uses fewer lanes, or at work a lower speed, than it could",
    threshold=f"width < maximum; speed < maximum while busy for {HOLD}; not where like nodes have the same",
    source="NVML PCIe link width and generation, sysfs current_link_width; Imbue",
    action="reseat the card; reboot",
    needs=("gpu.*.pcie.width", "gpu.*.pcie.gen", "gpu.*.pcie.width_max", "gpu.*.pcie.gen_max", "pci.*.link"),
    remedy="reboot",
    whole_node=(
        "PCIe links are narrower or slower than they could be on all {count} GPUs",
        "reboot; if it stays, service: riser, switch or slots",
    ),
    explains=("pcie.limited", "pcie.replay"),
    explains_ranks=(*SLOWS, "job.starved"),
    explains_peers=SLOW_PEER,
    precedence=LINK_ERRORS,
    part_of="card",
)
def narrow(moment: Moment) -> Iterator[Hit]:
    """A GPU's width is judged at full speed or at work: some platforms lower both while nothing runs.

    NVML's maxima are those of GPU and slot together. The speed is judged at work only: idle links slow down.
    """
    for gpu in moment.now.gpus:
        pcie, name = gpu.pcie, gpu_name(gpu.index)
        if gpu.state != "ok" or (pcie.width == pcie.width_max and pcie.gen == pcie.gen_max):
            continue
        full_speed = pcie.gen is None or pcie.gen_max is None or pcie.gen >= pcie.gen_max
        works = _is_busy(gpu)
        if pcie.width and pcie.width_max and pcie.width < pcie.width_max and (full_speed or works):
            usual = moment.peers.common(_GPU_WIDTH, gpu.name or "")
            if usual is None or usual.value != pcie.width:
                text = f"{name} PCIe link at x{pcie.width} of x{pcie.width_max}"
                yield Hit(name, text, _address(gpu.pci_bus_id), key="width")
        before = moment.gpu_before(gpu)
        if not full_speed and works and before is not None and _is_busy(before):
            text = f"{name} PCIe link at gen {pcie.gen} of gen {pcie.gen_max} while busy"
            yield Hit(name, text, _address(gpu.pci_bus_id), key="speed")
    yield from _narrow_nics(moment)


def _narrow_nics(moment: Moment) -> Iterator[Hit]:
    """The kernel's maxima are the NIC's own, the slot may have less: like devices tell whether that is meant so."""
    for device in moment.now.pci:
        width, most = device.link_width, device.link_width_max
        speed, top = device.link_speed_gt_per_s, device.link_speed_max_gt_per_s
        if device.kind != "nic" or (width == most and speed == top):
            continue
        usual = moment.peers.common(_NIC_LINK, _position(device.bus_id, device.vendor_id, device.device_id))
        if usual is not None and usual.value == _linked(device):
            continue  # it is built so
        if width and most and width < most <= _WIDEST:
            yield _nic_hit(moment, device, f"x{width} of x{most}", "width")
        if speed and top and speed < top and bus_id(device.bus_id) in _busy_nics(moment):
            yield _nic_hit(moment, device, f"{speed:g} of {top:g} GT/s while busy", "speed")


def _nic_hit(moment: Moment, device: PciDevice, what: str, key: str) -> Hit:
    name = owners(moment).get(bus_id(device.bus_id), device.bus_id)
    text, evidence = f"{name} PCIe link at {what}", _address(device.bus_id)
    links = _links_by_model(moment)[_model_of(device)]
    if len(links) < 2 or len(set(links)) > 1:
        return Hit(name, text, evidence, key=key)
    alike = f"all {len(links)} NICs of this model are linked like this: the slots may be built this way"
    return Hit(name, text, (*evidence, alike), severity="info", key=key)


def _is_busy(gpu: GpuSample) -> bool:
    return gpu.busy is not None and gpu.busy >= BUSY


@once_per_moment
def _busy_nics(moment: Moment) -> set[str]:
    traffic = ((link, (link.rx_bytes_per_s or 0.0) + (link.tx_bytes_per_s or 0.0)) for link in moment.now.links)
    return {bus_id(link.pci_bus_id) for link, bytes_per_s in traffic if bytes_per_s >= NIC_BUSY_BYTES_PER_S}


@once_per_moment
def _links_by_model(moment: Moment) -> dict[Model, list[Linked]]:
    """How the devices of each model are linked."""
    return {model: [*map(_linked, devices)] for model, devices in grouped(moment.now.pci, _model_of).items()}


def _model_of(device: PciDevice) -> Model:
    return device.kind, device.vendor_id, device.device_id


def _linked(device: PciDevice) -> Linked:
    return device.link_width, device.link_speed_gt_per_s


@lru_cache(maxsize=65_536)
def _position(address: str, vendor: int | None, device: int | None) -> str:
    """The same model in the same place of another node."""
    return f"{address} {vendor or 0:04x}:{device or 0:04x}"


def _address(text: str | None) -> tuple[str, ...]:
    return (f"PCI {bus_id(text)}",) if text else ()


@device_rule(
    "pcie.limited",
    "warning",
    meaning="the kernel found less PCIe bandwidth on the way to a GPU or NIC than it could use",
    threshold="the kernel said so since boot; info where all devices of the model or like nodes have it",
    source="kernel log: available PCIe bandwidth, limited by; Imbue",
    action="check slot and riser, or the upstream switch",
    needs=("kernel_log", "pci"),
    explains_ranks=(*SLOWS, "job.starved"),
    precedence=LINK_ERRORS,
    part_of="card",
)
def limited(moment: Moment) -> Iterator[Hit]:
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


@dataclass
class _Trouble:
    """What is told of one device."""

    texts: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    critical: bool = False

    def add_fatal(self, text: str, evidence: str) -> None:
        """Once, from whoever tells of it first: sysfs, NVML or the kernel's log."""
        if not self.critical:
            self.texts.append(text)
        self.critical = True
        self.evidence.append(evidence)


@device_rule(
    "pcie.replay",
    "warning",
    meaning="PCIe packets are damaged and sent again, or lost",
    threshold=f"replays or corrected > ceil({ERROR_RATE} x GT/s x {MINUTE_S:.0f} x lanes)/min "
    f"({replay_limit_per_min(GT_PER_S[5], 16)} for gen 5 x16); any nonfatal*; critical: any fatal",
    source="NVML field 94, sysfs aer_dev_*, kernel log; DCGM",
    action="reseat the card; service if it comes again",
    needs=("gpu.*.pcie.replay_count", "pci.*.aer"),
    grows=("gpus", "pci"),
    clear_s=60.0,
    explains_ranks=(*STOPS, *SLOWS, "job.starved"),
    explains_peers=SLOW_PEER,
    precedence=LINK_ERRORS,
    part_of="card",
)
def errors(moment: Moment) -> Iterator[Hit]:
    troubles: dict[str, _Trouble] = {}
    if moment.any_grew(counters, HOUR_S):
        _add_errors_of_devices(moment, troubles)
        _add_errors_of_gpus(moment, troubles)
    # Counters of a device that is reset start anew: fatal errors also as the kernel's log has them.
    for event in moment.events("aer"):
        if event.severity == "fatal":
            name = owners(moment).get(bus_id(event.subject), BRIDGE)
            troubles.setdefault(name, _Trouble()).add_fatal("fatal PCIe error", event.text)
    for name, trouble in troubles.items():
        severity: Severity = "critical" if trouble.critical else "warning"
        yield Hit(name, f"{' and '.join(trouble.texts)} on {name}", tuple(trouble.evidence), severity=severity)


def _add_errors_of_gpus(moment: Moment, troubles: dict[str, _Trouble]) -> None:
    for gpu in moment.now.gpus:
        name = gpu_name(gpu.index)
        rate = moment.grown(gpu_key(gpu), _REPLAY, MINUTE_S).per(MINUTE_S)
        limit = replay_limit_per_min(GT_PER_S.get(gpu.pcie.gen or 0), gpu.pcie.width)
        if rate > limit:
            trouble = troubles.setdefault(name, _Trouble())
            trouble.texts.append(f"{rate:.0f} PCIe replays/min")
            trouble.evidence.append(f"its link may have {limit}/min")
        fatal = moment.grown(gpu_key(gpu), _NVML_FATAL, HOUR_S).amount
        if fatal:
            troubles.setdefault(name, _Trouble()).add_fatal(f"{fatal:.0f} fatal PCIe errors", "counted by NVML")


def _add_errors_of_devices(moment: Moment, troubles: dict[str, _Trouble]) -> None:
    for device in moment.now.pci:
        if not device.aer:
            continue
        texts = []
        corrected = moment.grown(device.bus_id, _AER["correctable"], MINUTE_S).per(MINUTE_S)
        if corrected > replay_limit_per_min(device.link_speed_gt_per_s, device.link_width):
            texts.append(f"{corrected:.0f} corrected PCIe errors/min")
        uncorrected = moment.grown(device.bus_id, _AER["nonfatal"], MINUTE_S).amount
        if uncorrected:
            texts.append(f"{uncorrected:.0f} uncorrected PCIe errors")
        fatal = moment.grown(device.bus_id, _AER["fatal"], HOUR_S).amount
        if fatal:
            texts.append(f"{fatal:.0f} fatal PCIe errors")
        if texts:
            name = owners(moment).get(bus_id(device.bus_id), f"{device.kind} {device.bus_id}")
            trouble = troubles.setdefault(name, _Trouble())
            trouble.texts += texts
            trouble.critical |= bool(fatal)
            trouble.evidence.append(f"aer_dev_* of {device.bus_id}")


@device_rule(
    "pcie.acs",
    "warning",
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


@rule(
    "gdr.peermem",
    "warning",
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
