"""A connection between two launchers: JSON objects, one per line; or the same within the leader's own process."""

from __future__ import annotations

import asyncio
import json
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
