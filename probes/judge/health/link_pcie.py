"""PCIe links of GPUs and NICs: what is slower than the device could be, and whether the machine is built so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mltop.probes.judge.health.gpu_slots import owners
from mltop.probes.judge.health.link_memo import once_per_moment, usual
from mltop.probes.judge.health.link_ports import bus_id, gpu_name
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import Hit, Moment
from mltop.probes.model import GpuSample, PciDevice, Sample

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
                text = f"{gpu_name(gpu)} PCIe link at x{pcie.width} of x{pcie.width_max}"
                yield Hit(gpu_name(gpu), text, _address(gpu.pci_bus_id), key="width")
        before = moment.gpu_before(gpu)
        if not full_speed and works and before is not None and is_busy(before):
            text = f"{gpu_name(gpu)} PCIe link at gen {pcie.gen} of gen {pcie.gen_max} while busy"
            yield Hit(gpu_name(gpu), text, _address(gpu.pci_bus_id), key="speed")


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


def facts(sample: Sample) -> Iterator[Fact]:
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
