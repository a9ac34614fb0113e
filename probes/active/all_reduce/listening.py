"""Listening sockets, this node's addresses, and the interface that a route takes. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

# Interfaces that lead to containers and virtual machines of this node: other nodes have the same addresses.
VIRTUAL = ("docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "podman", "lxc", "kube")
LOOPBACK = "lo"
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8  # netdevice(7)
_BACKLOG = 4096
_NAME_S = 0.5


@dataclass(frozen=True)
class Address:
    """``address`` as text, IPv4 or IPv6; ``interface``: the network device that has it."""

    address: str
    interface: str


@dataclass(frozen=True)
class Sockets:
    """Where the leader's node is found, and where it listens: ``meeting`` for the other launchers, ``store`` for all
    ranks. Of other nodes it is empty: they open what they need when they know by which address they reach the leader.
    """

    address: Address
    meeting: socket.socket | None = None
    store: socket.socket | None = None


def listen(address: str) -> socket.socket:
    """A socket on a free port of this address, and of no other. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=_BACKLOG)


def listen_alone() -> tuple[str, socket.socket]:
    """A loopback address, and a socket there, for this machine alone. Raises OSError."""
    try:
        return "127.0.0.1", listen("127.0.0.1")
    except OSError:
        return "::1", listen("::1")


def chosen(environ: Mapping[str, str], backend: str, node: str, addresses: Sequence[Address]) -> Address:
    """The one address of this node at which others find it.

    Of the interface that the user has named for the library (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); that at which
    ssh has reached it already (SSH_CONNECTION of sshd(8)); what its name stands for; else that of a real interface,
    IPv4 first, then of a virtual one. Loopback only where there is nothing else.
    """
    named = wanted_interfaces(environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", ""))
    wanted = [address for address in addresses if named(address.interface)] or list(addresses)
    best_first = offered(environ.get("SSH_CONNECTION", ""), wanted)
    if best_first[0].address == _reached(environ.get("SSH_CONNECTION", "")) or len(best_first) == 1:
        return best_first[0]
    by_name = _addresses_of(node)
    return next((address for address in best_first if address.address in by_name), best_first[0])


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


def _reached(ssh_connection: str) -> str:
    """The server's address in "client port server port"."""
    words = ssh_connection.split()
    return plain(words[2]) if len(words) == 4 else ""


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


def offered(ssh_connection: str, addresses: Iterable[Address]) -> list[Address]:
    """Addresses at which other nodes may find this one, the best first.

    ``ssh_connection``: the variable of sshd(8): the server's address was reached already.
    Then real interfaces, IPv4 first, then virtual ones; loopback only where there is nothing else.
    """
    reached = _reached(ssh_connection)
    ordered = sorted(addresses, key=lambda address: (_rank(address), ":" in address.address))
    real = [address for address in ordered if address.interface != LOOPBACK]
    if not real:
        return [Address(reached if interface_of(reached, ordered) == LOOPBACK else "127.0.0.1", LOOPBACK)]
    return sorted(real, key=lambda address: address.address != reached)


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
    """The addresses of interfaces that are up, without IPv6 link-local ones. Source: getifaddrs(3). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), f"getifaddrs: {os.strerror(ctypes.get_errno())}")
    addresses = []
    try:
        entry = first
        while entry:
            fields = entry.contents
            text = _text(fields.ifa_addr)
            if fields.ifa_flags & _IFF_UP and text:
                name = LOOPBACK if fields.ifa_flags & _IFF_LOOPBACK else fields.ifa_name.decode()
                addresses.append(Address(text, name))
            entry = fields.ifa_next
    finally:
        libc.freeifaddrs(first)
    return addresses


def _rank(address: Address) -> int:
    return 2 if address.interface == LOOPBACK else int(address.interface.startswith(VIRTUAL))


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
