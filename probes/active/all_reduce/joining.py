"""How a launcher comes together with the others: as the leader, who waits for all, or by going to the leader."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce import member
from mltop.probes.active.all_reduce.leader import Leader
from mltop.probes.active.all_reduce.link import LocalLink, TcpLink, local_pair
from mltop.probes.active.all_reduce.listening import Place, listen, plain
from mltop.probes.active.all_reduce.member import Hello, Meeting, NotJoined
from mltop.probes.active.all_reduce.options import Options
from mltop.probes.active.all_reduce.preflight import LIMIT_S, LINE_LIMIT_BYTES, named


class Joining:
    """``store``: the socket for the store's server, on the leader only. ``limit_s``: most seconds of ``join()``."""

    def __init__(self, options: Options, place: Place) -> None:
        """``place``: its sockets listen already."""
        self._options = options
        self._place = place
        self.store = place.store
        # All come, all try to reach each other, the leader sums up.
        self.limit_s = options.join_s + 3 * LIMIT_S
        self._leader: Leader | None = None
        self._absent: list[str] = []  # told before the meeting was open
        self._tasks: list[asyncio.Task[Any]] = []

    async def join(self) -> Meeting:
        """Raises NotJoined."""
        options = self._options
        if options.leader:
            # Port 0: nobody needs to try whether it reaches us, all others are connected already.
            hello = Hello(options.node, options.key, options.ranks, 0)
            return await member.join(await self._open_meeting(hello), hello, self.limit_s)
        link = await member.find_leader(options.leader_node, options.addresses, options.port, options.key)
        # Nobody accepts on our own port: for the others' pre-flight the kernel's answer is enough.
        with self._listen(link) as tried:
            hello = Hello(options.node, options.key, options.ranks, tried.getsockname()[1])
            link.send(member.hello_message(hello))
            return await member.join(link, hello, self.limit_s)

    def without(self, names: list[str]) -> None:
        """The caller knows that they will not come: nobody waits for them."""
        self._absent += names
        if self._leader is not None:
            self._leader.without(names)

    def end(self) -> None:
        """Told to the others, so that they do not take our end for a failure."""
        if self._leader is not None:
            self._leader.end()

    def _listen(self, link: TcpLink) -> socket.socket:
        """At the address of the route to the leader. Raises NotJoined."""
        address = plain(link.own_address())
        try:
            return listen(address)
        except OSError as error:
            raise NotJoined(f"cannot listen on {address}: {error.strerror}") from None

    async def _open_meeting(self, hello: Hello) -> LocalLink:
        options = self._options
        assert self.store is not None
        store = (self._place.address.address, self.store.getsockname()[1])
        leader = self._leader = Leader(options.nodes, options.key, options.join_s, store, self._came)
        leader.without(self._absent)
        if self._place.meeting is not None:  # open until the end: who comes too late is told so
            server = asyncio.start_server(leader.accept, sock=self._place.meeting, limit=LINE_LIMIT_BYTES)
            self._server = await server
        link, other = local_pair()
        link.send(member.hello_message(hello))
        self._keep(leader.attend(other, ""))
        self._keep(self._lead(leader))
        return link

    async def _lead(self, leader: Leader) -> None:
        missing = await leader.lead()
        if missing:
            count = len(self._options.nodes)
            why = f"{count - len(missing)} of {count} nodes joined within {self._options.join_s:g} s; waiting for "
            child.failed(why + named(missing, 8), stage="join", data={"missing": missing})

    def _came(self, count: int, missing: list[str]) -> None:
        total = len(self._options.nodes)
        if total > 1:
            text = f"{count} of {total} nodes joined" + (f"; waiting for {named(missing)}" if missing else "")
            child.stage("join", fraction=count / total, text=text, data={"missing": missing})

    def _keep(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.ensure_future(work))
