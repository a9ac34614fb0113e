"""Listening sockets, this node's addresses, and the interface that a route takes. Standard library only."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

# Interfaces that lead to containers and virtual machines of this node: other nodes have the same addresses.
VIRTUAL = ("docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "podman", "lxc", "kube")
LOOPBACK = "lo"
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8  # netdevice(7)
_BACKLOG = 4096


@dataclass(frozen=True)
class Address:
    """``address`` as text, IPv4 or IPv6; ``interface``: the network device that has it."""

    address: str
    interface: str


def listen() -> socket.socket:
    """A socket on a free port of every address, IPv4 and IPv6 where the kernel has it. Raises OSError."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        except OSError:
            pass  # IPv6 is compiled in but switched off
    return socket.create_server(("", 0), backlog=_BACKLOG)


def offered(ssh_connection: str, addresses: Iterable[Address]) -> list[Address]:
    """Addresses at which other nodes may find this one, the best first.

    ``ssh_connection``: the variable of sshd(8), "client port server port": the server's address was reached already.
    Then real interfaces, IPv4 first, then virtual ones; loopback only where there is nothing else.
    """
    words = ssh_connection.split()
    reached = plain(words[2]) if len(words) == 4 else ""
    found = sorted(addresses, key=lambda one: (_rank(one), ":" in one.address))
    first = [one for one in found if one.address == reached]
    if reached and not first:
        first = [Address(reached, interface_of(reached, found))]
    others = [one for one in found if one.interface != LOOPBACK and one.address != reached]
    return [*first, *others] or [Address("127.0.0.1", LOOPBACK)]


def interface_of(address: str, addresses: Iterable[Address]) -> str:
    """The interface that has ``address``, "" if none of them has it."""
    wanted = plain(address)
    if wanted.startswith("127.") or wanted == "::1":
        return LOOPBACK
    return next((one.interface for one in addresses if one.address == wanted), "")


def plain(address: str) -> str:
    """As IPv4 where it is IPv4 seen by an IPv6 socket, without an IPv6 zone."""
    return (address[7:] if address.lower().startswith("::ffff:") and "." in address else address).partition("%")[0]


def local_addresses() -> list[Address]:
    """Of interfaces that are up, from getifaddrs(3); IPv6 link-local ones are left out. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), f"getifaddrs: {os.strerror(ctypes.get_errno())}")
    found = []
    try:
        entry = first
        while entry:
            one = entry.contents
            text = _text(one.ifa_addr)
            if one.ifa_flags & _IFF_UP and text:
                name = LOOPBACK if one.ifa_flags & _IFF_LOOPBACK else one.ifa_name.decode()
                found.append(Address(text, name))
            entry = one.ifa_next
    finally:
        libc.freeifaddrs(first)
    return found


def _rank(one: Address) -> int:
    return 2 if one.interface == LOOPBACK else int(one.interface.startswith(VIRTUAL))


def _text(address: int | None) -> str:
    if not address:
        return ""
    family = ctypes.c_ushort.from_address(address).value
    if family == socket.AF_INET:  # struct sockaddr_in: the address from byte 4
        return socket.inet_ntop(family, ctypes.string_at(address + 4, 4))
    if family == socket.AF_INET6:  # struct sockaddr_in6: from byte 8
        raw = ctypes.string_at(address + 8, 16)
        return "" if raw[0] == 0xFE and raw[1] & 0xC0 == 0x80 else socket.inet_ntop(family, raw)
    return ""


class _IfAddrs(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3)."""


_IfAddrs._fields_ = [
    ("ifa_next", ctypes.POINTER(_IfAddrs)),
    ("ifa_name", ctypes.c_char_p),
    ("ifa_flags", ctypes.c_uint),
    ("ifa_addr", ctypes.c_void_p),
    ("ifa_netmask", ctypes.c_void_p),
    ("ifa_ifu", ctypes.c_void_p),
    ("ifa_data", ctypes.c_void_p),
]
