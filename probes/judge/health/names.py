"""What things are called, and where they sit: GPUs and their slots, network ports, PCI addresses, ranks.

A slot (a PCI address) outlives its board: one that was replaced, or has another UUID after a reset, is the same GPU to
who looks after the machine, though it counts anew. Nothing is built before a rule fires.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.moment import Moment, OfNewest, once_per_moment
from mltop.probes.judge.health.rule import Hit
from mltop.probes.model import Gap, GpuSample, LinkSample, RankSample, Sample
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import celsius_words, clock_words
from mltop.probes.model.verdict import gpu_name

RDMA = frozenset({"infiniband", "roce", "efa"})
MOST_LISTED = 128
NETDEV = "netdev_"  # before the counters of the interface that belongs to an RDMA port
NOT_LINKED = frozenset({"Polling", "Disabled", "Sleep", "LinkDown"})  # physical states without a partner

_PCI_ADDRESS = re.compile(r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")
_LINK = re.compile(r"\b[Ll]ink (\d{1,6})\b")


@once_per_moment
def named_gpus(moment: Moment) -> list[tuple[GpuSample, str]]:
    """The node's GPUs, each with its name."""
    return [(gpu, gpu_name(gpu.index)) for gpu in moment.now.gpus]


def gpu_key(gpu: GpuSample) -> str:
    """The key of what is remembered of a GPU: indexes shift when a GPU is lost, another board counts anew."""
    return gpu.uuid or gpu_name(gpu.index)


def port_name(link: LinkSample) -> str:
    """``mlx5_4``; the second port of a device is ``mlx5_4/2``."""
    return _port_name(link.device, link.port)


@lru_cache(maxsize=65_536)
def _port_name(device: str, port: int) -> str:
    return device if port == 1 else f"{device}/{port}"


def rank_name(rank: RankSample) -> str:
    return f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}"


def about(rank: RankSample, hit: Hit) -> Hit:
    """The hit, with whose it is as data."""
    ranks = () if rank.rank is None else (rank.rank,)
    return replace(hit, job=rank.job_key if rank.job else None, ranks=ranks, pid=rank.pid)


@lru_cache(maxsize=65_536)
def bus_id(text: str | None) -> str:
    """The address as in sysfs: ``0000:9b:00.0`` of "00000000:9B:00.0" and of "0000:9b:00"; what is no address stays."""
    address = _PCI_ADDRESS.fullmatch((text or "").strip().lower())
    if address is None:
        return text or ""
    domain, bus, device, function = address.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"


@lru_cache(maxsize=8192)
def slot(text: str) -> str:
    """``0000:9b:00``: a GPU's bus id. The kernel log leaves out the function, of which no second could be meant."""
    return bus_id(text).partition(".")[0]


def is_up(link: LinkSample) -> bool:
    """Whether the port can carry traffic. Drivers without an operstate (UNKNOWN) are asked for their carrier."""
    if link.state in ("ACTIVE", "UP"):
        return link.physical_state not in NOT_LINKED
    return link.state == "UNKNOWN" and link.physical_state == "LinkUp"


class Port(NamedTuple):
    """A port that can be read, with its name and whether it is up."""

    link: LinkSample
    name: str
    up: bool


@OfNewest
def rdma_ports(sample: Sample) -> list[Port]:
    """InfiniBand and RoCE. EFA always says ACTIVE, its rules stand apart."""
    links = (link for link in sample.links if link.error is None and link.kind in ("infiniband", "roce"))
    return [Port(link, port_name(link), is_up(link)) for link in links]


def board(sample: Sample) -> str:
    """Nodes with the same GPUs are compared with each other: the name of these, "" without GPUs."""
    return next((gpu.name for gpu in sample.gpus if gpu.name), "")


@lru_cache(maxsize=65_536)
def group(board_name: str, thing: str) -> str:
    """The group in which facts are compared between nodes of one kind."""
    return f"{board_name}|{thing}"


def is_of_nvml(gap: Gap, *fields: str) -> bool:
    """Whether it is about all of NVML, or about these (``starting``) of it."""
    return gap.source == "nvml" and gap.fields == [*fields]


@once_per_moment
def _slots_at_work(moment: Moment) -> set[str]:
    return {slot(gpu.pci_bus_id) for gpu in moment.now.gpus if gpu.state == "ok" and gpu.pci_bus_id}


def is_replaced(moment: Moment, gone: GpuSample) -> bool:
    """Whether another board works in the slot of one that does not (any more)."""
    return gone.pci_bus_id is not None and slot(gone.pci_bus_id) in _slots_at_work(moment)


def in_slots(moment: Moment) -> list[GpuSample]:
    """The node's GPUs without those that are gone and whose slot another one has by now."""
    return [gpu for gpu in moment.now.gpus if gpu.state == "ok" or not is_replaced(moment, gpu)]


@once_per_moment
def slots(moment: Moment) -> dict[str, int]:
    """The index of the GPU by its slot, also of those that are gone, as far as it is known.

    NVML numbers GPUs in the order of their addresses: where it lists as many as there are on the PCI bus, that tells
    the slots of those that were lost before we looked.
    """
    indexes: dict[str, int] = {}
    for gpu in (*moment.known_gpus.values(), *sorted(moment.now.gpus, key=lambda gpu: gpu.state == "ok")):
        if gpu.pci_bus_id:
            indexes[slot(gpu.pci_bus_id)] = gpu.index
    if any(not gpu.pci_bus_id for gpu in moment.now.gpus):
        _add_nameless(moment.now, indexes)
    return indexes


def _add_nameless(sample: Sample, indexes: dict[str, int]) -> None:
    on_bus = sorted({slot(device.bus_id) for device in sample.pci if device.kind == "gpu"})
    nameless = [gpu.index for gpu in sample.gpus if not gpu.pci_bus_id]
    absent = [address for address in on_bus if address not in indexes]
    if len(nameless) == len(absent) == 1:
        indexes[absent[0]] = nameless[0]
        return
    by_order = dict(zip(on_bus, sorted(gpu.index for gpu in sample.gpus)))
    in_order = all(by_order.get(address, index) == index for address, index in indexes.items())
    if len(on_bus) == len(sample.gpus) and in_order:
        indexes.update({address: i for address, i in by_order.items() if address not in indexes and i in nameless})


@once_per_moment
def owners(moment: Moment) -> dict[str, str]:
    """The name that people know a GPU or port by, by its PCI address (as in sysfs)."""
    names = {bus_id(link.pci_bus_id): port_name(link) for link in moment.now.links if link.pci_bus_id}
    return names | {bus_id(address): gpu_name(index) for address, index in slots(moment).items()}


def cards_of(sample: Sample) -> dict[str, str]:
    """By the name of a GPU or port, an interface or address, which card it is on: two ports, or functions, have one."""
    cards = {gpu_name(gpu.index): slot(gpu.pci_bus_id) for gpu in sample.gpus if gpu.pci_bus_id}
    for link in sample.links:
        card = slot(link.pci_bus_id) if link.pci_bus_id else link.device
        names = (port_name(link), link.netdev, link.pci_bus_id and bus_id(link.pci_bus_id))
        cards.update((name, card) for name in names if name)
    return cards


def listed(names: list[str], most: int = MOST_LISTED) -> str:
    """``mlx5_3, mlx5_7``: all of them, unless a node has more than any machine has."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


def numbered(numbers: Iterable[int]) -> str:
    """``3, 7-9``: all of them."""
    return fold(numbers).replace(",", ", ")


def links_of(texts: Iterable[str]) -> str:
    """`` on link 3``, `` on links 3, 7``: all that lines of the kernel log name; "" for none."""
    links = {int(number) for text in texts for number in _LINK.findall(text)}
    return f" on link{'s' * (len(links) > 1)} {numbered(links)}" if links else ""


def clock_and_heat(gpu: GpuSample) -> str:
    """``, SM 1.10 of 1.98 GHz, 91 of 87 °C``: as much of it as is known, the slowdown temperature behind its own."""
    text = ""
    if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz is not None:
        text = f", SM {gpu.sm_clock_mhz / 1000:.2f} of {clock_words(gpu.sm_clock_max_mhz)}"
    if gpu.temperature_c is None:
        return text
    if gpu.temperature_slowdown_c is None:
        return f"{text}, {celsius_words(gpu.temperature_c)}"
    return f"{text}, {gpu.temperature_c:.0f} of {celsius_words(gpu.temperature_slowdown_c)}"


def rate_text(per_s: float) -> str:
    """``140/s``, or ``12/min`` below one a second."""
    return f"{per_s:.0f}/s" if per_s >= 1 else f"{per_s * 60:.0f}/min"
