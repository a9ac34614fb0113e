"""The launcher's side of the importer and its ranks: fork, tell, hear, end, replace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from mltop.probes import paths
from mltop.probes.active import endings
from mltop.probes.active.all_reduce.importer import PACKET_BYTES, STORE

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
        self._gone = asyncio.Event()
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
        """Of /proc/PID/stat (proc(5)): R S D T t Z, "" when it is gone."""
        try:
            with open(paths.proc(self.pid, "stat"), encoding="ascii", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""


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
