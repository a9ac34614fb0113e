"""The launcher's side of the importer and its ranks: what each is given, fork, tell, hear, end, replace."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mltop.probes.active import child, endings
from mltop.probes.active.all_reduce.connections import Tasks
from mltop.probes.active.all_reduce.importer import PACKET_BYTES, STORE
from mltop.probes.active.all_reduce.listening import interface_of, local_addresses
from mltop.probes.active.all_reduce.meeting import Meeting
from mltop.probes.active.all_reduce.options import (
    PATHS,
    READY_S,
    Options,
    added_settings,
    conf_settings,
    inherited_settings,
    injected_delays,
)
from mltop.probes.active.all_reduce.rank import NodeRound, Progress, Setup
from mltop.probes.active.host import stat_fields
from mltop.probes.model.probe import ProbeEvent

LAST_LINES = 40
END_S = 3.0
LAST_WORDS_S = 2.0


class ImportFailed(Exception):
    """Why torch cannot be used, as a sentence."""


class CannotEnd(Exception):
    """The sentence about a process that SIGKILL does not end."""


class Importer:
    """The child that has torch, as ``fork_importer`` gave it. ``imported``: what it says of it, or ImportFailed."""

    def __init__(self, pid: int, control: socket.socket, output: int) -> None:
        """Within a running loop."""
        self.pid = pid
        loop = asyncio.get_running_loop()
        self.imported: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.on_child: Callable[[dict[str, Any]], None] = lambda _: None  # one was forked, or has ended
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._control = control
        self._tasks = Tasks()
        self._reading = asyncio.ensure_future(read_lines(output, self.lines.append))
        loop.add_reader(control, self._receive)

    def send(self, order: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Raises OSError when it is gone."""
        socket.send_fds(self._control, [json.dumps(order).encode()], list(descriptors))

    async def end(self) -> None:
        """Waits while it ends its children; SIGKILL after END_S, or at once while it imports, ends them, too."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for _ in range(int(END_S / 0.01) if self.imported.done() else 0):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            await asyncio.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _receive(self) -> None:
        try:
            packet = self._control.recv(PACKET_BYTES)
        except ConnectionError:
            packet = b""
        if not packet:
            asyncio.get_running_loop().remove_reader(self._control)
            self._tasks.start(self._lost())
            return
        reply = json.loads(packet)
        if "imported" in reply:
            self.imported.set_result(reply["imported"])
        elif "failed" in reply:
            self.imported.set_exception(ImportFailed(reply["failed"]))
        else:
            self.on_child(reply)

    async def _lost(self) -> None:
        await asyncio.wait([self._reading], timeout=LAST_WORDS_S)
        words = endings.last_words("\n".join(self.lines))
        how = ", ".join(word for word in (self._ending(), words) if word)
        if not self.imported.done():
            why = f"the process that imports torch died: {how or 'it said nothing'}"
            self.imported.set_exception(ImportFailed(why))

    def _ending(self) -> str:
        """How it ended, "" when it only closed its socket; ``end()`` reaps it."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return ""
        if ended.si_code == os.CLD_EXITED:
            return f"exit code {ended.si_status}"
        return f"killed by {endings.signal_name(ended.si_status)}"


class LocalRank:
    """One process. ``up``: it has its device and the store, cancelled when it ended before, ``trouble`` says why.

    ``ended``: its wait status, after its last message was handled.
    """

    def __init__(self, local: int) -> None:
        loop = asyncio.get_running_loop()
        self.local = local
        self.pid = 0
        self.up: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.trouble = ""
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.writer: asyncio.StreamWriter | None = None
        self.readers: list[Awaitable[None]] = []

    def state(self) -> str:
        """The process's state (proc(5)): R S D T t Z, "" when it is gone."""
        return next(iter(stat_fields(self.pid)), "")


class Ranks:
    """All ranks of this node, of which the first is ``first_rank`` of all nodes' ranks.

    ``on_event``, ``on_ended``: what is done with a local rank's events and wait status.
    """

    def __init__(
        self,
        importer: Importer,
        progress: Progress,
        setups: list[Setup],
        first_rank: int,
        *,
        on_event: Callable[[int, ProbeEvent], None],
        on_ended: Callable[[int, int], None],
    ) -> None:
        self.progress, self.first_rank = progress, first_rank
        self._importer, self._setups = importer, setups
        self._output = Output(first_rank, setups[0].backend == "nccl")
        self._on_event, self._on_ended = on_event, on_ended
        self._ranks: dict[int, LocalRank] = {}
        self._tasks = Tasks()
        importer.on_child = self._forked_or_ended

    def __len__(self) -> int:
        return len(self._setups)

    def __getitem__(self, local: int) -> LocalRank:
        return self._ranks[local]

    def serve_store(self, address: str, listening: socket.socket) -> None:
        """A child of its own serves it, so that it outlives any rank. The socket is given away."""
        port = listening.getsockname()[1]
        self._importer.send({"fork": STORE, "store": [address, port]}, [listening.fileno()])
        listening.close()

    async def start(self, locals_: Iterable[int], limit_s: float) -> list[int]:
        """Fork them; those that are not up within the limit, or have ended."""
        forked = [await self._fork(local) for local in locals_]
        await asyncio.wait([rank.up for rank in forked], timeout=limit_s)
        return [rank.local for rank in forked if not rank.up.done() or rank.up.cancelled()]

    async def replace(self, locals_: list[int], limit_s: float) -> list[int]:
        """End them, fork new ones; those that are not up within the limit. Raises CannotEnd."""
        self._importer.send({"kill": locals_})
        old = [self._ranks[local] for local in locals_]
        await asyncio.wait([rank.ended for rank in old], timeout=END_S)
        stuck = next((rank for rank in old if not rank.ended.done()), None)
        if stuck is not None:
            raise CannotEnd(
                f"process {stuck.pid} does not end: stuck in the kernel or a driver (state {stuck.state()})"
            )
        return await self.start(locals_, limit_s)

    def tell(self, task: NodeRound) -> None:
        """All of them."""
        line = child.to_line(asdict(task)).encode()
        for rank in self._ranks.values():
            if rank.writer is not None:
                rank.writer.write(line)

    def say_last(self, failed: Collection[int | None]) -> None:
        """What those of the ``failed`` printed last that are this node's."""
        for local, rank in self._ranks.items():
            last = [line for line in rank.lines if not line.startswith(CHATTER)][-LAST:]
            if last and self.first_rank + local in failed:
                child.say(ProbeEvent("note", rank=self.first_rank + local, text="\n".join(last)))

    async def _fork(self, local: int) -> LocalRank:
        rank = self._ranks[local] = LocalRank(local)
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()
        try:
            order = {"fork": local, "setup": asdict(self._setups[local])}
            self._importer.send(order, [theirs.fileno(), printed])
        finally:
            theirs.close()
            os.close(printed)
        reader, rank.writer = await asyncio.open_connection(sock=ours, limit=child.MOST_LINE_BYTES)
        rank.readers = [
            asyncio.ensure_future(self._read(rank, reader)),
            asyncio.ensure_future(read_lines(output, lambda line: self._printed(rank, line))),
        ]
        return rank

    def _printed(self, rank: LocalRank, line: str) -> None:
        rank.lines.append(line)
        self._output.line(rank.local, line)

    async def _read(self, rank: LocalRank, reader: asyncio.StreamReader) -> None:
        line = await reader.readline()
        while line.endswith(b"\n"):
            event = child.event_of(line)
            if event is not None:
                self._hear(rank, event)
            line = await reader.readline()
        if rank.writer is not None:
            rank.writer.close()

    def _hear(self, rank: LocalRank, event: ProbeEvent) -> None:
        if event.event == "up":
            rank.up.set_result(None)
        elif not rank.up.done():
            rank.trouble = event.why
        elif self._ranks[rank.local] is rank:
            self._on_event(rank.local, event)

    def _forked_or_ended(self, reply: dict[str, Any]) -> None:
        """What the importer says of a child."""
        local: int = reply["forked" if "forked" in reply else "ended"]
        if local == STORE:
            return
        if "forked" in reply:
            self._ranks[local].pid = reply["pid"]
            return
        self._tasks.start(self._end(self._ranks[local], reply["status"]))

    async def _end(self, rank: LocalRank, status: int) -> None:
        await asyncio.gather(*rank.readers, return_exceptions=True)
        rank.up.cancel()  # or it is done
        rank.ended.set_result(status)
        self._on_ended(rank.local, status)


async def read_lines(descriptor: int, on_line: Callable[[str], None]) -> None:
    """Gives ``on_line`` each line until the end, of an endless one its end. What is not UTF-8 is replaced."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    lines = child.Lines(keeps_end=True)
    try:
        while chunk := await reader.read(1 << 16):
            for line in lines.take(chunk):
                on_line(line.decode(errors="replace").rstrip())
        for rest in filter(None, lines.take(b"\n")):  # the last one, without an end
            on_line(rest.decode(errors="replace").rstrip())
    finally:
        transport.close()


CHATTER = "[Gloo] Rank "  # how many peers it is connected to
MOST_SETTINGS, MOST_WARNINGS = 200, 50
LAST = 8
# "host:4711:4720 [0] NCCL INFO Channel 00/02 : 0 1": what stands before differs from rank to rank.
_NCCL = re.compile(r"\bNCCL (?P<kind>[A-Z]+) (?P<text>.*)")


class Output:
    """Makes notes of NCCL's settings and warnings in what ranks print. Settings are told of ``first_rank``, this node's
    first: the others' are alike.
    """

    def __init__(self, first_rank: int, is_nccl: bool) -> None:
        self._first_rank = first_rank
        self._is_nccl = is_nccl
        self._settings: set[str] = set()
        self._warnings: set[str] = set()

    def line(self, local: int, line: str) -> None:
        printed = _NCCL.search(line) if self._is_nccl else None
        if printed is None:
            return
        rank, text = self._first_rank + local, printed["text"]
        if printed["kind"] == "INFO":
            if local == 0 and text not in self._settings and len(self._settings) < MOST_SETTINGS:
                self._settings.add(text)
                child.say(ProbeEvent("note", rank=rank, text=line, data={"settings": line}))
        elif text not in self._warnings and len(self._warnings) < MOST_WARNINGS:
            self._warnings.add(text)
            child.say(ProbeEvent("note", rank=rank, text=line))


def setups_of(options: Options, meeting: Meeting) -> tuple[list[Setup], dict[str, Any]]:
    """What the local ranks are, and what the ready event says of it. Raises ValueError when MLTOP_PROBE_DELAY is not
    what it must be.
    """
    interface = interface_of(meeting.own_address, local_addresses())
    inherited = inherited_settings(os.environ, conf_settings() if options.backend == "nccl" else {})
    added = added_settings(interface, options.backend, inherited)
    delays = injected_delays(os.environ.get("MLTOP_PROBE_DELAY", ""))
    first = meeting.first_rank(options.nodes, options.node)
    setups = []
    for local in range(options.ranks):
        device = options.device(local)
        setups.append(
            Setup(
                local=local,
                node=options.node,
                backend=options.backend,
                store_host=meeting.store[0],
                store_port=meeting.store[1],
                uuid=device.uuid,
                gpu=device.index,
                connect_s=options.limit_s("import torch") + READY_S,  # our launcher's deadline comes first
                delay_s=delays.get(first + local, 0.0),
                # Each rank sees its own GPU only, as its device 0.
                env={**added, "CUDA_VISIBLE_DEVICES": device.uuid if options.backend == "nccl" else ""},
            )
        )
    return setups, {
        "interface": interface,
        "address": meeting.own_address,
        "ranks": options.ranks,
        "first_rank": first,
        "joined": [name for name in options.nodes if name in meeting.ranks],
        "backend": options.backend,
        "path": PATHS[options.backend],
        "inherited": inherited,
        "added": added,
    }
