"""The meeting of all launchers, at the leader's: who is there, who can be reached, and why a round failed.

Every launcher, the leader's own too, has one link to it. Messages (``t`` is the kind):
    -> hello {name, key, ranks, port}            <- welcome, or refused {why}; later too_late {why}
    <- roster {nodes: {name: {address, port, ranks}}, store_port, leader_address}
    -> reached {cannot: {name: reason}}          <- go {accused: {name: why}, missing: [...]}
    -> trouble {round, group, nodes, states}     <- stop {round, group}     -> states {round, group, states}
                                                 <- verdict {round, group, causes}
    <- gone {name, why}                          <- end (the leader was told to end)

A launcher's side of the meeting: finds the leader, tells what it is asked, hears what happens to others.

How a launcher comes together with the others: as the leader, who waits for all, or by going to the leader.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce import connections
from mltop.probes.active.all_reduce.causes import causes, state_from
from mltop.probes.active.all_reduce.connections import (
    LIMIT_S,
    LINE_LIMIT_BYTES,
    LocalLink,
    Message,
    TcpLink,
    local_pair,
    named,
)
from mltop.probes.active.all_reduce.listening import Place, listen, plain
from mltop.probes.active.all_reduce.options import Options

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
        await _within(self._all_tested.wait(), 2 * connections.LIMIT_S)
        addresses = {name: str(known["address"]) or own for name, known in self._known.items()}
        cannot = {name: self._cannot[name] for name in self._nodes if name in self._cannot}
        accused = connections.accused(cannot, addresses)
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


class NotJoined(Exception):
    """The sentence why this node takes no part."""


@dataclass(frozen=True)
class Hello:
    """``key``: equal on all nodes of one probe; ``port``: where others may try to connect to this node."""

    name: str
    key: str
    ranks: int
    port: int


@dataclass
class Meeting:
    """``ranks``: of each node that came; ``store``: the leader's address as this node sees it, and the store's port.

    ``own_address``: of the route to the leader, or at the leader the one at which it listens.
    """

    link: TcpLink | LocalLink
    store: tuple[str, int]
    own_address: str
    ranks: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def first_rank(self, nodes: Sequence[str], node: str) -> int:
        """Of all ranks of all ``nodes``, in their order; a node that did not come counts as many as the largest."""
        before = nodes[: nodes.index(node)]
        return sum(self.ranks.get(name, max(self.ranks.values())) for name in before)


async def find_leader(leader: str, addresses: Sequence[str], port: int, key: str) -> TcpLink:
    """The first of the leader's addresses at which it answers. Raises NotJoined with every address's reason."""
    why: dict[str, str] = {}
    trying: list[asyncio.Task[TcpLink]] = []
    found: TcpLink | None = None
    for address in addresses:
        trying.append(asyncio.ensure_future(_try(address, port, key, why)))
        found = await _first(trying, connections.STAGGER_S if len(trying) < len(addresses) else None)
        if found is not None:
            break
    await _give_up(trying, found)
    if found is None:
        reasons = "; ".join(sorted(set(why.values()))) or "it has no address"
        raise NotJoined(f"cannot connect to {leader} ({', '.join(addresses)}) port {port}: {reasons}")
    return found


async def join(link: TcpLink | LocalLink, hello: Hello, limit_s: float) -> Meeting:
    """Until all nodes have come and have tried to reach each other. Raises NotJoined."""
    try:
        return await asyncio.wait_for(_join(link, hello), limit_s)
    except asyncio.TimeoutError:
        raise NotJoined(f"the leader did not go on within {limit_s:.0f} s") from None


async def _join(link: TcpLink | LocalLink, hello: Hello) -> Meeting:
    roster = await _expect(link, "roster")
    nodes: dict[str, Message] = roster["nodes"]
    leader = str(roster["leader_address"])
    own, store = (
        (plain(link.own_address()), plain(link.peer_address())) if isinstance(link, TcpLink) else (leader, leader)
    )
    others = {
        name: (str(nodes[name]["address"]), int(nodes[name]["port"]))
        for name in connections.targets(list(nodes), hello.name)
        if nodes[name]["port"]  # the leader has none: we are connected to it
    }
    link.send({"t": "reached", "cannot": await connections.unreached(others)})
    go = await _expect(link, "go")
    if hello.name in go["accused"]:
        raise NotJoined(go["accused"][hello.name])
    here = {name: int(known["ranks"]) for name, known in nodes.items() if name not in go["accused"]}
    return Meeting(link, (store, int(roster["store_port"])), own, here, [*go["missing"], *go["accused"]])


def hello_message(hello: Hello) -> Message:
    return {"t": "hello", "name": hello.name, "key": hello.key, "ranks": hello.ranks, "port": hello.port}


async def _expect(link: TcpLink | LocalLink, kind: str) -> Message:
    message = await link.receive()
    while message is not None and message.get("t") not in (kind, "refused", "end"):
        message = await link.receive()
    if message is None:
        raise NotJoined("the leader is gone: its connection closed")
    if message["t"] != kind:
        raise NotJoined(f"the leader says: {message.get('why') or 'the probe has ended'}")
    return message


async def _first(trying: Sequence[asyncio.Task[TcpLink]], limit_s: float | None) -> TcpLink | None:
    """The first that succeeds within the limit, None if none does."""
    loop = asyncio.get_running_loop()
    deadline = None if limit_s is None else loop.time() + limit_s
    while True:
        won = [task for task in trying if task.done() and task.exception() is None]
        if won:
            return won[0].result()
        open_ = [task for task in trying if not task.done()]
        left = None if deadline is None else max(0.0, deadline - loop.time())
        if not open_ or left == 0.0:
            return None
        await asyncio.wait(open_, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _give_up(trying: Sequence[asyncio.Task[TcpLink]], but: TcpLink | None) -> None:
    for task in trying:
        task.cancel()
    for link in await asyncio.gather(*trying, return_exceptions=True):
        if isinstance(link, TcpLink) and link is not but:
            link.close()


async def _try(address: str, port: int, key: str, why: dict[str, str]) -> TcpLink:
    """Who answers is the leader if it says our key: on the same address another machine may listen. Raises OSError."""
    try:
        reader, writer = await connections.connect(address, port)
    except OSError as error:
        why[address] = connections.reason(error)
        raise
    link = TcpLink(reader, writer)
    try:
        welcome = await asyncio.wait_for(link.receive(), connections.LIMIT_S)
    except asyncio.TimeoutError:
        welcome = None
    if welcome is None or welcome.get("key") != key:
        link.close()
        why[address] = "something else answers there"
        raise OSError(why[address])
    return link


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
            return await join(await self._open_meeting(hello), hello, self.limit_s)
        link = await find_leader(options.leader_node, options.addresses, options.port, options.key)
        # Nobody accepts on our own port: for the others' pre-flight the kernel's answer is enough.
        with self._listen(link) as tried:
            hello = Hello(options.node, options.key, options.ranks, tried.getsockname()[1])
            link.send(hello_message(hello))
            return await join(link, hello, self.limit_s)

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
        link.send(hello_message(hello))
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
