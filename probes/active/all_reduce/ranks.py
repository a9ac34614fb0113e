"""The ranks of this node, forked from the launcher, which has torch: what each is given, fork, tell, hear, end.

The launcher has one thread, so every fork is safe, also that of a rank in place of a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from mltop.probes.active import child
from mltop.probes.active.all_reduce.listening import interface_of, local_addresses
from mltop.probes.active.all_reduce.options import (
    PATHS,
    Options,
    added_settings,
    conf_settings,
    inherited_settings,
    injected_delays,
)
from mltop.probes.active.all_reduce.rank import NodeRound, Progress, Setup, serve
from mltop.probes.active.host import stat_fields
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.system.spawn import die_with_parent

LAST_LINES = 40
END_S = 3.0
STORE = -1  # the store's server, by the place of a local rank
_IOLBF = 1  # stdio.h
ANOTHER_PYTHON = "name another Python with --torch-python"


class Failed(Exception):
    """This node cannot go on: ``args`` are the stage, the sentence, and what would help."""


class Tasks(set["asyncio.Future[Any]"]):
    """The tasks that run: the loop alone does not keep them."""

    def start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self.discard)


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

    def last_printed(self) -> str:
        last = [line for line in self.lines if not line.startswith(CHATTER)][-LAST:]
        return "\n".join(last)[-MOST_PRINTED:]


class Ranks:
    """All ranks of this node, and the store's server. ``own``: the socket at which the node listens.

    ``on_event``, ``on_ended``: what is done with a local rank's events and wait status, by the round that runs.
    """

    def __init__(self, setups: list[Setup], own: socket.socket) -> None:
        self.progress, self.first_rank = Progress(len(setups)), setups[0].rank
        self.on_event: Callable[[int, ProbeEvent], None] = lambda *_: None
        self.on_ended: Callable[[int, int], None] = lambda *_: None
        self._setups, self._own = setups, own
        self._output = Output(self.first_rank, setups[0].options.backend == "nccl")
        self._ranks: dict[int, LocalRank] = {}
        self._children: dict[int, int] = {}  # pid → local rank, until it is reaped: no number means another process
        self._tasks = Tasks()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def __len__(self) -> int:
        return len(self._setups)

    def __getitem__(self, local: int) -> LocalRank:
        return self._ranks[local]

    def serve_store(self, store: tuple[str, int]) -> None:
        """A child of its own serves it, so that it outlives any rank."""
        self._children[_forked(partial(_serve_store, *store, self._own.fileno()))] = STORE

    async def start(self, locals_: Iterable[int], limit_s: float) -> list[int]:
        """Fork them; those that are not up within the limit, or have ended."""
        forked = [await self._fork(local) for local in locals_]
        await asyncio.wait([rank.up for rank in forked], timeout=limit_s)
        return [rank.local for rank in forked if not rank.up.done() or rank.up.cancelled()]

    async def replace(self, locals_: list[int], limit_s: float) -> list[int]:
        """End them, fork new ones; those that are not up within the limit. Raises Failed."""
        self._kill(locals_)
        old = [self._ranks[local] for local in locals_]
        await asyncio.wait([rank.ended for rank in old], timeout=END_S)
        stuck = next((rank for rank in old if not rank.ended.done()), None)
        if stuck is not None:
            why = f"process {stuck.pid} does not end: stuck in the kernel or a driver (state {stuck.state()})"
            raise Failed("end", why, "the kernel's log may say more (dmesg)")
        return await self.start(locals_, limit_s)

    async def end(self) -> None:
        """SIGKILL for all; what is stuck in the kernel is not waited for."""
        self._kill(range(STORE, len(self)))
        for _ in range(int(END_S / 0.01)):
            if not self._children:
                return
            await asyncio.sleep(0.01)

    def tell(self, task: NodeRound) -> None:
        """All of them."""
        line = child.to_line(asdict(task)).encode()
        for rank in self._ranks.values():
            if rank.writer is not None:
                rank.writer.write(line)

    async def _fork(self, local: int) -> LocalRank:
        rank = LocalRank(local)
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()

        def become() -> None:
            channels = [one.writer.get_extra_info("socket") for one in self._ranks.values() if one.writer]
            for end in (*channels, ours, self._own):  # or others would not notice the launcher's end
                with contextlib.suppress(OSError):  # it is closed
                    os.close(end.fileno())
            os.close(output)
            os.environ.update(self._setups[local].env)
            serve(theirs, self.progress, self._setups[local])

        try:
            rank.pid = _forked(become, printed)
        finally:
            theirs.close()
            os.close(printed)
        self._children[rank.pid] = local
        self._ranks[local] = rank

        def printed_line(line: str) -> None:
            rank.lines.append(line)
            self._output.line(local, line)

        reader, rank.writer = await asyncio.open_connection(sock=ours, limit=child.MOST_LINE_BYTES)
        rank.readers = [
            asyncio.ensure_future(self._read(rank, reader)),
            asyncio.ensure_future(read_lines(output, printed_line)),
        ]
        return rank

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
            self.on_event(rank.local, event)

    def _kill(self, locals_: Iterable[int]) -> None:
        for pid in [pid for pid, local in self._children.items() if local in locals_]:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            local = self._children.pop(pid, STORE)
            if local != STORE:
                self._tasks.start(self._end(self._ranks[local], status))

    async def _end(self, rank: LocalRank, status: int) -> None:
        await asyncio.gather(*rank.readers, return_exceptions=True)
        rank.up.cancel()  # or it is done
        rank.ended.set_result(status)
        self.on_ended(rank.local, status)


async def read_lines(descriptor: int, on_line: Callable[[str], None]) -> None:
    """Gives ``on_line`` each line until the end, of an endless one its end. What is not UTF-8 is replaced."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    rest = b""
    try:
        while chunk := await reader.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-child.MOST_LINE_BYTES :]
            for line in lines:
                on_line(line.decode(errors="replace").rstrip())
        if rest:
            on_line(rest.decode(errors="replace").rstrip())
    finally:
        transport.close()


def _forked(work: Callable[[], None], output: int = 2) -> int:
    """The pid of a new child that does this work and ends. ``output``: where its stdout and stderr go."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _begin_child(parent, output)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - it would go on as a second launcher
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _begin_child(parent: int, output: int) -> None:
    """First thing after a fork: die with ``parent``; stdin is empty, what is printed goes to ``output``."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # a sandbox may refuse it: the end of its channel still ends a rank
        die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(empty)
    if output > 2:
        os.close(output)
    # NCCL writes to C's stdout, which is a pipe here: its last lines, of a failure, would be lost in a buffer.
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    libc.setvbuf(stdout, None, ctypes.c_int(_IOLBF), ctypes.c_size_t(0))


def _serve_store(address: str, port: int, listening: int) -> NoReturn:
    """The key-value store in which the ranks find each other, until it is killed. It takes over the socket: one that
    torch opens listens on every interface.
    """
    import torch.distributed as dist

    make = partial(dist.TCPStore, address, port, None, True, wait_for_workers=False, master_listen_fd=listening)
    try:
        _store = make()
    except NotImplementedError:  # torch 2.4 to 2.7: not with libuv, their default
        _store = make(use_libuv=False)
    while True:
        signal.pause()


CHATTER = "[Gloo] Rank "  # how many peers it is connected to
MOST_SETTINGS, MOST_WARNINGS = 200, 50
LAST, MOST_PRINTED = 8, 600
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


def setups_of(
    options: Options, store: tuple[str, int], first_rank: int, address: str
) -> tuple[list[Setup], dict[str, Any]]:
    """What the local ranks are, and what the ready event says of it. Raises Failed."""
    interface = interface_of(address, local_addresses())
    inherited = inherited_settings(os.environ, conf_settings() if options.backend == "nccl" else {})
    added = added_settings(interface, options.backend, inherited)
    try:
        delays = injected_delays(os.environ.get("MLTOP_PROBE_DELAY", ""))
    except ValueError as error:
        raise Failed("join", f"MLTOP_PROBE_DELAY must be RANK:SECONDS[,RANK:SECONDS]: {error}", "") from None
    setups = []
    for local in range(options.ranks):
        # Each rank sees its own GPU only, as its device 0.
        visible = options.device(local).uuid if options.backend == "nccl" else ""
        env = {**added, "CUDA_VISIBLE_DEVICES": visible}
        rank = first_rank + local
        setups.append(Setup(local, rank, options, store, delays.get(rank, 0.0), env))
    return setups, {
        "interface": interface,
        "address": address,
        "ranks": options.ranks,
        "first_rank": first_rank,
        "backend": options.backend,
        "path": PATHS[options.backend],
        "inherited": inherited,
        "added": added,
    }
