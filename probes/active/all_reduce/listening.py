"""Listening sockets, this node's addresses, and who reaches whom, found out before gloo or NCCL would wait for ever.

Standard library only.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from mltop.probes.system.limits import read_text

# Interfaces that lead to containers and virtual machines of this node: other nodes have the same addresses.
VIRTUAL = ("docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "podman", "lxc", "kube")
LOOPBACK = "lo"
_SIOCGIFCONF, _SIOCGIFFLAGS, _IFF_UP, _IFREQ_BYTES, _NAME_BYTES = 0x8912, 0x8913, 0x1, 40, 16  # netdevice(7)
_MOST_ADDRESSES = 1024
_LINK_SCOPE = "20"
BACKLOG = 4096
LIMIT_S = 2.0
_NAME_S = 0.5


@dataclass(frozen=True)
class Address:
    """``address`` as text, IPv4 or IPv6; ``interface``: the network device that has it."""

    address: str
    interface: str


def listen(address: str) -> socket.socket:
    """A socket on a free port of this address, and of no other. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=BACKLOG)


def route_to(address: str) -> str:
    """This node's address on the route to another; nothing is sent. Raises OSError where there is none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return plain(str(probe.getsockname()[0]))


async def unreached(others: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Name -> reason of those (name -> address, port) to which no connection opens; all are tried at once."""
    import asyncio

    async def why_not(address: str, port: int) -> str:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), LIMIT_S)
        except (OSError, asyncio.TimeoutError) as error:
            return _reason(error)
        writer.close()
        return ""

    reasons = await asyncio.gather(*(why_not(address, port) for address, port in others.values()))
    return {name: reason for name, reason in zip(others, reasons) if reason}


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ECONNREFUSED:
        return "refused (a firewall, or its launcher has ended)"
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{os.strerror(number).lower()} (the host is down, a firewall, or no route)"
    if number in (None, errno.ETIMEDOUT):
        return "timed out (a firewall, or no route)"
    return os.strerror(number)


def chosen(environ: Mapping[str, str], backend: str, node: str, addresses: Sequence[Address]) -> Address:
    """The one address of this node at which others find it.

    Of the interface that the user has named for the library (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); that at which
    ssh has reached it already (SSH_CONNECTION of sshd(8)); what its name stands for; else that of a real interface,
    IPv4 first, then of a virtual one. Loopback only where there is nothing else.
    """
    named = wanted_interfaces(environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", ""))
    wanted = [address for address in addresses if named(address.interface)] or list(addresses)
    ssh = environ.get("SSH_CONNECTION", "").split()  # client, port, server, port
    reached = plain(ssh[2]) if len(ssh) == 4 else ""
    others = [address for address in wanted if address.interface != LOOPBACK]
    if not others:
        return Address(reached if interface_of(reached, wanted) == LOOPBACK else "127.0.0.1", LOOPBACK)
    by_ssh = next((address for address in others if address.address == reached), None)
    if by_ssh is not None or len(others) == 1:
        return by_ssh or others[0]
    by_name = _addresses_of(node)

    def rank(address: Address) -> tuple[bool, bool, bool]:
        return address.address not in by_name, address.interface.startswith(VIRTUAL), ":" in address.address

    return min(others, key=rank)


def wanted_interfaces(names: str) -> Callable[[str], bool]:
    """Whether an interface is in NCCL's list (its user guide, NCCL_SOCKET_IFNAME), which gloo's is a part of:
    beginnings of names, "=" exact ones, "^" none of these.
    """
    exact, none_of = names.startswith("="), names.startswith("^")
    parts = [part for part in names.lstrip("^=").split(",") if part]

    def is_wanted(interface: str) -> bool:
        fits = any(interface == part if exact else interface.startswith(part) for part in parts)
        return fits != none_of

    return is_wanted


def _addresses_of(name: str) -> set[str]:
    """What a name stands for here, as far as that is known at once: name servers may not answer for many seconds."""
    addresses: set[str] = set()

    def look() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            addresses.update(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_NAME_S)
    return set(addresses)


def interface_of(address: str, addresses: Iterable[Address]) -> str:
    """The interface that has ``address``, "" if none of them has it."""
    wanted = plain(address)
    if wanted.startswith("127.") or wanted == "::1":
        return LOOPBACK
    return next((entry.interface for entry in addresses if entry.address == wanted), "")


def plain(address: str) -> str:
    """The address as IPv4 where it is IPv4 seen by an IPv6 socket, without an IPv6 zone."""
    return (address[7:] if address.lower().startswith("::ffff:") and "." in address else address).partition("%")[0]


def local_addresses() -> list[Address]:
    """The addresses of interfaces that are up, without IPv6 link-local ones. Raises OSError.

    Sources: SIOCGIFCONF of netdevice(7), which tells of IPv4 alone; /proc/net/if_inet6.
    """
    found, room = [], array.array("B", bytes(_MOST_ADDRESSES * _IFREQ_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("@iP", len(room), room.buffer_info()[0]))
        for at in range(0, struct.unpack("@iP", answer)[0], _IFREQ_BYTES):
            entry = bytes(room[at : at + _IFREQ_BYTES])
            flags = struct.unpack_from("@h", fcntl.ioctl(asked, _SIOCGIFFLAGS, entry), _NAME_BYTES)[0]
            if flags & _IFF_UP:  # of "eth0:1", an alias, the interface is eth0
                name = entry[:_NAME_BYTES].partition(b"\0")[0].partition(b":")[0].decode()
                found.append(Address(socket.inet_ntop(socket.AF_INET, entry[20:24]), name))
    for line in read_text("/proc/net/if_inet6").splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope != _LINK_SCOPE:
            found.append(Address(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name))
    return found
