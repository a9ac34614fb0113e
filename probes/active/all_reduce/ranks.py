"""The launcher's side of the importer and its ranks: what each is given, fork, tell, hear, end, replace."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mltop.probes.active import child, endings
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
from mltop.probes.active.all_reduce.rank import Setup
from mltop.probes.active.host import stat_fields
from mltop.probes.model.probe import ProbeEvent

LAST_LINES = 40
END_S = 3.0
LAST_WORDS_S = 2.0
_LINE_LIMIT_BYTES = 1 << 20


class ImportFailed(Exception):
    """Why torch cannot be used, as a sentence."""


class CannotEnd(Exception):
    """The sentence about a process that SIGKILL does not end."""


class Importer:
    """The child that has torch. ``imported`` gives what it says of it, or raises ImportFailed."""

    def __init__(self, pid: int, control: socket.socket, output: int) -> None:
        """Within a running loop. ``output``: the end from which what it prints is read."""
        self.pid = pid
        loop = asyncio.get_running_loop()
        self.imported: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.on_packet: Callable[[dict[str, Any]], None] = lambda _: None
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._control = control
        self._losing: asyncio.Future[None] | None = None  # kept while it runs
        self._reading = asyncio.ensure_future(read_lines(output, self.lines.append))
        loop.add_reader(control, self._receive)

    def send(self, message: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Raises OSError when it is gone."""
        socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))

    async def end(self) -> None:
        """It ends its children first; SIGKILL after END_S, or at once while it imports, which ends them too."""
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
            self._losing = asyncio.ensure_future(self._lost())
            return
        message = json.loads(packet)
        if "imported" in message:
            self._settle(message["imported"])
        elif "failed" in message:
            self._settle(ImportFailed(message["failed"]))
        else:
            self.on_packet(message)

    async def _lost(self) -> None:
        await asyncio.wait([self._reading], timeout=LAST_WORDS_S)
        words = endings.last_words("\n".join(self.lines))
        how = ", ".join(word for word in (self._ending(), words) if word)
        self._settle(ImportFailed(f"the process that imports torch died: {how or 'it said nothing'}"))

    def _ending(self) -> str:
        """How it ended, "" when it only closed its socket; ``end()`` reaps it."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return ""
        if ended.si_code == os.CLD_EXITED:
            return f"exit code {ended.si_status}"
        return endings.signal_words(ended.si_status)

    def _settle(self, outcome: dict[str, Any] | ImportFailed) -> None:
        if self.imported.done():
            return
        if isinstance(outcome, ImportFailed):
            self.imported.set_exception(outcome)
        else:
            self.imported.set_result(outcome)


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
        """Of proc(5): R S D T t Z, "" when it is gone."""
        return next(iter(stat_fields(self.pid)), "")


class Ranks:
    """All ranks of this node. ``on_message`` and ``on_line`` get the local rank first; ``on_ended`` its status."""

    def __init__(
        self,
        importer: Importer,
        setups: list[dict[str, Any]],
        environments: list[dict[str, str]],
        *,
        on_message: Callable[[int, dict[str, Any]], None],
        on_line: Callable[[int, str], None],
        on_ended: Callable[[int, int], None],
    ) -> None:
        self._importer = importer
        self._setups = setups
        self._environments = environments
        self._on_message, self._on_line, self._on_ended = on_message, on_line, on_ended
        self._ranks: dict[int, LocalRank] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        importer.on_packet = self._packet

    def __len__(self) -> int:
        return len(self._setups)

    def __getitem__(self, local: int) -> LocalRank:
        return self._ranks[local]

    def serve_store(self, address: str, listening: socket.socket) -> None:
        """A child of its own serves it, so that it outlives any rank. The socket is given away."""
        self._importer.send({"store": [address, listening.getsockname()[1]]}, [listening.fileno()])
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

    def tell(self, local: int, message: Mapping[str, Any]) -> None:
        writer = self._ranks[local].writer
        if writer is not None:
            writer.write(json.dumps(message).encode() + b"\n")

    async def _fork(self, local: int) -> LocalRank:
        rank = self._ranks[local] = LocalRank(local)
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()
        order = {"fork": local, "env": self._environments[local], "setup": self._setups[local]}
        try:
            self._importer.send(order, [theirs.fileno(), printed])
        finally:
            theirs.close()
            os.close(printed)
        reader, rank.writer = await asyncio.open_connection(sock=ours, limit=_LINE_LIMIT_BYTES)
        rank.readers = [
            asyncio.ensure_future(self._read(rank, reader)),
            asyncio.ensure_future(read_lines(output, lambda line: self._line(rank, line))),
        ]
        return rank

    def _line(self, rank: LocalRank, line: str) -> None:
        rank.lines.append(line)
        self._on_line(rank.local, line)

    async def _read(self, rank: LocalRank, reader: asyncio.StreamReader) -> None:
        line = await reader.readline()
        while line.endswith(b"\n"):
            message = json.loads(line)
            if "up" in message:
                rank.up.set_result(None)
            elif not rank.up.done():
                rank.trouble = str(message.get("raised", ""))
            elif self._ranks[rank.local] is rank:
                self._on_message(rank.local, message)
            line = await reader.readline()
        if rank.writer is not None:
            rank.writer.close()

    def _packet(self, message: dict[str, Any]) -> None:
        if "forked" in message and message["forked"] != STORE:
            self._ranks[message["forked"]].pid = message["pid"]
        elif "ended" in message and message["ended"] != STORE:
            task = asyncio.ensure_future(self._end(self._ranks[message["ended"]], message["status"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end(self, rank: LocalRank, status: int) -> None:
        await asyncio.gather(*rank.readers, return_exceptions=True)
        rank.up.cancel()  # or it is done
        rank.ended.set_result(status)
        self._on_ended(rank.local, status)


async def read_lines(descriptor: int, on_line: Callable[[str], None]) -> None:
    """Until its end. What is not UTF-8 is replaced, an endless line is cut."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT_BYTES)
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    rest = b""
    try:
        chunk = await reader.read(1 << 16)
        while chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace").rstrip())
            rest = rest[-_LINE_LIMIT_BYTES:]
            chunk = await reader.read(1 << 16)
        if rest:
            on_line(rest.decode(errors="replace").rstrip())
    finally:
        transport.close()


CHATTER = "[Gloo] Rank "  # how many peers it is connected to
MOST_SETTINGS, MOST_WARNINGS = 200, 50
LAST = 8
# "host:4711:4720 [0] NCCL INFO Channel 00/02 : 0 1": what stands before differs from rank to rank.
_NCCL = re.compile(r"\bNCCL (?P<kind>[A-Z]+) (?P<text>.*)")


class Output:
    """What ranks print: NCCL's settings and warnings as notes, the last lines of a rank that failed.

    ``first_rank``: this node's first, of all ranks. Settings are told of that one: the others' are alike."""

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

    def say_last(self, ranks: Ranks, failed: Iterable[int | None]) -> None:
        """The last lines of those of this node's ranks that failed."""
        for local in range(len(ranks)):
            rank = self._first_rank + local
            lines = [line for line in ranks[local].lines if not line.startswith(CHATTER)]
            if rank in failed and lines:
                child.say(ProbeEvent("note", rank=rank, text="\n".join(lines[-LAST:])))


@dataclass
class Setups:
    """``ranks`` and ``environments`` by local rank; ``first_rank``: of all ranks of all nodes; ``ready_data``: of the
    ready event.
    """

    first_rank: int
    ranks: list[dict[str, Any]]
    environments: list[dict[str, str]]
    ready_data: dict[str, Any]


def setups_of(options: Options, meeting: Meeting) -> Setups:
    """Raises ValueError when MLTOP_PROBE_DELAY is not what it must be."""
    interface = interface_of(meeting.own_address, local_addresses())
    inherited = inherited_settings(os.environ, conf_settings() if options.backend == "nccl" else {})
    added = added_settings(interface, options.backend, inherited)
    delays = injected_delays(os.environ.get("MLTOP_PROBE_DELAY", ""))
    first = meeting.first_rank(options.nodes, options.node)
    devices = [options.device(local) for local in range(options.ranks)]
    ranks = [
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
        )
        for local, device in enumerate(devices)
    ]
    # Each rank sees its own GPU only, as its device 0.
    visible = [device.uuid if options.backend == "nccl" else "" for device in devices]
    ready_data = {
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
    environments = [{**added, "CUDA_VISIBLE_DEVICES": gpu} for gpu in visible]
    return Setups(first, [asdict(setup) for setup in ranks], environments, ready_data)
