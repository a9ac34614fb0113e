"""Network ports and PCI addresses as the rules about them need them: names, what is up, which nodes are alike."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.link_memo import OfNewest
from mltop.probes.model import GpuSample, LinkSample, Sample

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


def gpu_name(gpu: GpuSample) -> str:
    return f"GPU {gpu.index}"


def gpu_key(gpu: GpuSample) -> str:
    """Of what is remembered: indexes shift when a GPU is lost, another board counts anew."""
    return gpu.uuid or f"GPU {gpu.index}"


def listed(names: list[str], most: int = MOST_LISTED) -> str:
    """``mlx5_3, mlx5_7``: all of them, unless a node has more than any machine has."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"
