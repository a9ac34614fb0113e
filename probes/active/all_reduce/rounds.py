"""One round of this node's ranks: their stages with deadlines, what they say, and how it ends when one fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce.causes import Cause, RankState, death
from mltop.probes.active.all_reduce.collectives import too_big
from mltop.probes.active.all_reduce.connections import Message, named
from mltop.probes.active.all_reduce.meeting import Meeting
from mltop.probes.active.all_reduce.options import Options, RoundTold
from mltop.probes.active.all_reduce.rank import Progress, Round
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


@dataclass
class Plan:
    """``group``: its number in the round; ``first_rank``: this node's first, of all ranks of all nodes;
    ``tasks``: what each local rank is told.
    """

    round: int
    group: int
    nodes: list[str]
    first_rank: int
    tasks: list[Round]


def plan_of(told: RoundTold, group: int, options: Options, meeting: Meeting, gone: Collection[str]) -> Plan:
    """What this node's ranks are told. Raises ValueError when a node of the group is not there."""
    counts, names = meeting.ranks, told.groups[group]
    absent = [name for name in names if name not in counts or name in gone]
    if absent:
        raise ValueError(f"{named(absent)} did not join, or has ended")
    first = sum(counts[name] for name in names[: names.index(options.node)])
    available = available_memory_bytes() if options.backend == "gloo" else None
    deadlines_s = {"init": options.limit_s("init"), "measure": options.measure_s(told.budget_s)}
    refused = too_big(told.sizes_bytes, available, options.ranks)
    tasks = [
        Round(
            round=told.round,
            group=group,
            rank=first + local,
            ranks=sum(counts[name] for name in names),
            prefix=f"r{told.round}/g{group}",
            collectives=told.collectives,
            sizes_bytes=told.sizes_bytes,
            budget_s=told.budget_s,
            work=told.work,
            too_big={str(size): why for size, why in refused.items()},
            deadlines_s=deadlines_s,
        )
        for local in range(options.ranks)
    ]
    return Plan(told.round, group, names, meeting.first_rank(options.nodes, options.node), tasks)


@dataclass
class _RankStatus:
    """What is known of one local rank in this round."""

    kind: str = "waits"
    stage: str = ""
    why: str = ""
    deadline: float = 0.0
    limit_s: float = START_S


class RoundRun:
    """``run()`` ends when all local ranks are done, or with the causes when the group's round failed."""

    def __init__(
        self, plan: Plan, node: str, ranks: Ranks, progress: Progress, send: Callable[[Message], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.plan = plan
        self._node = node
        self._ranks = ranks
        self._progress = progress
        self._send = send
        self._clock = loop.time
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._verdict: asyncio.Future[list[Cause]] = loop.create_future()
        self._stages: list[str] = []
        self._statuses = [_RankStatus(deadline=self._clock() + START_S) for _ in plan.tasks]

    async def run(self) -> list[Cause]:
        """[] when it went well. Raises NoVerdict when the leader does not say why it did not."""
        for local, task in enumerate(self.plan.tasks):
            self._progress.clear(local)
            self._ranks.tell(local, asdict(task))
        if await self._all_done():
            return []
        self._tell("trouble", nodes=self.plan.nodes)
        try:
            return await asyncio.wait_for(asyncio.shield(self._verdict), VERDICT_S)
        except asyncio.TimeoutError:
            raise NoVerdict(self._stages[-1] if self._stages else "init") from None

    def unfinished(self) -> list[int]:
        """Local ranks to be replaced after a failure."""
        return [local for local, rank_status in enumerate(self._statuses) if rank_status.kind != "done"]

    # What happens to it.

    def message(self, local: int, message: dict[str, Any]) -> None:
        rank_status = self._statuses[local]
        if "stage" in message and "deadline_s" in message:
            rank_status.stage, rank_status.limit_s = message["stage"], float(message["deadline_s"])
            rank_status.deadline = self._clock() + rank_status.limit_s
            self._begin(rank_status.stage, rank_status.limit_s)
        elif "times" in message:
            rank = self.plan.first_rank + local
            child.say(ProbeEvent("times", rank=rank, stage=rank_status.stage, data=message["times"]))
        elif "left_out" in message:
            event = "refused" if message["refused"] else "failed"
            child.say(ProbeEvent(event, stage=message["stage"], why=message["left_out"], data=self._where()))
        elif "raised" in message:
            rank_status.kind = "disconnected" if message["connection"] else "raised"
            rank_status.why = message["raised"]
        elif "done" in message:
            rank_status.kind = "done"
        self._changed.set()

    def ended(self, local: int, status: int) -> None:
        """A rank's process is gone."""
        rank_status = self._statuses[local]
        if rank_status.kind == "waits":
            said = "\n".join(self._ranks[local].lines)
            rank_status.kind, rank_status.why = death(status, said)
        self._changed.set()

    def gone(self, node: str) -> None:
        """Another launcher is."""
        if node in self.plan.nodes:
            self._tell("trouble", nodes=self.plan.nodes)

    async def stop(self) -> None:
        """The group's round has failed: say what our ranks are doing."""
        await asyncio.sleep(EXIT_S)
        states = []
        for local, rank_status in enumerate(self._statuses):
            if rank_status.kind == "waits" and self._ranks[local].state() in ("Z", "X", ""):
                await asyncio.wait([self._ranks[local].ended], timeout=1.0)
            states.append(vars(self._state(local, rank_status)))
        self._tell("states", states=states)
        self._stopped.set()
        self._changed.set()

    def abandon(self) -> None:
        """The leader is gone: nobody will ask, and the verdict is there."""
        self._stopped.set()
        self._changed.set()

    def verdict(self, causes: list[Cause]) -> None:
        if not self._verdict.done():
            self._verdict.set_result(causes)

    # Below: how it is done.

    async def _all_done(self) -> bool:
        while True:
            self._changed.clear()
            kinds = {rank_status.kind for rank_status in self._statuses}
            if kinds == {"done"}:
                return True
            waiting = [rank_status.deadline for rank_status in self._statuses if rank_status.kind == "waits"]
            left = min(waiting, default=0.0) - self._clock()
            if kinds - {"done", "waits"} or self._stopped.is_set() or left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _begin(self, stage: str, limit_s: float) -> None:
        """Said once, when the first of our ranks begins it."""
        if stage not in self._stages:
            self._stages.append(stage)
            child.stage(stage, deadline_s=limit_s + SUPERVISOR_S, data=self._where())

    def _state(self, local: int, rank_status: _RankStatus) -> RankState:
        rank = self.plan.first_rank + local
        kind, why = rank_status.kind, rank_status.why
        if kind == "waits":
            process = self._ranks[local].state()
            if process in ("T", "t"):
                kind, why = "stopped", "stopped (SIGSTOP, or a debugger)"
            elif process == "D" and self._clock() >= rank_status.deadline:
                kind, why = "stuck", "stuck in the kernel or a driver (state D)"
        begun, in_stage = self._progress.read(local)
        return RankState(rank, self._node, kind, rank_status.stage, begun, in_stage, why)

    def _tell(self, kind: str, **rest: Any) -> None:
        self._send({"t": kind, "round": self.plan.round, "group": self.plan.group, **rest})

    def _where(self) -> dict[str, int]:
        return {"round": self.plan.round, "group": self.plan.group}


def say_causes(plan_round: int, group: int, nodes: list[str], node: str, causes: list[Cause]) -> None:
    """Each launcher says what concerns its node; the first that is left what concerns none, or one that is gone."""
    gone = {cause.node for cause in causes if cause.rank is None}
    speaker = next((name for name in nodes if name not in gone), "")
    for cause in causes:
        if node == (cause.node if cause.rank is not None else speaker):
            where: dict[str, Any] = {"round": plan_round, "group": group}
            if cause.rank is None and cause.node:
                where["node"] = cause.node
            child.failed(cause.why, stage=cause.stage, fix=cause.fix, rank=cause.rank, data=where)
