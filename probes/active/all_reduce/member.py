"""A launcher's side of the meeting: finds the leader, tells what it is asked, hears what happens to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.active.all_reduce import preflight
from mltop.probes.active.all_reduce.link import LocalLink, Message, TcpLink
from mltop.probes.active.all_reduce.listening import plain


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
        found = await _first(trying, preflight.STAGGER_S if len(trying) < len(addresses) else None)
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
        for name in preflight.targets(list(nodes), hello.name)
        if nodes[name]["port"]  # the leader has none: we are connected to it
    }
    link.send({"t": "reached", "cannot": await preflight.unreached(others)})
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
        reader, writer = await preflight.connect(address, port)
    except OSError as error:
        why[address] = preflight.reason(error)
        raise
    link = TcpLink(reader, writer)
    try:
        welcome = await asyncio.wait_for(link.receive(), preflight.LIMIT_S)
    except asyncio.TimeoutError:
        welcome = None
    if welcome is None or welcome.get("key") != key:
        link.close()
        why[address] = "something else answers there"
        raise OSError(why[address])
    return link
