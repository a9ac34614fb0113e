"""PCIe links of GPUs and NICs, and what stands between these two: ACS and GPUDirect RDMA."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from mltop.probes.judge.health import link_pcie, link_pcie_errors
from mltop.probes.judge.health.gpu_slots import owners
from mltop.probes.judge.health.link_growth import HOUR_S
from mltop.probes.judge.health.link_memo import usual
from mltop.probes.judge.health.link_ports import board, bus_id, listed, rdma_ports
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import Hit, Moment, Rule
from mltop.probes.model import KernelEvent, PciDevice, Sample

DMA_BUF_KERNEL = (5, 12)  # the first with RDMA over DMA-BUF: GPUDirect needs no nvidia-peermem there
_VERSION = re.compile(r"(\d+)\.(\d+)")
_LIMITED_BY = re.compile(r"limited by ([\d.]+) GT/s")
_IDLE_GT_PER_S = 2.5  # generation 1: GPUs may be probed before they have sped up
_LIMITED = "pcie.limited"
_BOOT_SLACK_S = 60.0


def width(moment: Moment) -> Iterator[Hit]:
    yield from link_pcie.narrow_gpus(moment)
    yield from link_pcie.narrow_nics(moment)


def limited(moment: Moment) -> Iterator[Hit]:
    """The kernel says it once, when it finds the device. Where all devices of a model have it, the machine is so."""
    events = _limited_events(moment.now)
    if not events:
        return
    told: set[str] = set()
    names = owners(moment)
    by_address = {bus_id(one.bus_id): one for one in moment.now.pci}
    by_model: dict[link_pcie.Model, list[str]] = {}
    for one in moment.now.pci:
        by_model.setdefault(link_pcie.model_of(one), []).append(bus_id(one.bus_id))
    for address, event in events.items():
        device = by_address.get(address)
        if device is None or device.kind not in ("gpu", "nic") or address in told:
            continue
        like = by_model[link_pcie.model_of(device)]
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
    yield from link_pcie_errors.replays(moment)


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
    yield from link_pcie.facts(sample)
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


COUNTERS = (link_pcie_errors.counters,)
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
