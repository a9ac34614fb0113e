"""PCIe links of GPUs and NICs: what is slower than the device could be, and whether the machine is built so.

PCIe errors: replays and AER counters, told once for each device.

PCIe links of GPUs and NICs, and what stands between these two: ACS and GPUDirect RDMA.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from mltop.probes.judge.health.names import board, bus_id, gpu_key, listed, name_of_gpu, owners, rdma_ports
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import HOUR_S, MINUTE_S, Hit, Moment, Rule, grown, has_grown, once_per_moment, usual
from mltop.probes.model import GpuSample, KernelEvent, PciDevice, Sample

BUSY = 0.5  # of a GPU
NIC_BUSY_BYTES_PER_S = 1e8
GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # by PCIe generation
_WIDEST = 32  # sysfs shows 63 or 255 where there is no width
Model = tuple[str, "int | None", "int | None"]  # kind, vendor and device
_GPU_WIDTH, _NIC_LINK = "pcie.gpu_width", "pcie.nic_link"


@dataclass(frozen=True)
class _Like:
    """``by_design``: like nodes have the same. ``alike``: so many devices of this node have the same, all of them."""

    by_design: bool
    alike: int


def narrow_gpus(moment: Moment) -> Iterator[Hit]:
    """A GPU's width is judged at full speed or at work: some platforms lower both while nothing runs.

    NVML's maxima are those of GPU and slot together. The speed is judged at work only: idle links slow down.
    """
    for gpu in moment.now.gpus:
        pcie = gpu.pcie
        if gpu.state != "ok" or (pcie.width == pcie.width_max and pcie.gen == pcie.gen_max):
            continue
        full_speed = pcie.gen is None or pcie.gen_max is None or pcie.gen >= pcie.gen_max
        works = is_busy(gpu)
        if pcie.width and pcie.width_max and pcie.width < pcie.width_max and (full_speed or works):
            typical = usual(moment.peers, _GPU_WIDTH, gpu.name or "")
            if typical is None or typical.value != pcie.width:
                text = f"{name_of_gpu(gpu)} PCIe link at x{pcie.width} of x{pcie.width_max}"
                yield Hit(name_of_gpu(gpu), text, _address(gpu.pci_bus_id), key="width")
        before = moment.gpu_before(gpu)
        if not full_speed and works and before is not None and is_busy(before):
            text = f"{name_of_gpu(gpu)} PCIe link at gen {pcie.gen} of gen {pcie.gen_max} while busy"
            yield Hit(name_of_gpu(gpu), text, _address(gpu.pci_bus_id), key="speed")


def narrow_nics(moment: Moment) -> Iterator[Hit]:
    """The kernel's maxima are the NIC's own, the slot may have less: like devices tell whether that is meant so."""
    for device in moment.now.pci:
        width, most = device.link_width, device.link_width_max
        speed, top = device.link_speed_gt_per_s, device.link_speed_max_gt_per_s
        if device.kind != "nic" or (width == most and speed == top):
            continue
        like = None
        if width and most and width < most <= _WIDEST:
            like = _compare(moment, device)
            if not like.by_design:
                yield _nic_hit(moment, device, f"x{width} of x{most}", "width", like.alike)
        if speed and top and speed < top and _carries_traffic(moment, device):
            like = like or _compare(moment, device)
            if not like.by_design:
                yield _nic_hit(moment, device, f"{speed:g} of {top:g} GT/s while busy", "speed", like.alike)


def width_facts(sample: Sample) -> Iterator[Fact]:
    widest: dict[str, int] = {}
    for gpu in sample.gpus:
        if gpu.pcie.width and gpu.name:
            widest[gpu.name] = max(widest.get(gpu.name, 0), gpu.pcie.width)
    for name, width in widest.items():
        yield _GPU_WIDTH, name, width
    for device in sample.pci:
        if device.kind == "nic" and device.link_width:
            yield _NIC_LINK, _slot(device.bus_id, device.vendor_id, device.device_id), _as_linked(device)


def is_busy(gpu: GpuSample) -> bool:
    return gpu.busy is not None and gpu.busy >= BUSY


@lru_cache(maxsize=65_536)
def _slot(address: str, vendor: int | None, device: int | None) -> str:
    """The same model in the same place of another node."""
    return f"{address} {vendor or 0:04x}:{device or 0:04x}"


def _as_linked(device: PciDevice) -> tuple[int | None, float | None]:
    return device.link_width, device.link_speed_gt_per_s


def _compare(moment: Moment, device: PciDevice) -> _Like:
    typical = usual(moment.peers, _NIC_LINK, _slot(device.bus_id, device.vendor_id, device.device_id))
    count, links = _by_model(moment).get(model_of(device), (0, set()))
    return _Like(typical is not None and typical.value == _as_linked(device), count if len(links) == 1 else 0)


@once_per_moment
def _by_model(moment: Moment) -> dict[Model, tuple[int, set[tuple[int | None, float | None]]]]:
    """How many devices of each model the node has, and how these are linked."""
    found: dict[Model, tuple[int, set[tuple[int | None, float | None]]]] = {}
    for device in moment.now.pci:
        count, links = found.get(model_of(device), (0, set()))
        links.add(_as_linked(device))
        found[model_of(device)] = (count + 1, links)
    return found


def model_of(device: PciDevice) -> Model:
    return device.kind, device.vendor_id, device.device_id


def _nic_hit(moment: Moment, device: PciDevice, what: str, key: str, alike: int) -> Hit:
    name = owners(moment).get(bus_id(device.bus_id), device.bus_id)
    evidence = _address(device.bus_id)
    if alike < 2:
        return Hit(name, f"{name} PCIe link at {what}", evidence, key=key)
    evidence = (*evidence, f"all {alike} NICs of this model are linked like this: the slots may be built so")
    return Hit(name, f"{name} PCIe link at {what}", evidence, severity="info", key=key)


def _carries_traffic(moment: Moment, device: PciDevice) -> bool:
    return bus_id(device.bus_id) in _busy_nics(moment)


@once_per_moment
def _busy_nics(moment: Moment) -> set[str]:
    return {
        bus_id(link.pci_bus_id)
        for link in moment.now.links
        if (link.rx_bytes_per_s or 0.0) + (link.tx_bytes_per_s or 0.0) >= NIC_BUSY_BYTES_PER_S
    }


def _address(text: str | None) -> tuple[str, ...]:
    return (f"PCI {bus_id(text)}",) if text else ()


ERROR_RATE = 0.001  # DCGM: 1e-12 errors per bit = 0.001 per second at 1 GT/s and one lane
_FASTEST_GT_PER_S, _MOST_LANES = 32.0, 16  # where a link's own are unknown: the highest limit in use
_AER = {name: f"aer {name}" for name in ("correctable", "nonfatal", "fatal")}
_REPLAY = "pcie replay"
_NVML_FATAL = "fatal_error"
_WATCH, _ERRORS = "pci", "errors"


def replay_limit_per_min(gt_per_s: float | None, lanes: int | None) -> int:
    """What a healthy link may have in a minute, rounded up: 31 for generation 5 with 16 lanes."""
    return math.ceil(ERROR_RATE * (gt_per_s or _FASTEST_GT_PER_S) * MINUTE_S * (lanes or _MOST_LANES))


@dataclass
class _Trouble:
    texts: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    critical: bool = False


def replays(moment: Moment) -> Iterator[Hit]:
    found: dict[str, _Trouble] = {}
    if has_grown(moment, _WATCH, _ERRORS, HOUR_S):
        _of_devices(moment, found)
        _of_gpus(moment, found)
    _of_kernel(moment, found)
    for name, trouble in found.items():
        text = f"{' and '.join(trouble.texts)} on {name}"
        severity = "critical" if trouble.critical else "warning"
        yield Hit(name, text, tuple(trouble.evidence), severity=severity)


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    whole = 0  # told even while it is 0: what is first seen has not grown
    for gpu in sample.gpus:
        if gpu.pcie.replay_count is not None and gpu.state == "ok":
            whole += gpu.pcie.replay_count
            yield gpu_key(gpu), _REPLAY, gpu.pcie.replay_count
        if _NVML_FATAL in gpu.pcie.errors and gpu.state == "ok":
            whole += gpu.pcie.errors[_NVML_FATAL]
            yield gpu_key(gpu), _NVML_FATAL, gpu.pcie.errors[_NVML_FATAL]
    for device in sample.pci:
        if device.kind != "nvme":  # a disk's errors are the disks' rules' business
            for name, value in device.aer.items():
                whole += value
                yield device.bus_id, _AER.get(name, name), value
    yield _WATCH, _ERRORS, whole


def _of_gpus(moment: Moment, found: dict[str, _Trouble]) -> None:
    for gpu in moment.now.gpus:
        rate = grown(moment, gpu_key(gpu), _REPLAY, MINUTE_S).per(MINUTE_S)
        limit = replay_limit_per_min(GT_PER_S.get(gpu.pcie.gen or 0), gpu.pcie.width)
        if rate > limit:
            trouble = found.setdefault(name_of_gpu(gpu), _Trouble())
            trouble.texts.append(f"{rate:.0f} PCIe replays/min")
            trouble.evidence.append(f"its link may have {limit}/min")
        fatal = grown(moment, gpu_key(gpu), _NVML_FATAL, HOUR_S).amount
        if fatal:
            _add_fatal(
                found.setdefault(name_of_gpu(gpu), _Trouble()), f"{fatal:.0f} fatal PCIe errors", "counted by NVML"
            )


def _of_devices(moment: Moment, found: dict[str, _Trouble]) -> None:
    names: dict[str, str] = {}
    for device in moment.now.pci:
        if not device.aer:
            continue
        texts, critical = _aer_texts(moment, device)
        if texts:
            names = names or owners(moment)
            name = names.get(bus_id(device.bus_id), f"{device.kind} {device.bus_id}")
            trouble = found.setdefault(name, _Trouble())
            trouble.texts += texts
            trouble.critical |= critical
            trouble.evidence.append(f"aer_dev_* of {device.bus_id}")


def _aer_texts(moment: Moment, device: PciDevice) -> tuple[list[str], bool]:
    texts = []
    corrected = grown(moment, device.bus_id, _AER["correctable"], MINUTE_S).per(MINUTE_S)
    if corrected > replay_limit_per_min(device.link_speed_gt_per_s, device.link_width):
        texts.append(f"{corrected:.0f} corrected PCIe errors/min")
    lost = grown(moment, device.bus_id, _AER["nonfatal"], MINUTE_S).amount
    if lost:
        texts.append(f"{lost:.0f} uncorrected PCIe errors")
    fatal = grown(moment, device.bus_id, _AER["fatal"], HOUR_S).amount
    if fatal:
        texts.append(f"{fatal:.0f} fatal PCIe errors")
    return texts, bool(fatal)


def _of_kernel(moment: Moment, found: dict[str, _Trouble]) -> None:
    """Fatal errors as the kernel's log has them: counters of a device that is reset start anew."""
    oldest = moment.now.sampled_at - HOUR_S
    for event in moment.now.kernel_events:
        if event.kind == "aer" and event.severity == "fatal" and event.at >= oldest:
            name = owners(moment).get(bus_id(event.subject), event.subject or "PCIe")
            _add_fatal(found.setdefault(name, _Trouble()), "fatal PCIe error", event.text)


def _add_fatal(trouble: _Trouble, text: str, evidence: str) -> None:
    """Once, from whoever tells of it first: sysfs, NVML or the kernel's log."""
    if not trouble.critical:
        trouble.texts.append(text)
    trouble.critical = True
    trouble.evidence.append(evidence)


DMA_BUF_KERNEL = (5, 12)  # the first with RDMA over DMA-BUF: GPUDirect needs no nvidia-peermem there
_VERSION = re.compile(r"(\d+)\.(\d+)")
_LIMITED_BY = re.compile(r"limited by ([\d.]+) GT/s")
_IDLE_GT_PER_S = 2.5  # generation 1: GPUs may be probed before they have sped up
_LIMITED = "pcie.limited"
_BOOT_SLACK_S = 60.0


def width(moment: Moment) -> Iterator[Hit]:
    yield from narrow_gpus(moment)
    yield from narrow_nics(moment)


def limited(moment: Moment) -> Iterator[Hit]:
    """The kernel says it once, when it finds the device. Where all devices of a model have it, the machine is so."""
    events = _limited_events(moment.now)
    if not events:
        return
    told: set[str] = set()
    names = owners(moment)
    by_address = {bus_id(one.bus_id): one for one in moment.now.pci}
    by_model: dict[Model, list[str]] = {}
    for one in moment.now.pci:
        by_model.setdefault(model_of(one), []).append(bus_id(one.bus_id))
    for address, event in events.items():
        device = by_address.get(address)
        if device is None or device.kind not in ("gpu", "nic") or address in told:
            continue
        like = by_model[model_of(device)]
        hit = [one for one in like if one in events]
        typical = usual(moment.peers, _LIMITED, _model(board(moment.now), device))
        named = [names.get(one, one) for one in hit]
        # Only nodes whose kernel said so have such a fact: that most of all have it makes it usual.
        if typical is not None and typical.value == len(hit) and 2 * typical.count > moment.peers.nodes:
            why = f"the same on {typical.count} of {typical.of} like nodes: they are built so"
        elif len(hit) == len(like) > 1:
            why = "the same for all devices of this model here: the machine may be built so"
        else:
            name = names.get(address, address)
            yield Hit(name, f"{name}: less PCIe bandwidth than it could use", (event.text,), since=event.at)
            continue
        told.update(hit)
        text = f"{listed(named)}: less PCIe bandwidth than they could use"
        about = tuple(named)
        evidence = (event.text, why)
        yield Hit(named[0], text, evidence, severity="info", action="known design?", since=event.at, about=about)


def replay(moment: Moment) -> Iterator[Hit]:
    yield from replays(moment)


def acs(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    if now.host.is_virtual is not False:
        return
    with_acs = [device.bus_id for device in now.pci if device.acs]
    if with_acs and (len(now.gpus) > 1 or (now.gpus and rdma_ports(now))):
        text = f"ACS is on above {len(with_acs)} GPUs and NICs: they reach each other through the CPU"
        yield Hit("host", text, (f"source validation is on above {listed(with_acs)}",))


def peermem(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    oldest = now.sampled_at - HOUR_S
    failed = [event for event in now.kernel_events if event.kind == "peermem" and event.at >= oldest]
    if failed:
        action = "reload nvidia-peermem after the job, with the driver's own version"
        text = "nvidia-peermem reports an invalid context: GPUDirect RDMA may be off"
        yield Hit("host", text, (failed[-1].text,), action=action, since=failed[-1].at)
        return
    modules = now.host.modules
    if modules.get("nvidia_peermem") is not False or modules.get("nv_peer_mem") or not now.gpus:
        return
    version = _VERSION.match(now.host.kernel)
    if version is None or (int(version[1]), int(version[2])) >= DMA_BUF_KERNEL:
        return
    ports = [port for port in rdma_ports(now) if port.up and _is_for_gpus(now, port.link.kind)]
    if ports:
        evidence = (
            "the module nvidia_peermem is not loaded",
            f"kernel {now.host.kernel} has no RDMA over DMA-BUF (it came with 5.12)",
            f"{len(ports)} RDMA ports are active",
        )
        yield Hit("host", "GPUDirect RDMA may be off: network traffic goes through host memory", evidence)


def facts(sample: Sample) -> Iterator[Fact]:
    yield from width_facts(sample)
    events = _limited_events(sample)
    if events:
        models = (_model(board(sample), one) for one in sample.pci if bus_id(one.bus_id) in events)
        for model, count in Counter(models).items():
            yield _LIMITED, model, count


def _limited_events(sample: Sample) -> dict[str, KernelEvent]:
    """By PCI address, of this boot; not the speed of a link that was asleep."""
    if not sample.kernel_events:
        return {}
    uptime_s = sample.host.uptime_s
    booted_at = 0.0 if uptime_s is None else sample.sampled_at - uptime_s - _BOOT_SLACK_S
    return {
        bus_id(event.subject): event
        for event in sample.kernel_events
        if event.kind == "pcie_limited" and event.at >= booted_at and not _was_asleep(event.text)
    }


def _was_asleep(text: str) -> bool:
    found = _LIMITED_BY.search(text)
    return found is not None and float(found[1]) <= _IDLE_GT_PER_S


def _model(name_of_board: str, device: PciDevice) -> str:
    """The devices that are compared between like nodes."""
    return f"{name_of_board}|{device.kind} {device.vendor_id or 0:04x}:{device.device_id or 0:04x}"


def _is_for_gpus(sample: Sample, kind: str) -> bool:
    """Virtual machines have a RoCE port for their everyday network."""
    return kind == "infiniband" or sample.host.is_virtual is False


COUNTERS = (counters,)
FACTS = (facts,)

RULES = (
    Rule(
        "pcie.width",
        "warning",
        10.0,
        "reseat the card; reboot",
        width,
        meaning="a GPU or NIC uses fewer lanes, or at work a lower speed, than it could",
        threshold="width < maximum; speed < maximum while busy for 10 s; not where like nodes have the same",
        source="NVML PCIe link width and generation, sysfs current_link_width; Imbue",
        needs=("gpu.*.pcie.width", "gpu.*.pcie.gen", "gpu.*.pcie.width_max", "gpu.*.pcie.gen_max", "pci.*.link"),
        remedy="reboot",
        whole_node=(
            "PCIe links are narrower or slower than they could be on all {count} GPUs",
            "reboot; if it stays, service: riser, switch or slots",
        ),
    ),
    Rule(
        "pcie.limited",
        "warning",
        0.0,
        "check slot and riser, or the upstream switch",
        limited,
        meaning="the kernel found less PCIe bandwidth on the way to a GPU or NIC than it could use",
        threshold="the kernel said so since boot; info where all devices of the model or like nodes have it",
        source="kernel log: available PCIe bandwidth, limited by; Imbue",
        needs=("kernel_log", "pci"),
    ),
    Rule(
        "pcie.replay",
        "warning",
        0.0,
        "reseat the card; service if it comes again",
        replay,
        meaning="PCIe packets are damaged and sent again, or lost",
        threshold="replays or corrected > ceil(0.001 x GT/s x 60 x lanes)/min (31 for gen 5 x16); any nonfatal*; "
        "critical: any fatal",
        source="NVML field 94, sysfs aer_dev_*, kernel log; DCGM",
        needs=("gpu.*.pcie.replay_count", "pci.*.aer"),
        grows=("gpus", "pci"),
        clear_s=60.0,
    ),
    Rule(
        "pcie.acs",
        "warning",
        0.0,
        "disable ACS (and the IOMMU) in the BIOS or with setpci",
        acs,
        meaning="PCI access control sends traffic between GPUs and NICs through the CPU's root complex",
        threshold="bare metal, and source validation on",
        source="PCI capability ACSCtl SrcValid; gpud",
        needs=("pci.acs", "host.is_virtual"),
    ),
    Rule(
        "gdr.peermem",
        "warning",
        0.0,
        "sudo modprobe nvidia-peermem",
        peermem,
        meaning="NICs may not read GPU memory directly",
        threshold="module absent with active RDMA ports and a kernel before 5.12; or its error in the kernel log",
        source="/sys/module/nvidia_peermem, kernel log; Imbue, gpud",
        needs=("host.modules", "host.kernel", "kernel_log"),
    ),
)
