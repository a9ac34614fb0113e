"""A connection between two launchers: JSON objects, one per line; or the same within the leader's own process.

Who can connect to whom, found out before gloo or NCCL would wait for ever.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]


class TcpLink:
    """Over a socket. ``receive`` gives None when the other side is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Returns at once; to a connection that is gone it does nothing, ``receive`` tells that."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> Message | None:
        """Lines that are no JSON object are someone else's: the connection counts as gone."""
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._writer.close()

    def own_address(self) -> str:
        return str(self._writer.get_extra_info("sockname")[0])

    def peer_address(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])


class LocalLink:
    """One end of a pair of queues."""

    def __init__(self, outgoing: asyncio.Queue[Message | None], incoming: asyncio.Queue[Message | None]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    def send(self, message: Message) -> None:
        self._outgoing.put_nowait(message)

    async def receive(self) -> Message | None:
        return await self._incoming.get()

    def close(self) -> None:
        self._outgoing.put_nowait(None)


def local_pair() -> tuple[LocalLink, LocalLink]:
    one: asyncio.Queue[Message | None] = asyncio.Queue()
    other: asyncio.Queue[Message | None] = asyncio.Queue()
    return LocalLink(one, other), LocalLink(other, one)


LIMIT_S = 2.0
STAGGER_S = 0.2  # an address that does not answer holds up the next one only this long
ALL_PAIRS_UP_TO = 32  # nodes: 992 connections in all
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LINE_LIMIT_BYTES = 1 << 22  # a roster of some thousand nodes
# Who cannot connect to whom, and why: {from: {to: reason}}.
Unreached = Mapping[str, Mapping[str, str]]


async def connect(address: str, port: int, limit_s: float = LIMIT_S) -> Streams:
    """Raises OSError (also TimeoutError) as connect(2) does."""
    opening = asyncio.open_connection(address, port, limit=LINE_LIMIT_BYTES)
    try:
        return await asyncio.wait_for(opening, limit_s)
    except asyncio.TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None


async def why_unreached(address: str, port: int, limit_s: float = LIMIT_S) -> str:
    """ "" if a TCP connection opens, else the reason in words."""
    try:
        _, writer = await connect(address, port, limit_s)
    except OSError as error:
        return reason(error)
    writer.close()
    return ""


async def unreached(others: Mapping[str, tuple[str, int]], limit_s: float = LIMIT_S) -> dict[str, str]:
    """Name -> reason of those (name -> address, port) to which no connection opens; all are tried at once."""
    reasons = await asyncio.gather(*(why_unreached(address, port, limit_s) for address, port in others.values()))
    return {name: why for name, why in zip(others, reasons) if why}


def reason(error: OSError) -> str:
    if isinstance(error, (TimeoutError, socket.timeout)) or error.errno == errno.ETIMEDOUT:
        return "timed out (a firewall, or no route)"
    if error.errno == errno.ECONNREFUSED:
        return "refused (a firewall, or its launcher has ended)"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{os.strerror(error.errno).lower()} (the host is down, a firewall, or no route)"
    return error.strerror or str(error) or type(error).__name__


def targets(names: Sequence[str], own: str) -> list[str]:
    """To whom ``own`` connects: everyone; in a big job the next, the 2nd, 4th, 8th … next, so log2 N each."""
    if len(names) <= ALL_PAIRS_UP_TO:
        return [name for name in names if name != own]
    at, count = names.index(own), len(names)
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [names[(at + step) % count] for step in steps]


def accused(cannot: Unreached, addresses: Mapping[str, str]) -> dict[str, str]:
    """The fewest nodes that explain every failed connection (greedy), with a sentence for each.

    A single failed connection accuses the node that could not be reached.
    """
    left = {(source, target): why for source, found in cannot.items() for target, why in found.items()}
    found: dict[str, str] = {}
    while left:
        node = _worst(list(left))
        mine = {pair: why for pair, why in left.items() if node in pair}
        found[node] = _sentence(node, mine, addresses)
        left = {pair: why for pair, why in left.items() if node not in pair}
    return found


def named(names: Sequence[str], most: int = 4) -> str:
    """ "h01, h02, h03 and 5 more"."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _worst(pairs: Sequence[tuple[str, str]]) -> str:
    """The node of most failed connections; of several the one that most could not reach, then by name."""
    into: dict[str, int] = {}
    both: dict[str, int] = {}
    for source, target in pairs:
        into[target] = into.get(target, 0) + 1
        for node in (source, target):
            both[node] = both.get(node, 0) + 1
    return min(both, key=lambda node: (-both[node], -into.get(node, 0), node))


def _sentence(node: str, pairs: Mapping[tuple[str, str], str], addresses: Mapping[str, str]) -> str:
    sources = [source for source, target in pairs if target == node]
    targets_ = [target for source, target in pairs if source == node]
    parts = []
    if sources:
        why = _first(pairs, target=node)
        parts.append(f"{named(sources)} cannot connect to {node} ({addresses.get(node, 'address unknown')}): {why}")
    if targets_:
        parts.append(f"{node} cannot connect to {named(targets_)}: {_first(pairs, source=node)}")
    return "; ".join(parts)


def _first(pairs: Mapping[tuple[str, str], str], source: str | None = None, target: str | None = None) -> str:
    return next(why for (one, other), why in pairs.items() if source in (None, one) and target in (None, other))
