"""One round of this node's ranks: their stages with deadlines, what they say, and how it ends when one fails."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from mltop.probes.active import child, endings
from mltop.probes.active.all_reduce.collectives import too_big
from mltop.probes.active.all_reduce.options import MEASURE_BUDGETS, MEASURE_S, Options, Round
from mltop.probes.active.all_reduce.rank import NodeRound
from mltop.probes.active.all_reduce.ranks import Ranks
from mltop.probes.active.host import available_memory_bytes
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
