"""One round of this node's ranks: their stages with deadlines, what they say, and how it ends when one fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce.causes import Cause, RankState, death
from mltop.probes.active.all_reduce.collectives import too_big
from mltop.probes.active.all_reduce.connections import Message, named
from mltop.probes.active.all_reduce.meeting import Meeting
from mltop.probes.active.all_reduce.options import Options, Round
from mltop.probes.active.all_reduce.rank import NodeRound
from mltop.probes.active.all_reduce.ranks import Ranks
from mltop.probes.active.host import available_memory_bytes
from mltop.probes.model.probe import ProbeEvent

EXIT_S = 0.1  # between the moment that others see a rank's connections close and the one that its end is known
VERDICT_S = 5.0
# Our deadlines come first: they name the rank. After them come the verdict and new ranks.
SUPERVISOR_S = 20.0
START_S = 5.0  # until a rank says its first stage


class NoVerdict(Exception):
    """The leader does not answer; ``args``: the stage that our ranks were in."""


def node_round(wanted: Round, group: int, options: Options, meeting: Meeting, gone: Collection[str]) -> NodeRound:
    """What this node's ranks are told. Raises ValueError when a node of the group is not there."""
    counts, nodes = meeting.ranks, wanted.groups[group]
    absent = [name for name in nodes if name not in counts or name in gone]
    if absent:
        raise ValueError(f"{named(absent)} did not join, or has ended")
    available = available_memory_bytes() if options.backend == "gloo" else None
    return NodeRound(
        **vars(wanted),
        group=group,
        first=sum(counts[name] for name in nodes[: nodes.index(options.node)]),
        ranks=sum(counts[name] for name in nodes),
        too_big=too_big(wanted.sizes_bytes, available, options.ranks),
        deadlines_s={"init": options.limit_s("init"), "measure": options.measure_s(wanted.budget_s)},
    )


@dataclass
class _RankStatus:
    """What is known of one local rank in this round. ``kind``: as in RankState; ``deadline``: of its stage."""

    deadline: float
    kind: str = "waits"
    stage: str = ""
    why: str = ""


class RoundRun:
    """``run()`` ends when all local ranks are done, or with the causes when the group's round failed.

    ``node``: this one; ``send``: to the leader.
    """

    def __init__(self, task: NodeRound, node: str, ranks: Ranks, send: Callable[[Message], None]) -> None:
        loop = asyncio.get_running_loop()
        self.task = task
        self._node, self._ranks, self._send = node, ranks, send
        self._clock = loop.time
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._verdict: asyncio.Future[list[Cause]] = loop.create_future()
        self._stages: list[str] = []
        self._statuses = [_RankStatus(self._clock() + START_S) for _ in range(len(ranks))]

    async def run(self) -> list[Cause]:
        """[] when it went well. Raises NoVerdict when the leader does not say why it did not."""
        for local in range(len(self._ranks)):
            self._ranks.progress.clear(local)
        self._ranks.tell(self.task)
        if await self._all_done():
            return []
        self._send_leader("trouble", nodes=self.task.nodes)
        try:
            return await asyncio.wait_for(asyncio.shield(self._verdict), VERDICT_S)
        except asyncio.TimeoutError:
            raise NoVerdict(self._stages[-1] if self._stages else "init") from None

    def unfinished(self) -> list[int]:
        """Local ranks to be replaced after a failure."""
        return [local for local, status in enumerate(self._statuses) if status.kind != "done"]

    def say(self, causes: list[Cause]) -> None:
        """Each launcher says what concerns its node; the first that is left what concerns none, or one that is gone."""
        gone = {cause.node for cause in causes if cause.rank is None}
        speaker = next((name for name in self.task.nodes if name not in gone), "")
        for cause in causes:
            if self._node == (cause.node if cause.rank is not None else speaker):
                of_node = {"node": cause.node} if cause.rank is None and cause.node else {}
                where = {**self.task.where, **of_node}
                child.failed(cause.why, stage=cause.stage, fix=cause.fix, rank=cause.rank, data=where)
        self._ranks.say_last({cause.rank for cause in causes})

    # What happens to it.

    def event(self, local: int, event: ProbeEvent) -> None:
        """Of one of its ranks."""
        status, rank = self._statuses[local], self._ranks.first_rank + local
        if event.event == "stage":
            status.stage, limit_s = event.stage, event.deadline_s or 0.0
            status.deadline = self._clock() + limit_s
            if event.stage not in self._stages:  # said once, when the first of our ranks begins it
                self._stages.append(event.stage)
                child.stage(event.stage, deadline_s=limit_s + SUPERVISOR_S, data=self.task.where)
        elif event.event == "times":
            event.rank = rank
            child.say(event)
        elif event.event in ("refused", "failed"):
            event.data = self.task.where
            child.say(event)
        elif event.event == "raised":
            is_lost = event.data["connection"]
            status.kind = "disconnected" if is_lost else "raised"
            status.why = event.why if is_lost else f"rank {rank}: {event.why}"
        elif event.event == "done":
            status.kind = "done"
        self._changed.set()

    def ended(self, local: int, wait_status: int) -> None:
        """A rank's process is gone."""
        status = self._statuses[local]
        if status.kind == "waits":
            output = "\n".join(self._ranks[local].lines)
            status.kind, status.why = death(self._ranks.first_rank + local, wait_status, output)
        self._changed.set()

    def gone(self, node: str) -> None:
        """Another launcher is."""
        if node in self.task.nodes:
            self._send_leader("trouble", nodes=self.task.nodes)

    async def stop(self) -> None:
        """The group's round has failed: say what our ranks are doing."""
        await asyncio.sleep(EXIT_S)
        states = []
        for local, status in enumerate(self._statuses):
            if status.kind == "waits" and self._ranks[local].state() in ("Z", "X", ""):
                await asyncio.wait([self._ranks[local].ended], timeout=1.0)
            states.append(vars(self._state(local, status)))
        self._send_leader("states", states=states)
        self.abandon()

    def abandon(self) -> None:
        """Nobody will ask about its ranks any more."""
        self._stopped.set()
        self._changed.set()

    def verdict(self, causes: list[Cause]) -> None:
        if not self._verdict.done():
            self._verdict.set_result(causes)

    # Below: how it is done.

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
        rank = self._ranks.first_rank + local
        kind, why = status.kind, status.why
        if kind == "waits":
            process = self._ranks[local].state()
            if process in ("T", "t"):
                kind, why = "stopped", f"rank {rank} is stopped (SIGSTOP, or a debugger)"
            elif process == "D" and self._clock() >= status.deadline:
                kind, why = "stuck", f"rank {rank} is stuck in the kernel or a driver (state D)"
        begun, in_stage = self._ranks.progress.read(local)
        return RankState(rank, self._node, kind, status.stage, begun, in_stage, why)

    def _send_leader(self, kind: str, **fields: Any) -> None:
        self._send({"t": kind, **self.task.where, **fields})
