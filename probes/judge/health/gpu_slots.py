"""Which GPU sits where. A slot (a PCI address) outlives its board: one that was replaced, or has another UUID after a
reset, is the same GPU to who looks after the machine, though it counts anew.
"""

from __future__ import annotations

from mltop.probes.judge.health.gpu_words import bus_key, gpu_name
from mltop.probes.judge.health.link_memo import once_per_moment
from mltop.probes.judge.health.link_ports import bus_id, port_name
from mltop.probes.judge.health.rule import Moment
from mltop.probes.model import GpuSample, Sample


@once_per_moment
def _taken(moment: Moment) -> set[str]:
    """The slots in which a board works."""
    return {bus_key(gpu.pci_bus_id) for gpu in moment.now.gpus if gpu.state == "ok" and gpu.pci_bus_id}


def is_replaced(moment: Moment, gone: GpuSample) -> bool:
    """Whether another board works in the slot of one that does not (any more)."""
    return bool(gone.pci_bus_id) and bus_key(gone.pci_bus_id or "") in _taken(moment)


def in_slots(moment: Moment) -> list[GpuSample]:
    """The node's GPUs without those that are gone and whose slot another one has by now."""
    return [gpu for gpu in moment.now.gpus if gpu.state == "ok" or not is_replaced(moment, gpu)]


@once_per_moment
def slots(moment: Moment) -> dict[str, int]:
    """The index of the GPU by its slot (``bus_key``), also of those that are gone, as far as it is known.

    NVML numbers GPUs in the order of their addresses: where it lists as many as there are on the PCI bus, that tells
    the slots of those that were lost before we looked.
    """
    found: dict[str, int] = {}
    for gpu in (*moment.known_gpus.values(), *sorted(moment.now.gpus, key=lambda one: one.state == "ok")):
        if gpu.pci_bus_id:
            found[bus_key(gpu.pci_bus_id)] = gpu.index
    if any(not gpu.pci_bus_id for gpu in moment.now.gpus):
        _add_nameless(moment.now, found)
    return found


def _add_nameless(sample: Sample, found: dict[str, int]) -> None:
    on_bus = sorted({bus_key(device.bus_id) for device in sample.pci if device.kind == "gpu"})
    nameless = [gpu.index for gpu in sample.gpus if not gpu.pci_bus_id]
    absent = [slot for slot in on_bus if slot not in found]
    if len(nameless) == len(absent) == 1:
        found[absent[0]] = nameless[0]
        return
    by_order = dict(zip(on_bus, sorted(gpu.index for gpu in sample.gpus), strict=False))
    if len(on_bus) == len(sample.gpus) and all(by_order.get(slot, index) == index for slot, index in found.items()):
        found.update({slot: index for slot, index in by_order.items() if slot not in found and index in nameless})


@once_per_moment
def owners(moment: Moment) -> dict[str, str]:
    """By PCI address (as in sysfs) the GPU or port that people know by name."""
    found = {bus_id(link.pci_bus_id): port_name(link) for link in moment.now.links if link.pci_bus_id}
    found.update({bus_id(slot): gpu_name(index) for slot, index in slots(moment).items()})
    return found
