"""A launcher's life after its first sockets: join, ready, rounds, end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

from mltop.probes.active import child, endings
from mltop.probes.active.all_reduce.causes import Cause, RankState
from mltop.probes.active.all_reduce.connections import Message, Tasks
from mltop.probes.active.all_reduce.listening import Sockets
from mltop.probes.active.all_reduce.meeting import Joining, Meeting, NotJoined
from mltop.probes.active.all_reduce.options import READY_S, Options, Round, round_of
from mltop.probes.active.all_reduce.rank import Progress
from mltop.probes.active.all_reduce.ranks import CannotEnd, Importer, ImportFailed, Ranks, setups_of
from mltop.probes.active.all_reduce.rounds import SUPERVISOR_S, NoVerdict, RoundRun, node_round
from mltop.probes.model.probe import ProbeEvent

T = TypeVar("T")


class Failed(Exception):
    """This node cannot go on: ``args`` are the stage, the sentence, and what would help."""


async def run(options: Options, progress: Progress, importer: Importer, sockets: Sockets, began: float) -> int:
    """A launcher until its end: its exit code. Everything that was started has ended. ``began``: when the import of
    torch did (monotonic, s)."""
    loop = asyncio.get_running_loop()
    joining = Joining(options, sockets)
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def take(line: dict[str, Any]) -> None:
        """{"tell": "without", "nodes": [...]}: these will not come. All else waits for its turn."""
        if line.get("tell") != "without":
            lines.put_nowait(line)
        elif isinstance(line.get("nodes"), list):
            joining.without([str(name) for name in line["nodes"]])

    def on_line(line: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(take, line)

    child.end_with_stdin(on_line)
    try:
        node = Node(options, progress, importer, await _join(options, joining), lines)
        await node.get_ready(began, joining.store)
        await node.serve()
    except Failed as error:
        stage, why, fix = error.args
        child.failed(why, stage=stage, fix=fix)
        return 1
    finally:
        joining.end()
        await importer.end()
    return 0


async def _join(options: Options, joining: Joining) -> Meeting:
    """Raises Failed."""
    meeting = asyncio.ensure_future(joining.join())
    begin_import(options)
    if len(options.nodes) > 1:
        child.stage("join", deadline_s=joining.limit_s + SUPERVISOR_S)
    try:
        return await meeting
    except NotJoined as error:
        raise Failed("join", str(error), _JOIN_FIX) from None


def begin_import(options: Options) -> None:
    child.stage("import torch", deadline_s=options.limit_s("import torch") + SUPERVISOR_S)


class Node:
    """A node that has joined the others: its ranks, and what leader and caller say (``lines``): ready, rounds, end.

    Times are monotonic.
    """

    def __init__(
        self,
        options: Options,
        progress: Progress,
        importer: Importer,
        meeting: Meeting,
        lines: asyncio.Queue[dict[str, Any]],
    ) -> None:
        """Within a running loop. Raises Failed."""
        self._options, self._importer, self._meeting = options, importer, meeting
        self._joined_s = time.monotonic()
        self._lines = lines
        self._tasks = Tasks()
        self._run: RoundRun | None = None
        self._past: set[int] = set()  # rounds that we were told
        self._given_up: set[int] = set()  # rounds that failed before we were told them
        self._gone: set[str] = set()  # nodes
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ended_by_leader = False
        try:
            setups, self._about_ranks = setups_of(options, meeting)
        except ValueError as error:
            raise Failed("join", f"MLTOP_PROBE_DELAY must be RANK:SECONDS[,RANK:SECONDS]: {error}", "") from None
        first_rank = meeting.first_rank(options.nodes, options.node)
        self._ranks = Ranks(importer, progress, setups, first_rank, on_event=self._on_event, on_ended=self._on_ended)

    # Until ready.

    async def get_ready(self, began: float, store: socket.socket | None) -> None:
        """``store``: at which torch's store listens, at the leader's."""
        self._tasks.start(self._hear())
        if len(self._options.nodes) > 1 and not self._importer.imported.done():
            begin_import(self._options)
        about = await self._unless_lost("import torch", self._imported(began))
        await self._unless_lost("join", self._start_ranks(began, store))
        join_s = round(self._joined_s - began, 3)
        child.say(ProbeEvent("ready", data={**about, "join_s": join_s, **self._about_ranks}))

    async def _imported(self, began: float) -> dict[str, Any]:
        limit_s = self._options.limit_s("import torch")
        left_s = max(0.1, began + limit_s - time.monotonic())
        try:
            about = await asyncio.wait_for(asyncio.shield(self._importer.imported), left_s)
        except asyncio.TimeoutError:
            fix = "a slow or dead file system, or a busy machine: try: time python -c 'import torch'"
            raise Failed("import torch", f"torch was not imported within {limit_s:g} s", fix) from None
        except ImportFailed as error:
            raise Failed("import torch", str(error), "name another Python with --torch-python") from None
        if not about[self._options.backend]:
            why = f"this torch ({about['torch']}) was built without {self._options.backend}"
            raise Failed("import torch", why, "name another Python with --torch-python")
        return about

    async def _start_ranks(self, began: float, store: socket.socket | None) -> None:
        if store is not None:
            self._ranks.serve_store(self._meeting.store[0], store)
        # The store is there when the leader's torch is.
        limit_s = began + self._options.limit_s("import torch") + READY_S - time.monotonic()
        self._check_up(await self._ranks.start(range(self._options.ranks), max(READY_S, limit_s)))

    def _check_up(self, not_up: list[int]) -> None:
        if not_up:
            rank = self._ranks[not_up[0]]
            leader, (host, port) = self._options.leader_node, self._meeting.store
            why = rank.trouble or endings.last_words("\n".join(rank.lines))
            why = why or f"no answer from torch's store on {leader} ({host} port {port})"
            raise Failed("join", f"{len(not_up)} of {len(self._ranks)} ranks did not get ready: {why}", "")

    # Rounds.

    async def serve(self) -> None:
        while True:
            line = await self._unless_lost("init", self._lines.get())
            if line.get("tell") == "end":
                return
            if line.get("tell") == "round":
                try:
                    await self._round(round_of(line))
                except ValueError as error:
                    where = {"round": line.get("round")}
                    child.failed(str(error), stage="init", data=where)
                    child.say(ProbeEvent("round", data={**where, "failed": True}))

    async def _unless_lost(self, stage: str, work: Awaitable[T]) -> T:
        """What ``work`` gives; Failed as soon as the leader is gone. One that was told to end is no failure: our caller
        will tell us the same.
        """
        waiting = asyncio.ensure_future(work)
        both: list[asyncio.Future[Any]] = [waiting, self._lost]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and not self._ended_by_leader:
            waiting.cancel()
            raise Failed(stage, self._lost.result(), "")
        return await waiting

    async def _round(self, wanted: Round) -> None:
        """Raises ValueError for one that cannot be begun."""
        number = wanted.round
        if number in self._past:
            raise ValueError(f"round {number} was told before: every round needs a number of its own")
        if number in self._given_up:
            raise ValueError(f"the others gave round {number} up before this node was told to begin it")
        self._past.add(number)
        group = next((group for group, names in enumerate(wanted.groups) if self._options.node in names), None)
        if group is None:
            child.say(ProbeEvent("round", data={"round": number, "idle": True}))
            return
        task = node_round(wanted, group, self._options, self._meeting, self._gone)
        await self._replace([local for local in range(len(self._ranks)) if self._ranks[local].ended.done()])
        self._run = RoundRun(task, self._options.node, self._ranks, self._meeting.link.send)
        try:
            causes = await self._run.run()
        except NoVerdict as error:
            why = f"{self._options.leader_node}, the leader, does not answer: its launcher or the network stands still"
            raise Failed(error.args[0], why, "") from None
        data = task.where
        if causes:
            self._run.say(causes)
            data.update(failed=True, causes=[asdict(cause) for cause in causes])
            await self._replace(self._run.unfinished())
        child.say(ProbeEvent("round", data=data))

    async def _replace(self, locals_: list[int]) -> None:
        """No state of a broken process group survives: ranks that took part in it are forked anew."""
        if not locals_:
            return
        try:
            self._check_up(await self._ranks.replace(locals_, READY_S))
        except CannotEnd as error:
            raise Failed("end", str(error), "the kernel's log tells more (dmesg)") from None

    # What happens meanwhile.

    def _on_event(self, local: int, event: ProbeEvent) -> None:
        if self._run is not None:
            self._run.event(local, event)

    def _on_ended(self, local: int, status: int) -> None:
        if self._run is not None:
            self._run.ended(local, status)

    async def _hear(self) -> None:
        """What the leader says, until it is gone."""
        message = await self._meeting.link.receive()
        while message is not None:
            self._heard(message)
            message = await self._meeting.link.receive()
        with contextlib.suppress(asyncio.InvalidStateError):
            self._lost.set_result(f"{self._options.leader_node}, the leader, is gone: its connection closed")
        if self._run is not None:
            self._run.verdict([Cause(self._options.leader_node, None, "", self._lost.result())])
            self._run.abandon()

    def _heard(self, message: Message) -> None:
        kind = message.get("t")
        if kind == "end":
            self._ended_by_leader = True
        elif kind == "gone":
            self._gone.add(message["name"])
            if self._run is not None:
                self._run.gone(message["name"])
        elif kind == "stop":
            run = self._current(message)
            if run is not None:
                self._tasks.start(run.stop())
            else:
                self._given_up.add(message["round"])
                self._meeting.link.send({**message, "t": "states", "states": self._states(message["round"])})
        elif kind == "verdict" and (run := self._current(message)) is not None:
            run.verdict([Cause(**fields) for fields in message["causes"]])

    def _current(self, message: Message) -> RoundRun | None:
        run = self._run
        is_it = run is not None and (run.task.round, run.task.group) == (message["round"], message["group"])
        return run if is_it else None

    def _states(self, number: int) -> list[dict[str, Any]]:
        """The states in a round that our ranks have done already, or that they have not begun."""
        kind = "done" if number in self._past else "absent"
        first = self._ranks.first_rank
        return [vars(RankState(first + local, self._options.node, kind)) for local in range(len(self._ranks))]


_JOIN_FIX = (
    "allow TCP between the nodes on all ports: gloo and NCCL choose free ones; NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) "
    "on the nodes names another network"
)
