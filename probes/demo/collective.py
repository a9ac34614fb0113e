"""A collective in pure Python for machines without torch: ranks exchange datagrams over inherited sockets.

Symmetric on purpose: every waiting rank stands on the same line. No name in the file system, no port.
A rank that is gone or silent leaves the others waiting for ever, as NCCL does.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass, field

_HEADER = struct.Struct("<II")  # sequence number, sender's rank


@dataclass
class Group:
    """``inbox`` receives from all peers; ``outboxes[rank]`` sends to that rank (the own one is unused)."""

    rank: int
    inbox: socket.socket
    outboxes: list[socket.socket]
    sequence: int = 0
    early: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # from peers one step ahead

    @classmethod
    def from_fds(cls, rank: int, inbox: int, outboxes: list[int]) -> Group:
        return cls(rank, socket.socket(fileno=inbox), [socket.socket(fileno=fd) for fd in outboxes])


def all_reduce(values: list[float], group: Group) -> list[float]:
    """Element-wise sum over all ranks; blocks until all have called it."""
    group.sequence += 1
    packed = _HEADER.pack(group.sequence, group.rank) + struct.pack(f"<{len(values)}d", *values)
    peers = [rank for rank in range(len(group.outboxes)) if rank != group.rank]
    for peer in peers:
        _send(group.outboxes[peer], packed)
    total = list(values)
    for peer in peers:
        while (group.sequence, peer) not in group.early:
            message = group.inbox.recv(65536)
            count = (len(message) - _HEADER.size) // 8
            numbers = struct.unpack_from(f"<{count}d", message, _HEADER.size)
            group.early[_HEADER.unpack_from(message)] = list(numbers)
        for index, value in enumerate(group.early.pop((group.sequence, peer))):
            total[index] += value
    return total


def _send(outbox: socket.socket, message: bytes) -> None:
    try:
        outbox.send(message)
    except OSError as error:
        # The peer is gone, which its silence tells: ECONNREFUSED at the first send, ENOTCONN from then on.
        if error.errno not in (errno.ECONNREFUSED, errno.ENOTCONN):
            raise
