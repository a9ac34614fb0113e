"""Which network ports this machine has, and which interface belongs to which RDMA port; what the
text in their files means.

Source: /sys/class/infiniband, /sys/class/infiniband_verbs, /sys/class/net (sysfs-class-infiniband, sysfs-class-net).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from mltop.probes.collect.sysfile import names_in, read_known, read_number, word
from mltop.probes.model import LinkKind
from mltop.probes.model.plausible import LINKS, NARROW_MAXIMA

_UNKNOWN_16_BITS = 0xFFFF
_RATE = re.compile(rb"\s*(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)


@lru_cache(maxsize=256)
def state_word(data: bytes | None) -> str | None:
    """ "4: ACTIVE" → "ACTIVE", "5: LinkUp" → "LinkUp"."""
    text = word(data)
    return text.rpartition(":")[2].strip() or None if text else None


def rate_bits_per_s(data: bytes | None) -> float | None:
    """ "400 Gb/sec (4X NDR)" → 4e11."""
    rate = _RATE.match(data or b"")
    return _plausible(float(rate[1]) * 1e9) if rate else None


def speed_bits_per_s(data: bytes | None) -> float | None:
    """The speed of an interface, given in Mb/s; -1 (or no answer) without a carrier.

    Drivers that keep SPEED_UNKNOWN in 16 bits answer 65535 for it.
    """
    try:
        megabits = int(data or b"")
    except ValueError:
        return None
    return _plausible(megabits * 1_000_000) if megabits != _UNKNOWN_16_BITS else None


def _plausible(rate: float) -> float | None:
    return float(rate) if LINKS["rate_bits_per_s"].holds(rate) else None


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts mlx5_10 after mlx5_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def last_pci_address(path: str) -> str | None:
    """The PCI function that a device path leads through last: that of virtio2 below 0000:00:03.0 is the latter."""
    for part in reversed(path.split("/")):
        if _PCI_ADDRESS.match(part):
            return part.lower()
    return None


def saturated(counters: Mapping[str, int]) -> list[str]:
    """Counters that stand at the maximum of their narrow width."""
    return [name for name, most in NARROW_MAXIMA.items() if counters.get(name) == most]


def beyond_narrow(counters: Mapping[str, int]) -> bool:
    """Whether a value proves that this driver's counters are wider than the classic ones."""
    return any(counters.get(name, 0) > most for name, most in NARROW_MAXIMA.items())


ARPHRD_INFINIBAND = 32  # linux/if_arp.h: IP over InfiniBand
# Interfaces by which a switching NIC shows its virtual functions to the host carry their traffic, not a port's.
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf|hpf)")


@dataclass(frozen=True)
class PortFacts:
    """What does not change while an RDMA device exists. ``folder``: …/ports/N."""

    device: str
    port: int
    folder: str
    kind: LinkKind
    firmware: str | None
    pci_bus_id: str | None
    numa_node: int | None
    is_virtual_function: bool
    is_first_port: bool


@dataclass(frozen=True)
class NetFacts:
    """What does not change while an interface exists. ``unit`` tells interfaces of one PCI function apart."""

    name: str
    folder: str
    pci_bus_id: str | None
    pci_folder: str | None
    numa_node: int | None
    is_virtual_function: bool
    unit: int


def list_rdma_ports(root: str) -> list[tuple[str, int]]:
    """(device, port) of all RDMA devices. Raises OSError."""
    folder = f"{root}/class/infiniband"
    ports = [
        (device, int(port))
        for device in os.listdir(folder)
        for port in names_in(f"{folder}/{device}/ports")
        if port.isdecimal()
    ]
    return sorted(ports, key=lambda port: (natural(port[0]), port[1]))


def port_facts(root: str, device: str, port: int) -> PortFacts:
    """Everything about one port that is read once."""
    folder = f"{root}/class/infiniband/{device}"
    first = min(map(int, filter(str.isdecimal, names_in(f"{folder}/ports"))), default=port)
    return PortFacts(
        device=device,
        port=port,
        folder=f"{folder}/ports/{port}",
        kind=_kind(folder, device, port),
        firmware=word(read_known(f"{folder}/fw_ver")),
        pci_bus_id=last_pci_address(os.path.realpath(f"{folder}/device")),
        numa_node=_numa_node(root, f"{folder}/device"),
        is_virtual_function=os.path.lexists(f"{folder}/device/physfn"),
        is_first_port=port == first,
    )


def is_idle_function(root: str, device: str, port: int) -> bool:
    """A virtual function that nobody uses here: servers have hundreds."""
    folder = f"{root}/class/infiniband/{device}"
    if not os.path.lexists(f"{folder}/device/physfn"):
        return False
    return state_word(read_known(f"{folder}/ports/{port}/state")) != "ACTIVE"


def netdev_of(root: str, facts: PortFacts) -> str | None:
    """The interface of an RDMA port: of its first address, else the one of its PCI function with its number.

    An InfiniBand port has no interface at its addresses: the kernel answers EINVAL there, which is no failure.
    """
    named = word(read_known(f"{facts.folder}/gid_attrs/ndevs/0")) if facts.kind == "roce" else None
    if named and "/" not in named and os.path.isdir(f"{root}/class/net/{named}"):
        return named
    below = f"{root}/class/infiniband/{facts.device}/device/net"
    names = [name for name in names_in(below) if not _is_representor(f"{below}/{name}")]
    same = [name for name in names if read_number(f"{below}/{name}/dev_port") in (None, facts.port - 1)]
    return min(same, key=lambda name: read_number(f"{below}/{name}/ifindex") or 0, default=None)


def chardev_owners(root: str) -> frozenset[str] | None:
    """RDMA devices that programs can open (uverbs); None when that cannot be listed."""
    folder = f"{root}/class/infiniband_verbs"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return frozenset()  # ib_uverbs is not loaded: no device has one
    except OSError:
        return None
    owners = (word(read_known(f"{folder}/{name}/ibdev")) for name in names if name.startswith("uverbs"))
    return frozenset(owner for owner in owners if owner)


def list_interfaces(root: str, claimed: Collection[str], present: Collection[str]) -> list[str]:
    """Ports with hardware of their own, and bonds; not those that are ``claimed`` by RDMA ports. Raises OSError.

    A virtual function is a port once it is up: then it is ``present`` and stays.
    IP over InfiniBand is part of an InfiniBand port; bridges, VLANs and veth pairs carry what others carry.
    """
    folder = f"{root}/class/net"
    names = (name for name in os.listdir(folder) if name not in claimed)
    return sorted((name for name in names if _is_port(f"{folder}/{name}", name in present)), key=natural)


def net_facts(root: str, name: str) -> NetFacts:
    """Everything about one interface that is read once."""
    folder = f"{root}/class/net/{name}"
    address = last_pci_address(os.path.realpath(f"{folder}/device"))
    return NetFacts(
        name=name,
        folder=folder,
        pci_bus_id=address,
        pci_folder=f"{root}/bus/pci/devices/{address}" if address else None,
        numa_node=_numa_node(root, f"{folder}/device"),
        is_virtual_function=os.path.lexists(f"{folder}/device/physfn"),
        unit=read_number(f"{folder}/dev_port") or 0,
    )


def _is_port(folder: str, is_known: bool) -> bool:
    if os.path.isdir(f"{folder}/bonding"):
        return True
    if not os.path.exists(f"{folder}/device") or read_number(f"{folder}/type") == ARPHRD_INFINIBAND:
        return False
    if os.path.lexists(f"{folder}/device/physfn"):
        return is_known or word(read_known(f"{folder}/operstate")) == "up"
    return not _is_representor(folder)


def _is_representor(folder: str) -> bool:
    return bool(_REPRESENTOR.match(word(read_known(f"{folder}/phys_port_name")) or ""))


def _kind(folder: str, device: str, port: int) -> LinkKind:
    driver = os.path.basename(os.path.realpath(f"{folder}/device/driver"))
    if driver == "efa" or device.startswith("efa_"):
        return "efa"
    # EFA, named rdmap… by rdma-core, has no link layer; its own counters tell it where the driver link is hidden.
    layer = word(read_known(f"{folder}/ports/{port}/link_layer"))
    if layer not in ("InfiniBand", "Ethernet") and os.path.exists(f"{folder}/hw_counters/keep_alive_rcvd"):
        return "efa"
    return "roce" if layer == "Ethernet" else "infiniband"


def _numa_node(root: str, device: str) -> int | None:
    """The NUMA node of a device; None where the firmware names none (the kernel then shows -1)."""
    node = read_number(f"{device}/numa_node")
    if node is None:
        address = last_pci_address(os.path.realpath(device))
        node = read_number(f"{root}/bus/pci/devices/{address}/numa_node") if address else None
    return node
