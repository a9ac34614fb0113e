"""A launcher, the all-reduce probe's process on a node: it imports torch once, meets the others by its caller, which is
where all launchers of a probe meet, and runs rounds.

It has one thread until its end, and no work of torch in it: its ranks are forked from it. What it started dies with it,
and it ends with its stdin.

Lines that it is told, and the events that answer them:
    order                                  listening {address, port, ranks}; when torch is imported, stage join
    reach {nodes: {name: [address, port]}} reached {cannot: {name: reason}}
    go {store: [address, port], serves, first_rank}          ready; ``serves``: the store is this node's
    round (options.Round)                  stage and times of its ranks, then round {round, group}, failed or idle
                                           trouble {round, group}: one of its ranks failed or is late
    stop {round, group}                    states {round, group, states}, then round
    end

A round of its ranks: their stages with deadlines, what they say, and how it ends when one fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltop.probes.active import child, endings
from mltop.probes.active.all_reduce import listening
from mltop.probes.active.all_reduce.collectives import too_big
from mltop.probes.active.all_reduce.options import (
    DEFAULTS,
    MEASURE_BUDGETS,
    MEASURE_S,
    READY_S,
    Options,
    Round,
    options_of,
    round_of,
)
from mltop.probes.active.all_reduce.rank import NodeRound, prepare
from mltop.probes.active.all_reduce.ranks import ANOTHER_PYTHON, Failed, Ranks, Tasks, read_lines, setups_of
from mltop.probes.active.host import available_memory_bytes
from mltop.probes.active.torch_support import Unusable, import_torch
from mltop.probes.model.probe import ProbeEvent, RankState

EXIT_S = 0.1  # between the moment that others see a rank's connections close and the one that its end is known
SUPERVISOR_S = 20.0  # our deadlines come first: they name the rank. After them come the caller's question and new ranks
START_S = 5.0  # until a rank says its first stage


def node_round(wanted: Round, group: int, options: Options) -> NodeRound:
    """What this node's ranks are told. Raises ValueError when the ranks of a node are not known."""
    counts, nodes = wanted.ranks, wanted.groups[group]
    unknown = [name for name in nodes if name not in counts]
    if unknown:
        raise ValueError(f"how many ranks {unknown[0]} has is unknown")
    available = available_memory_bytes() if options.backend == "gloo" else None
    measure_s = MEASURE_BUDGETS * wanted.budget_s + MEASURE_S  # of one size
    return NodeRound(
        **vars(wanted),
        group=group,
        first=sum(counts[name] for name in nodes[: nodes.index(options.node)]),
        size=sum(counts[name] for name in nodes),
        too_big=too_big(wanted.sizes_bytes, available, options.ranks),
        deadlines_s={"init": options.limit_s("init"), "measure": options.deadlines_s.get("measure", measure_s)},
    )


@dataclass
class _RankStatus:
    """What is known of one local rank in this round. ``kind``: as in RankState; ``deadline``: of its stage."""

    deadline: float
    kind: str = "waits"
    stage: str = ""
    why: str = ""


class RoundRun:
    """``run()`` ends when all local ranks are done, or when the caller has been told why they are not."""

    def __init__(self, task: NodeRound, node: str, ranks: Ranks) -> None:
        self.task = task
        self.is_over = False
        self._node, self._ranks = node, ranks
        self._clock = asyncio.get_running_loop().time
        self._changed, self._stopped, self._told = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stages: list[str] = []
        self._statuses = [_RankStatus(self._clock() + START_S) for _ in range(len(ranks))]
        ranks.on_event, ranks.on_ended = self.event, self.ended

    async def run(self) -> bool:
        """Whether it went well."""
        for local in range(len(self._ranks)):
            self._ranks.progress.clear(local)
        self._ranks.tell(self.task)
        self.is_over = await self._all_done()
        if not self.is_over:
            if not self._stopped.is_set():
                child.say(ProbeEvent("trouble", data=self.task.where))
            await self._told.wait()
            self.is_over = True
        return not self.unfinished()

    def unfinished(self) -> list[int]:
        """Local ranks to be replaced after a failure."""
        return [local for local, status in enumerate(self._statuses) if status.kind != "done"]

    def event(self, local: int, event: ProbeEvent) -> None:
        """Of one of its ranks."""
        status = self._statuses[local]
        if event.event == "stage":
            status.stage, limit_s = event.stage, event.deadline_s or 0.0
            status.deadline = self._clock() + limit_s
            if event.stage not in self._stages:  # said once, when the first of our ranks begins it
                self._stages.append(event.stage)
                child.stage(event.stage, deadline_s=limit_s + SUPERVISOR_S, data=self.task.where)
        elif event.event == "times":
            event.rank = self._ranks.first_rank + local
            child.say(event)
        elif event.event in ("refused", "failed"):
            event.data = self.task.where
            child.say(event)
        elif event.event == "raised":
            status.kind = "disconnected" if event.data["connection"] else "raised"
            status.why = event.why
        elif event.event == "done":
            status.kind = "done"
        self._changed.set()

    def ended(self, local: int, wait_status: int) -> None:
        """A rank's process is gone."""
        status = self._statuses[local]
        if status.kind == "waits":
            status.kind, status.why = endings.rank_death(wait_status, "\n".join(self._ranks[local].lines))
        self._changed.set()

    async def stop(self) -> None:
        """The group's round has failed: say what our ranks are doing."""
        self._stopped.set()
        self._changed.set()
        await asyncio.sleep(EXIT_S)
        states = []
        for local, status in enumerate(self._statuses):
            if status.kind == "waits" and self._ranks[local].state() in ("Z", "X", ""):
                await asyncio.wait([self._ranks[local].ended], timeout=1.0)
            states.append(vars(self._state(local, status)))
        child.say(ProbeEvent("states", data={**self.task.where, "states": states}))
        self._told.set()

    async def _all_done(self) -> bool:
        while True:
            self._changed.clear()
            kinds = {status.kind for status in self._statuses}
            if kinds == {"done"}:
                return True
            deadlines = [status.deadline for status in self._statuses if status.kind == "waits"]
            left_s = min(deadlines, default=0.0) - self._clock()
            if kinds - {"done", "waits"} or self._stopped.is_set() or left_s <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    def _state(self, local: int, status: _RankStatus) -> RankState:
        kind, why = status.kind, status.why
        if kind == "waits":
            process = self._ranks[local].state()
            if process in ("T", "t"):
                kind, why = "stopped", "stopped (SIGSTOP, or a debugger)"
            elif process == "D" and self._clock() >= status.deadline:
                kind, why = "stuck", "stuck in the kernel or a driver (state D)"
        begun, in_stage = self._ranks.progress.read(local)
        printed = "" if kind == "done" else self._ranks[local].last_printed()
        return RankState(self._ranks.first_rank + local, self._node, kind, status.stage, begun, in_stage, why, printed)


Line = dict[str, Any]


def main() -> None:
    """Exit code 0 after "end", 1 when the node took no part, 2 for a bad order. Reasons are events."""
    try:
        options = options_of(child.read_order())
    except (ValueError, TypeError, KeyError) as error:
        child.say(ProbeEvent("refused", stage="listen", why=str(error)))
        sys.exit(2)
    child.stage("listen")
    try:
        own = _listen(options)
    except OSError as error:
        child.failed(f"cannot listen: {error.strerror or error}", stage="listen")
        sys.exit(1)
    address, port = own.getsockname()[:2]
    child.say(ProbeEvent("listening", data={"address": address, "port": port, "ranks": options.ranks}))
    child.stage("import torch")
    try:
        about = _torch(options.backend)
    except Unusable as error:
        child.failed(error.why, stage="import torch", fix=ANOTHER_PYTHON)
        sys.exit(1)
    gc.freeze()  # the collector would otherwise copy every page of torch into every rank
    os._exit(asyncio.run(_run(options, own, about)))


async def _run(options: Options, own: socket.socket, about: dict[str, Any]) -> int:
    """A launcher until its end: its exit code. Everything that was started has ended. ``own``: listens already;
    ``about``: what is known of torch.
    """
    async with contextlib.AsyncExitStack() as exits:
        try:
            node = Node(options, own)
            await node.get_ready(about, exits)
            await node.serve()
        except Failed as error:
            stage, why, fix = error.args
            child.failed(why, stage=stage, fix=fix)
            return 1
    return 0


def _listen(options: Options) -> socket.socket:
    """Where others reach this node; nothing but loopback for a node that measures alone. Raises OSError."""
    if options.alone:
        try:
            return listening.listen("127.0.0.1")
        except OSError:
            return listening.listen("::1")
    if options.leader_address:
        return listening.listen(listening.route_to(options.leader_address))
    here = listening.chosen(os.environ, options.backend, options.node, listening.local_addresses())
    return listening.listen(here.address)


def _torch(backend: str) -> dict[str, Any]:
    """What the ready event says of torch, which is imported. Raises Unusable."""
    os.environ.update({name: value for name, value in DEFAULTS.items() if name not in os.environ})
    began = time.monotonic()
    torch, dist = import_torch(), import_torch("torch.distributed")
    prepare()
    available, version = dist.is_available(), str(torch.__version__)
    about = {
        "python": sys.version.split()[0],
        "torch": version,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "gloo": bool(available and dist.is_gloo_available()),
        "nccl": bool(available and dist.is_nccl_available()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "import_s": round(time.monotonic() - began, 3),
    }
    if not about[backend]:
        raise Unusable(f"this torch ({version}) was built without {backend}")
    return about


class Node:
    """A node's ranks, and what the caller tells it. Within a running loop."""

    def __init__(self, options: Options, own: socket.socket) -> None:
        self._options, self._own = options, own
        self._go: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._lines: asyncio.Queue[Line] = asyncio.Queue()  # rounds and the end, for their turn
        self._tasks = Tasks()
        self._run: RoundRun | None = None
        self._begun = self._stopped = 0  # the newest round
        self._ranks: Ranks

    def take(self, line: Line) -> None:
        """A line of the caller's."""
        kind = line.get("tell")
        if kind == "reach":
            self._tasks.start(self._reach(line))
        elif kind == "go" and not self._go.done():
            self._go.set_result(line)
        elif kind == "stop":
            self._stop(line)
        elif kind in ("round", "end"):
            self._lines.put_nowait(line)

    async def get_ready(self, about: dict[str, Any], exits: contextlib.AsyncExitStack) -> None:
        """Raises Failed. ``exits``: what is done at the end."""
        self._tasks.start(self._hear())
        # Others try whether they reach us. Who connects is sent away.
        backlog = listening.BACKLOG
        server = await asyncio.start_server(lambda _, writer: writer.close(), sock=self._own, backlog=backlog)
        began, limits_s = time.monotonic(), map(self._options.limit_s, ("join", "import torch"))
        child.stage("join", deadline_s=sum(limits_s) + READY_S + SUPERVISOR_S)  # until the last has imported torch
        go = await self._go
        join_s = round(time.monotonic() - began, 3)
        store, address = (str(go["store"][0]), int(go["store"][1])), self._own.getsockname()[0]
        setups, about_ranks = setups_of(self._options, store, int(go["first_rank"]), address)
        self._ranks = Ranks(setups, self._own)
        exits.push_async_callback(self._ranks.end)
        if go.get("serves"):
            self._ranks.serve_store(store)
            server.close()
        self._check_up(await self._ranks.start(range(self._options.ranks), READY_S), store)
        child.say(ProbeEvent("ready", data={**about, "join_s": join_s, **about_ranks}))

    async def serve(self) -> None:
        """Rounds, until the end."""
        while (line := await self._lines.get()).get("tell") != "end":
            try:
                await self._round(round_of(line))
            except ValueError as error:
                where = {"round": line.get("round")}
                child.failed(str(error), stage="init", data=where)
                child.say(ProbeEvent("round", data={**where, "failed": True}))

    async def _hear(self) -> None:
        """What the caller says. When nobody waits for us any more, all of us end."""
        await read_lines(os.dup(0), self._on_line)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def _on_line(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                self.take(message)

    def _check_up(self, not_up: list[int], store: tuple[str, int] | None = None) -> None:
        if not_up:
            rank = self._ranks[not_up[0]]
            why = rank.trouble or endings.last_words("\n".join(rank.lines)) or "no answer from torch's store"
            where = f" (the store is at {store[0]} port {store[1]})" if store else ""
            raise Failed("join", f"{len(not_up)} of {len(self._ranks)} ranks did not get ready: {why}{where}", "")

    async def _round(self, wanted: Round) -> None:
        """Raises ValueError for one that cannot be begun."""
        number = wanted.round
        if number <= self._stopped:
            raise ValueError(f"the others gave round {number} up before this node could begin it")
        self._begun = number
        group = next((group for group, names in enumerate(wanted.groups) if self._options.node in names), None)
        if group is None:
            child.say(ProbeEvent("round", data={"round": number, "idle": True}))
            return
        await self._replace([local for local in range(len(self._ranks)) if self._ranks[local].ended.done()])
        self._run = RoundRun(node_round(wanted, group, self._options), self._options.node, self._ranks)
        data = self._run.task.where
        if not await self._run.run():
            data["failed"] = True
            await self._replace(self._run.unfinished())
        child.say(ProbeEvent("round", data=data))

    async def _replace(self, locals_: list[int]) -> None:
        """No state of a broken process group survives: ranks that took part in it are forked anew."""
        if locals_:
            self._check_up(await self._ranks.replace(locals_, READY_S))

    async def _reach(self, line: Line) -> None:
        nodes = {str(name): (str(address), int(port)) for name, (address, port) in line["nodes"].items()}
        child.say(ProbeEvent("reached", data={"cannot": await listening.unreached(nodes)}))

    def _stop(self, line: Line) -> None:
        """The round has failed. One that our ranks have done already, or have not begun, is answered here."""
        run, number = self._run, int(line["round"])
        if run is not None and number == run.task.round and not run.is_over:
            self._tasks.start(run.stop())
            return
        kind = "done" if number <= self._begun else "absent"
        self._stopped = number
        first, node = self._ranks.first_rank, self._options.node
        states = [vars(RankState(first + local, node, kind)) for local in range(len(self._ranks))]
        child.say(ProbeEvent("states", data={"round": number, "group": line.get("group"), "states": states}))
