"""TCP between launchers: their messages, and who can reach whom, found out before gloo or NCCL would wait for ever."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from mltop.probes.active.all_reduce.listening import plain

Message = dict[str, Any]
LIMIT_S = 2.0
ALL_PAIRS_UP_TO = 32  # nodes: 992 connections in all
LINE_LIMIT_BYTES = 1 << 22  # a roster of some thousand nodes
# Who cannot connect to whom, and why: {from: {to: reason}}.
Unreached = Mapping[str, Mapping[str, str]]


class Tasks(set["asyncio.Future[Any]"]):
    """The tasks that run: the loop alone does not keep them."""

    def start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self.discard)


class Link:
    """JSON objects, one per line. ``receive`` gives None when the other side is gone."""

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
        return _host(self._writer.get_extra_info("sockname"))

    def peer_address(self) -> str:
        return _host(self._writer.get_extra_info("peername"))


def _host(name: Any) -> str:
    """The address in a socket's name as asyncio gives it, without what marks it as IPv6's."""
    return plain(str(name[0])) if isinstance(name, tuple) else ""


async def local_pair() -> tuple[Link, Link]:
    """Two ends within this process."""
    first, second = [
        Link(*await asyncio.open_connection(sock=end, limit=LINE_LIMIT_BYTES)) for end in socket.socketpair()
    ]
    return first, second


async def connect(address: str, port: int) -> Link:
    """Raises OSError (also TimeoutError) as connect(2) does."""
    opening = asyncio.open_connection(address, port, limit=LINE_LIMIT_BYTES)
    try:
        return Link(*await asyncio.wait_for(opening, LIMIT_S))
    except asyncio.TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None


async def unreached(others: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Name -> reason of those (name -> address, port) to which no connection opens; all are tried at once."""
    tries = (connect(address, port) for address, port in others.values())
    reasons = {}
    for name, outcome in zip(others, await asyncio.gather(*tries, return_exceptions=True)):
        if isinstance(outcome, Link):
            outcome.close()
        elif isinstance(outcome, OSError):
            reasons[name] = reason(outcome)
        else:
            raise outcome
    return reasons


def reason(error: OSError) -> str:
    if isinstance(error, (TimeoutError, socket.timeout)) or error.errno == errno.ETIMEDOUT:
        return "timed out (a firewall, or no route)"
    if error.errno == errno.ECONNREFUSED:
        return "refused (a firewall, or its launcher has ended)"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{os.strerror(error.errno).lower()} (the host is down, a firewall, or no route)"
    return error.strerror or str(error) or type(error).__name__


def targets(names: Sequence[str], own: str) -> list[str]:
    """The nodes to which ``own`` connects: all; in a big job the next, the 2nd, 4th, 8th … next, so log2 N each."""
    if len(names) <= ALL_PAIRS_UP_TO:
        return [name for name in names if name != own]
    at, count = names.index(own), len(names)
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [names[(at + step) % count] for step in steps]


def accused(cannot: Unreached, addresses: Mapping[str, str]) -> dict[str, str]:
    """The fewest nodes that explain every failed connection (greedy), with a sentence for each.

    A single failed connection accuses the node that could not be reached.
    """
    left = {(source, target): why for source, reasons in cannot.items() for target, why in reasons.items()}
    sentences: dict[str, str] = {}
    while left:
        node = _worst(list(left))
        explained = {pair: why for pair, why in left.items() if node in pair}
        sentences[node] = _sentence(node, explained, addresses)
        left = {pair: why for pair, why in left.items() if node not in pair}
    return sentences


def named(names: Sequence[str], most: int = 4) -> str:
    """ "h01, h02, h03 and 5 more"."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _worst(pairs: Sequence[tuple[str, str]]) -> str:
    """The node of most failed connections; of several the one that most could not reach, then by name."""
    into = Counter(target for _, target in pairs)
    failed = into + Counter(source for source, _ in pairs)
    return min(failed, key=lambda node: (-failed[node], -into[node], node))


def _sentence(node: str, pairs: Mapping[tuple[str, str], str], addresses: Mapping[str, str]) -> str:
    into = {source: why for (source, target), why in pairs.items() if target == node}
    out_of = {target: why for (source, target), why in pairs.items() if source == node}
    parts = []
    if into:
        where = f"{node} ({addresses.get(node, 'address unknown')})"
        parts.append(f"{named(list(into))} cannot connect to {where}: {next(iter(into.values()))}")
    if out_of:
        parts.append(f"{node} cannot connect to {named(list(out_of))}: {next(iter(out_of.values()))}")
    return "; ".join(parts)
