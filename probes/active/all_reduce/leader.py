"""The meeting of all launchers, at the leader's: who is there, who can be reached, and why a round failed.

Every launcher, the leader's own too, has one link to it. Messages (``t`` is the kind):
    -> hello {name, key, ranks, port}            <- welcome, or refused {why}; later too_late {why}
    <- roster {nodes: {name: {address, port, ranks}}, store_port, leader_address}
    -> reached {cannot: {name: reason}}          <- go {accused: {name: why}, missing: [...]}
    -> trouble {round, group, nodes, states}     <- stop {round, group}     -> states {round, group, states}
                                                 <- verdict {round, group, causes}
    <- gone {name, why}                          <- end (the leader was told to end)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mltop.probes.active.all_reduce import preflight
from mltop.probes.active.all_reduce.causes import causes, state_from
from mltop.probes.active.all_reduce.link import LocalLink, Message, TcpLink
from mltop.probes.active.all_reduce.listening import plain

STANDS_STILL = "does not answer: its launcher or its network stands still"
STATES_S = 1.5  # how long a launcher may take to say what its ranks were doing


class Leader:
    """``store``: the leader's address and its store's port; ``on_joined`` is called with the number of nodes that have
    come, and those that have not.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        key: str,
        join_s: float,
        store: tuple[str, int],
        on_joined: Callable[[int, list[str]], None],
    ) -> None:
        self._nodes = list(nodes)
        self._key = key
        self._join_s = join_s
        self._address, self._store_port = store
        self._on_joined = on_joined
        self._links: dict[str, TcpLink | LocalLink] = {}
        self._known: dict[str, Message] = {}
        self._closed = ""
        self._absent: set[str] = set()
        self._all_here = asyncio.Event()
        self._cannot: dict[str, dict[str, str]] = {}
        self._all_tested = asyncio.Event()
        self._troubles: dict[tuple[int, int], _Trouble] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection to the leader's port: a launcher, a pre-flight, or a stranger."""
        link = TcpLink(reader, writer)
        link.send({"t": "welcome", "key": self._key})
        await self.attend(link, plain(link.peer_address()))

    async def attend(self, link: TcpLink | LocalLink, address: str) -> None:
        """Until this link ends. The leader's own launcher comes here with a LocalLink."""
        hello = await link.receive()
        name = str(hello.get("name")) if hello is not None else ""
        why = self._why_not(hello, name)
        if hello is None or why:
            link.send({"t": "refused", "why": why})
            link.close()
            return
        self._links[name] = link
        self._known[name] = {"address": address, "port": hello["port"], "ranks": hello["ranks"]}
        self._on_joined(len(self._links), self._missing())
        if not self._missing():
            self._all_here.set()
        message = await link.receive()
        while message is not None:
            self._handle(name, message)
            message = await link.receive()
        self._lose(name)

    async def lead(self) -> list[str]:
        """Wait for all nodes, or ``join_s``; then let those that came find out whom they reach. Who is missing."""
        await _within(self._all_here.wait(), self._join_s)
        missing = self._missing()
        self._closed = f"the others began without it: it was not there after {self._join_s:g} s"
        here = [name for name in self._nodes if name in self._links]
        own = self._address
        known = {name: self._known[name] for name in here}  # in the order of ranks
        roster = {"t": "roster", "nodes": known, "store_port": self._store_port, "leader_address": own}
        self._send(here, roster)
        self._test_complete()
        await _within(self._all_tested.wait(), 2 * preflight.LIMIT_S)
        addresses = {name: str(known["address"]) or own for name, known in self._known.items()}
        cannot = {name: self._cannot[name] for name in self._nodes if name in self._cannot}
        accused = preflight.accused(cannot, addresses)
        self._send(here, {"t": "go", "accused": accused, "missing": missing})
        return missing

    def without(self, names: Iterable[str]) -> None:
        """Those of them that are not here will not come: nobody waits for them."""
        self._absent |= set(names) - self._links.keys()
        if not self._missing():
            self._all_here.set()

    def end(self) -> None:
        self._send(self._links, {"t": "end"})

    def _why_not(self, hello: Message | None, name: str) -> str:
        if hello is None or hello.get("t") != "hello" or hello.get("key") != self._key:
            return "this is not a launcher of this probe"
        if name not in self._nodes:
            return f"{name} is not one of the nodes of this probe"
        if name in self._links:
            return f"{name} is there already"
        return self._closed

    def _missing(self) -> list[str]:
        return [name for name in self._nodes if name not in self._links and name not in self._absent]

    def _send(self, names: Iterable[str], message: Message) -> None:
        for name in names:
            if name in self._links:
                self._links[name].send(message)

    def _handle(self, name: str, message: Message) -> None:
        kind = message.get("t")
        if kind == "reached":
            self._cannot[name] = dict(message["cannot"])
            self._test_complete()
        elif kind == "trouble":
            self._investigate(message)
        elif kind == "states":
            trouble = self._troubles.get((message["round"], message["group"]))
            if trouble is not None:
                trouble.add(name, message["states"])

    def _lose(self, name: str) -> None:
        del self._links[name]
        self._known.pop(name, None)
        self._send(self._links, {"t": "gone", "name": name, "why": f"{name} is gone: its launcher has ended"})
        for trouble in self._troubles.values():
            trouble.lose(name)
        self._test_complete()

    def _test_complete(self) -> None:
        if self._closed and all(name in self._cannot for name in self._links):
            self._all_tested.set()

    def _investigate(self, message: Message) -> None:
        """The first trouble of a group in a round ends it everywhere; later ones are its consequences."""
        key = (int(message["round"]), int(message["group"]))
        if key in self._troubles:
            return
        trouble = self._troubles[key] = _Trouble(list(message["nodes"]))
        for name in trouble.nodes:
            if name not in self._links:
                trouble.lose(name)
        self._send(trouble.nodes, {"t": "stop", "round": key[0], "group": key[1]})
        task = asyncio.ensure_future(self._conclude(key, trouble))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _conclude(self, key: tuple[int, int], trouble: _Trouble) -> None:
        await _within(trouble.complete.wait(), STATES_S)
        found = [cause.fields() for cause in causes(trouble.states, trouble.silent())]
        self._send(trouble.nodes, {"t": "verdict", "round": key[0], "group": key[1], "causes": found})


class _Trouble:
    """What the launchers of one group say their ranks were doing."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        self.states: list[Any] = []
        self.complete = asyncio.Event()
        self._open = dict.fromkeys(nodes)
        self._gone: dict[str, str] = {}

    def add(self, name: str, states: list[Message]) -> None:
        if name in self._open:
            self.states += [state_from(fields) for fields in states]
            self._close(name)

    def lose(self, name: str) -> None:
        if name in self._open:
            self._gone[name] = f"{name} is gone: its launcher has ended"
            self._close(name)

    def silent(self) -> dict[str, str]:
        """Node -> why nothing is known of its ranks."""
        return {
            **self._gone,
            **{name: f"{name} {STANDS_STILL}" for name in self._open},
        }

    def _close(self, name: str) -> None:
        del self._open[name]
        if not self._open:
            self.complete.set()


async def _within(waiting: Any, limit_s: float) -> bool:
    try:
        await asyncio.wait_for(waiting, limit_s)
    except asyncio.TimeoutError:
        return False
    return True
