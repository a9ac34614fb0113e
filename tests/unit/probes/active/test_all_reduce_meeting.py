"""The meeting of the launchers over real sockets, with members made here instead of nodes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from mltop.probes.active.all_reduce.connections import Link, accused, named, targets
from mltop.probes.active.all_reduce.listening import listen
from mltop.probes.active.all_reduce.meeting import Hello, Leader, Meeting, NotJoined, find_leader, join

T = TypeVar("T")
NODES = ["h01", "h02", "h03", "h04"]
LIMIT_S = 20.0


class Place:
    """The leader's listening socket and the leader; members come by ``come``."""

    def __init__(self, join_s: float = LIMIT_S) -> None:
        self.joined: list[tuple[int, list[str]]] = []
        store = ("127.0.0.1", 4711)
        self.leader = Leader(NODES, "key", join_s, store, lambda count, missing: self.joined.append((count, missing)))
        self._listening = listen("127.0.0.1")
        self.port = self._listening.getsockname()[1]
        self.sockets: list[socket.socket] = []

    async def open(self) -> asyncio.Task[list[str]]:
        self._server = await asyncio.start_server(self.leader.accept, sock=self._listening)
        return asyncio.ensure_future(self.leader.lead())

    async def come(self, name: str, key: str = "key", reachable: bool = True) -> Link:
        own = listen("127.0.0.1")
        self.sockets.append(own)
        port = own.getsockname()[1]
        if not reachable:
            own.close()  # as behind a firewall that refuses
        link = await find_leader("h01", ["127.0.0.1"], self.port, key)
        link.send(Hello(name, key, 2, port).message())
        return link

    async def join(self, name: str, reachable: bool = True) -> Meeting:
        link = await self.come(name, reachable=reachable)
        return await join(link, name, LIMIT_S)

    async def close(self) -> None:
        self._server.close()
        for one in self.sockets:
            one.close()


def _run(test: Callable[[Place], Awaitable[T]], join_s: float = LIMIT_S) -> T:
    async def run() -> T:
        place = Place(join_s)
        leading = await place.open()
        try:
            return await asyncio.wait_for(test(place), LIMIT_S)
        finally:
            leading.cancel()
            await place.close()

    return asyncio.run(run())


def test_all_come_and_know_the_same() -> None:
    async def test(place: Place) -> None:
        meetings = await asyncio.gather(*(place.join(name) for name in ("h03", "h01", "h04", "h02")))
        for meeting in meetings:
            assert list(meeting.ranks) == NODES  # the order of the ranks, not that of arrival
            assert meeting.store == ("127.0.0.1", 4711) and meeting.own_address == "127.0.0.1"
            assert meeting.missing == [] and meeting.first_rank(NODES, "h03") == 4
        assert place.joined[-1] == (4, [])

    _run(test)


def test_who_is_missing_is_known_and_its_ranks_keep_their_numbers() -> None:
    async def test(place: Place) -> None:
        one, other = await asyncio.gather(place.join("h01"), place.join("h03"))
        assert one.missing == other.missing == ["h02", "h04"]
        assert other.first_rank(NODES, "h03") == 4
        with pytest.raises(NotJoined, match="began without it"):
            await place.join("h02")

    _run(test, join_s=0.5)


def test_a_node_that_others_do_not_reach_is_told_so_and_the_others_go_on() -> None:
    async def test(place: Place) -> None:
        joining = [place.join(name, reachable=name != "h02") for name in NODES]
        h01, h02, *others = await asyncio.gather(*joining, return_exceptions=True)
        assert isinstance(h02, NotJoined)
        assert str(h02).startswith("h01, h03, h04 cannot connect to h02 (127.0.0.1): refused")
        for meeting in (h01, *others):
            assert isinstance(meeting, Meeting)
            assert list(meeting.ranks) == ["h01", "h03", "h04"] and meeting.missing == ["h02"]

    _run(test)


def test_strangers_do_not_join() -> None:
    async def test(place: Place) -> None:
        with pytest.raises(NotJoined, match="something else answers there"):
            await place.come("h02", key="another probe's")
        with pytest.raises(NotJoined, match="h09 is not one of the nodes"):
            await place.join("h09")
        first = await place.come("h02")
        while place.joined[-1:] != [(1, ["h01", "h03", "h04"])]:
            await asyncio.sleep(0)
        with pytest.raises(NotJoined, match="h02 is there already"):
            await place.join("h02")
        first.close()

    _run(test)


def test_a_trouble_is_looked_into_once_and_everyone_is_told_the_same() -> None:
    async def test(place: Place) -> None:
        meetings = dict(zip(NODES, await asyncio.gather(*(place.join(name) for name in NODES)), strict=True))
        links = {name: meeting.link for name, meeting in meetings.items()}
        group = ["h01", "h02", "h03"]
        where = {"round": 3, "group": 1}
        for name in ("h01", "h02"):
            links[name].send({"t": "trouble", **where, "nodes": group})
        for number, name in enumerate(group):
            assert await links[name].receive() == {"t": "stop", **where}
            kind, why = ("died", "rank 1 died: killed (SIGKILL)") if name == "h02" else ("disconnected", "reset")
            state = {"rank": number, "node": name, "kind": kind, "stage": "init", "begun": 1, "in_stage": 0, "why": why}
            links[name].send({"t": "states", **where, "states": [state]})
        for name in group:
            verdict = await links[name].receive()
            assert verdict is not None and verdict["t"] == "verdict"
            assert [(cause["node"], cause["rank"]) for cause in verdict["causes"]] == [("h02", 1)]
        # Nobody else hears of it, and the end of a launcher is told to all.
        links["h02"].close()
        for name in ("h01", "h03", "h04"):
            assert await links[name].receive() == {
                "t": "gone",
                "name": "h02",
                "why": "h02 is gone: its launcher has ended",
            }

    _run(test)


def test_a_launcher_that_does_not_answer_is_the_cause() -> None:
    async def test(place: Place) -> None:
        meetings = dict(zip(NODES, await asyncio.gather(*(place.join(name) for name in NODES)), strict=True))
        link = meetings["h01"].link
        link.send({"t": "trouble", "round": 1, "group": 0, "nodes": ["h01", "h04"]})
        assert (await link.receive() or {})["t"] == "stop"
        state = {"rank": 0, "node": "h01", "kind": "waits", "stage": "init", "begun": 1, "in_stage": 0, "why": ""}
        link.send({"t": "states", "round": 1, "group": 0, "states": [state]})
        verdict = await link.receive()
        assert verdict is not None
        assert [(cause["node"], cause["why"].partition(":")[0]) for cause in verdict["causes"]] == [
            ("h04", "h04 does not answer")
        ]

    _run(test)


@pytest.mark.parametrize(
    ("cannot", "expected"),
    [
        ({}, []),
        ({"a": {"b": "timed out"}}, ["b"]),  # of one failed connection, who could not be reached
        ({"a": {"b": "x", "c": "x", "d": "x"}}, ["a"]),  # who reaches nobody
        ({"a": {"c": "x"}, "b": {"c": "x"}, "d": {"c": "x"}}, ["c"]),
        ({"a": {"c": "x"}, "b": {"c": "x", "d": "x"}, "e": {"d": "x"}}, ["c", "d"]),
        ({"a": {"b": "x"}, "b": {"a": "x"}}, ["a"]),
    ],
)
def test_the_fewest_nodes_that_explain_it_are_accused(cannot: dict[str, dict[str, str]], expected: list[str]) -> None:
    assert list(accused(cannot, {})) == expected


def test_the_sentence_names_who_cannot_and_where() -> None:
    found = accused({"h01": {"h03": "timed out"}, "h02": {"h03": "timed out"}}, {"h03": "10.0.0.3"})
    assert found == {"h03": "h01, h02 cannot connect to h03 (10.0.0.3): timed out"}
    blind = accused({"h03": {"h01": "no route to host", "h02": "no route to host"}}, {})
    assert blind == {"h03": "h03 cannot connect to h01, h02: no route to host"}
    assert named([f"h{number}" for number in range(9)]) == "h0, h1, h2, h3 and 5 more"


def test_in_a_big_job_each_tries_few_and_all_are_tried() -> None:
    small = [str(number) for number in range(32)]
    assert all(sorted(targets(small, own)) == sorted(set(small) - {own}) for own in small)
    big = [str(number) for number in range(1000)]
    tried = {own: targets(big, own) for own in big}
    assert all(len(found) == 10 == len(set(found)) and own not in found for own, found in tried.items())
    assert set().union(*tried.values()) == set(big)
