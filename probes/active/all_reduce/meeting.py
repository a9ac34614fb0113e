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
from dataclasses import asdict, dataclass
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce import connections
from mltop.probes.active.all_reduce.causes import RankState, causes
from mltop.probes.active.all_reduce.connections import (
    LIMIT_S,
    LINE_LIMIT_BYTES,
    Link,
    Message,
    Tasks,
    local_pair,
    named,
)
from mltop.probes.active.all_reduce.listening import Sockets, listen
from mltop.probes.active.all_reduce.options import Options

STANDS_STILL = "does not answer: its launcher or its network stands still"
# What each node of a group says that its ranks were doing, or why nobody knows.
Answers = dict[str, "asyncio.Future[list[Message] | str]"]
TESTED_S = 10.0  # for all to say whom they reach: some seconds after they know it, where a machine is busy
STATES_S = 1.5  # how long a launcher may take to say what its ranks were doing


class Leader:
    """The meeting, at the leader's. ``store``: the leader's address and its store's port; ``on_joined`` is called with
    the number of nodes that have come, and those that have not.
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
        self._links: dict[str, Link] = {}
        self._members: dict[str, Message] = {}
        self._closed = ""
        self._absent: set[str] = set()
        self._all_here = asyncio.Event()
        self._cannot: dict[str, dict[str, str]] = {}
        self._all_tested = asyncio.Event()
        self._troubles: dict[tuple[int, int], Answers] = {}  # by round and group
        self._tasks = Tasks()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection to the leader's port: a launcher, a pre-flight, or a stranger."""
        link = Link(reader, writer)
        link.send({"t": "welcome", "key": self._key})
        await self.attend(link)

    async def attend(self, link: Link) -> None:
        """Listens to a launcher until its link ends. The leader's own comes here with one that has no address."""
        hello = await link.receive()
        name = str(hello.get("name")) if hello is not None else ""
        why = self._why_not(hello, name)
        if hello is None or why:
            link.send({"t": "refused", "why": why})
            link.close()
            return
        self._links[name] = link
        self._members[name] = {"address": link.peer_address(), "port": hello["port"], "ranks": hello["ranks"]}
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
        nodes = {name: self._members[name] for name in here}  # in the order of ranks
        roster = {"t": "roster", "nodes": nodes, "store_port": self._store_port, "leader_address": own}
        self._send(here, roster)
        self._test_complete()
        await _within(self._all_tested.wait(), TESTED_S)
        addresses = {name: str(member["address"]) or own for name, member in self._members.items()}
        cannot = {name: self._cannot[name] for name in self._nodes if name in self._cannot}
        self._send(here, {"t": "go", "accused": connections.accused(cannot, addresses), "missing": missing})
        return missing

    def without(self, names: Iterable[str]) -> None:
        """Waits no longer for those of them that are not here."""
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
            _answer(self._troubles.get((message["round"], message["group"]), {}), name, message["states"])

    def _lose(self, name: str) -> None:
        del self._links[name]
        self._members.pop(name, None)
        why = f"{name} is gone: its launcher has ended"
        self._send(self._links, {"t": "gone", "name": name, "why": why})
        for answers in self._troubles.values():
            _answer(answers, name, why)
        self._test_complete()

    def _test_complete(self) -> None:
        if self._closed and all(name in self._cannot for name in self._links):
            self._all_tested.set()

    def _investigate(self, message: Message) -> None:
        """The first trouble of a group in a round ends it everywhere; later ones are its consequences."""
        key = (int(message["round"]), int(message["group"]))
        if key in self._troubles:
            return
        loop = asyncio.get_running_loop()
        answers = self._troubles[key] = {str(name): loop.create_future() for name in message["nodes"]}
        for name in answers.keys() - self._links.keys():
            _answer(answers, name, f"{name} is gone: its launcher has ended")
        self._send(answers, {"t": "stop", "round": key[0], "group": key[1]})
        self._tasks.start(self._conclude(key, answers))

    async def _conclude(self, key: tuple[int, int], answers: Answers) -> None:
        await asyncio.wait(answers.values(), timeout=STATES_S)
        states: list[RankState] = []
        silent: dict[str, str] = {}
        for name, answer in answers.items():
            outcome = answer.result() if answer.done() else f"{name} {STANDS_STILL}"
            if isinstance(outcome, str):
                silent[name] = outcome
            else:
                states += [RankState(**fields) for fields in outcome]
        blamed = [asdict(cause) for cause in causes(states, silent)]
        self._send(answers, {"t": "verdict", "round": key[0], "group": key[1], "causes": blamed})


def _answer(answers: Answers, name: str, answer: list[Message] | str) -> None:
    if name in answers and not answers[name].done():
        answers[name].set_result(answer)


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

    def message(self) -> Message:
        return {"t": "hello", **vars(self)}


@dataclass
class Meeting:
    """``ranks``: of each node that came; ``store``: the leader's address as this node sees it, and the store's port.

    ``own_address``: of the route to the leader, or at the leader the one at which it listens.
    """

    link: Link
    store: tuple[str, int]
    own_address: str
    ranks: dict[str, int]
    missing: list[str]

    def first_rank(self, nodes: Sequence[str], node: str) -> int:
        """The node's first rank of all ranks of ``nodes``; one that did not come counts as many as the largest."""
        before = nodes[: nodes.index(node)]
        return sum(self.ranks.get(name, max(self.ranks.values())) for name in before)


async def find_leader(leader: str, addresses: Sequence[str], port: int, key: str) -> Link:
    """A link to the leader, at the first of its addresses that answers. Raises NotJoined."""
    reasons = []
    for address in addresses:
        answer = await _try(address, port, key)
        if isinstance(answer, Link):
            return answer
        reasons.append(answer)
    why = "; ".join(reasons) or "it has no address"
    raise NotJoined(f"cannot connect to {leader} ({', '.join(addresses)}) port {port}: {why}")


async def _try(address: str, port: int, key: str) -> Link | str:
    """A link to the leader, or why there is none. It says our key: on the same address another machine may listen."""
    try:
        link = await connections.connect(address, port)
    except OSError as error:
        return connections.reason(error)
    try:
        welcome = await asyncio.wait_for(link.receive(), LIMIT_S)
    except asyncio.TimeoutError:
        welcome = None
    if welcome is not None and welcome.get("key") == key:
        return link
    link.close()
    return "something else answers there"


async def join(link: Link, name: str, limit_s: float) -> Meeting:
    """Returns when all nodes have come and have tried to reach each other. Raises NotJoined."""
    try:
        return await asyncio.wait_for(_join(link, name), limit_s)
    except asyncio.TimeoutError:
        raise NotJoined(f"the leader did not go on within {limit_s:.0f} s") from None


async def _join(link: Link, name: str) -> Meeting:
    roster = await _expect(link, "roster")
    nodes: dict[str, Message] = roster["nodes"]
    leader = str(roster["leader_address"])
    others = {
        other: (str(nodes[other]["address"]), int(nodes[other]["port"]))
        for other in connections.targets(list(nodes), name)
        if nodes[other]["port"]  # the leader has none: we are connected to it
    }
    link.send({"t": "reached", "cannot": await connections.unreached(others)})
    go = await _expect(link, "go")
    if name in go["accused"]:
        raise NotJoined(go["accused"][name])
    here = {other: int(node["ranks"]) for other, node in nodes.items() if other not in go["accused"]}
    store = (link.peer_address() or leader, int(roster["store_port"]))
    return Meeting(link, store, link.own_address() or leader, here, [*go["missing"], *go["accused"]])


async def _expect(link: Link, kind: str) -> Message:
    message = await link.receive()
    while message is not None and message.get("t") not in (kind, "refused", "end"):
        message = await link.receive()
    if message is None:
        raise NotJoined("the leader is gone: its connection closed")
    if message["t"] != kind:
        raise NotJoined(f"the leader says: {message.get('why') or 'the probe has ended'}")
    return message


class Joining:
    """How a launcher comes together with the others: as the leader, who waits for all, or by going to the leader.

    ``store``: the socket for the store's server, on the leader only. ``limit_s``: most seconds of ``join()``."""

    def __init__(self, options: Options, sockets: Sockets) -> None:
        """``sockets``: they listen already. Within a running loop."""
        self._options = options
        self._sockets = sockets
        self.store = sockets.store
        # All come, all try to reach each other, the leader sums up.
        join_s = options.limit_s("join")
        self.limit_s = join_s + TESTED_S + LIMIT_S
        self._leader: Leader | None = None
        if self.store is not None:
            store = (sockets.address.address, self.store.getsockname()[1])
            self._leader = Leader(options.nodes, options.key, join_s, store, self._came)
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()

    async def join(self) -> Meeting:
        """Raises NotJoined."""
        options = self._options
        if self._leader is not None:
            link = await self._open_meeting(self._leader)
            # Port 0: nobody needs to try whether it reaches us, all others are connected already.
            link.send(Hello(options.node, options.key, options.ranks, 0).message())
            return await join(link, options.node, self.limit_s)
        link = await find_leader(options.leader_node, options.addresses, options.port, options.key)
        try:
            own = listen(link.own_address())
        except OSError as error:
            raise NotJoined(f"cannot listen on {link.own_address()}: {error.strerror}") from None
        # Nobody accepts on our own port: for the others' pre-flight the kernel's answer is enough.
        with own:
            link.send(Hello(options.node, options.key, options.ranks, own.getsockname()[1]).message())
            return await join(link, options.node, self.limit_s)

    def without(self, names: list[str]) -> None:
        """The caller knows that they will not come: nobody waits for them."""
        if self._leader is not None:
            self._leader.without(names)

    def end(self) -> None:
        """Told to the others, so that they do not take our end for a failure."""
        if self._leader is not None:
            self._leader.end()

    async def _open_meeting(self, leader: Leader) -> Link:
        """The own launcher's link to it."""
        if self._sockets.meeting is not None:  # open until the end: who comes too late is told so
            self._server = await asyncio.start_server(leader.accept, sock=self._sockets.meeting, limit=LINE_LIMIT_BYTES)
        link, other = await local_pair()
        self._tasks.start(leader.attend(other))
        self._tasks.start(self._lead(leader))
        return link

    async def _lead(self, leader: Leader) -> None:
        missing = await leader.lead()
        if missing:
            count, limit_s = len(self._options.nodes), self._options.limit_s("join")
            joined = f"{count - len(missing)} of {count} nodes joined within {limit_s:g} s"
            why = f"{joined}; waiting for {named(missing, 8)}"
            child.failed(why, stage="join", data={"missing": missing})

    def _came(self, count: int, missing: list[str]) -> None:
        total = len(self._options.nodes)
        if total > 1:
            text = f"{count} of {total} nodes joined" + (f"; waiting for {named(missing)}" if missing else "")
            child.stage("join", fraction=count / total, text=text, data={"missing": missing})
