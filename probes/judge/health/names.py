"""Network ports and PCI addresses as the rules about them need them: names, what is up, which nodes are alike.

Words that the rules about GPUs share: names, bus ids, clocks, times. Nothing is built before a rule fires.

Which GPU sits where. A slot (a PCI address) outlives its board: one that was replaced, or has another UUID after a
reset, is the same GPU to who looks after the machine, though it counts anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.rule import Moment, OfNewest, once_per_moment
from mltop.probes.model import GpuSample, LinkSample, Sample
from mltop.probes.model.ranks import fold

RDMA = frozenset({"infiniband", "roce", "efa"})
DEVICE_VANISHED = "device vanished"
INTERFACE_VANISHED = "interface vanished"
MOST_LISTED = 128
NETDEV = "netdev_"  # before the counters of the interface that belongs to an RDMA port
NOT_LINKED = frozenset({"Polling", "Disabled", "Sleep", "LinkDown"})  # physical states without a partner

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


@lru_cache(maxsize=65_536)
def numbered_port(device: str, port: int) -> str:
    return device if port == 1 else f"{device}/{port}"


def port_name(link: LinkSample) -> str:
    """``mlx5_4``; the second port of a device is ``mlx5_4/2``."""
    return numbered_port(link.device, link.port)


def is_up(link: LinkSample) -> bool:
    """It can carry traffic. Drivers without an operstate (UNKNOWN) are asked for their carrier."""
    if link.state in ("ACTIVE", "UP"):
        return link.physical_state not in NOT_LINKED
    return link.state == "UNKNOWN" and link.physical_state == "LinkUp"


class Port(NamedTuple):
    """A port that can be read, with its name and whether it is up."""

    link: LinkSample
    name: str
    up: bool


def _rdma_ports(sample: Sample) -> list[Port]:
    return [
        Port(link, port_name(link), is_up(link))
        for link in sample.links
        if link.error is None and link.kind in ("infiniband", "roce")
    ]


# InfiniBand and RoCE. EFA always says ACTIVE, its rules stand apart.
rdma_ports = OfNewest(_rdma_ports)


def board(sample: Sample) -> str:
    """Nodes with the same GPUs are compared with each other: the name of these, "" without GPUs."""
    return next((gpu.name for gpu in sample.gpus if gpu.name), "")


@lru_cache(maxsize=65_536)
def group(board_name: str, thing: str) -> str:
    """Of facts that are compared between nodes of one kind."""
    return f"{board_name}|{thing}"


@lru_cache(maxsize=65_536)
def bus_id(text: str | None) -> str:
    """As in sysfs: ``0000:9b:00.0`` of "00000000:9B:00.0" and of "0000:9b:00"; what is no address stays."""
    found = _PCI_ADDRESS.fullmatch((text or "").lower())
    if found is None:
        return text or ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"


def name_of_gpu(gpu: GpuSample) -> str:
    return f"GPU {gpu.index}"


def gpu_key(gpu: GpuSample) -> str:
    """Of what is remembered: indexes shift when a GPU is lost, another board counts anew."""
    return gpu.uuid or f"GPU {gpu.index}"


def listed(names: list[str], most: int = MOST_LISTED) -> str:
    """``mlx5_3, mlx5_7``: all of them, unless a node has more than any machine has."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


_LINK = re.compile(r"\b[Ll]ink (\d{1,6})\b")


@lru_cache(maxsize=1024)
def gpu_name(index: int) -> str:
    """``GPU 3``: the subject of findings and the key of what is remembered."""
    return f"GPU {index}"


@lru_cache(maxsize=8192)
def bus_key(bus_id: str) -> str:
    """``0000:1b:00`` of NVML's ``00000000:1B:00.0``, of sysfs' ``0000:1b:00.0`` and of a log line's ``0000:1b:00``.

    The kernel log leaves out the function digit; a GPU has no second function that could be meant.
    """
    parts = bus_id.strip().lower().removeprefix("pci:").split(".")[0].split(":")
    if len(parts) == 2:  # a bus id without its domain
        parts.insert(0, "0")
    if len(parts) != 3:
        return bus_id
    return ":".join((parts[0].lstrip("0").rjust(4, "0"), parts[1], parts[2]))


def at_time(at: float) -> str:
    """``12:04:31 UTC``"""
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S} UTC"


def gigabytes(amount: float) -> str:
    """``71 GB``, ``0.6 GB``; 10^9 bytes."""
    return f"{amount / 1e9:.0f} GB" if amount >= 9.5e9 else f"{amount / 1e9:.1f} GB"


def clock_and_heat(gpu: GpuSample) -> str:
    """``, SM 1.10 of 1.98 GHz, 91 °C``: as much of it as is known."""
    parts = []
    if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz is not None:
        parts.append(f"SM {gpu.sm_clock_mhz / 1000:.2f} of {gpu.sm_clock_max_mhz / 1000:.2f} GHz")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f} °C")
    return "".join(f", {part}" for part in parts)


def plural(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def numbered(numbers: Iterable[int]) -> str:
    """``3, 7-9``: all of them."""
    return fold(numbers).replace(",", ", ")


def links_of(texts: Iterable[str]) -> str:
    """`` on link 3``, `` on links 3, 7``: all that lines of the kernel log name; "" for none."""
    links = {int(number) for text in texts for number in _LINK.findall(text)}
    return f" on link{'s' * (len(links) > 1)} {numbered(links)}" if links else ""


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
