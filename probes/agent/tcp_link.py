"""Whether the link to whoever logged in is dead: what sshd writes is not acknowledged any more.

For agents that hear nothing from their caller (pdsh): their samples vanish in sshd's send buffer long before a write
of theirs blocks, and the kernel gives a connection up only after about 15 minutes (tcp_retries2 in tcp(7)). That it
repeats itself shows much earlier, by sock_diag(7). (/proc/net/tcp shows it, too, at 20 ms per look.)
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_WANTED = struct.Struct("=BBBBI")  # struct inet_diag_req_v2 up to its sockid
_SOCKID = struct.Struct("!HH16s16s")  # struct inet_diag_sockid up to its interface
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
_FOUND = struct.Struct("=BBBB48sIII")  # struct inet_diag_msg up to its write queue
_ALL_STATES = 0xFFFFFFFF
# Timers of tcp_diag.c: repeating what was sent, and asking whether anything may be sent at all (the peer's window is
# closed, or our own side drops every packet). A peer that is there answers, which sets the count of tries to 0.
_TRYING = (1, 4)


class TcpLink:
    """The connection that SSH_CONNECTION (ssh(1)) names: "client port server port", "" for none."""

    def __init__(self, connection: str | None = None) -> None:
        words = (os.environ.get("SSH_CONNECTION", "") if connection is None else connection).split()
        self._query = query(*words) if len(words) == 4 else b""
        self._repeating_since: float | None = None

    def unanswered_s(self, now: float) -> float:
        """For how long the kernel has been repeating itself without an answer; ``now`` in seconds of any one clock.

        As precise as it is called often. 0 without a connection by ssh, or where the kernel does not tell.
        """
        if not self._query or not repeats(self._query):
            self._repeating_since = None
            return 0.0
        if self._repeating_since is None:
            self._repeating_since = now
        return now - self._repeating_since


def query(client: str, client_port: str, server: str, server_port: str) -> bytes:
    """The question to the kernel about one connection, b"" when these are no addresses."""
    try:
        ends = ipaddress.ip_address(server).packed, ipaddress.ip_address(client).packed
        sockid = _SOCKID.pack(int(server_port), int(client_port), *ends)
    except (ValueError, struct.error):  # a link-local address with its interface
        return b""
    family = socket.AF_INET if len(ends[0]) == 4 else socket.AF_INET6
    body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + sockid + _ANY
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body


def repeats(question: bytes) -> bool:
    """Whether the connection has something to send and has tried in vain."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
            netlink.settimeout(1.0)
            netlink.send(question)
            answer = netlink.recv(4096)
    except OSError:
        return False  # not in this kernel
    if len(answer) < _HEADER.size + _FOUND.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return False  # an error: there is no such connection
    _, _, timer, tries, _, _, _, unacknowledged = _FOUND.unpack_from(answer, _HEADER.size)
    return bool(timer in _TRYING and tries and unacknowledged)
