"""Rounds of a dump: when the next one is due, enough to be sure and no more, and one round of it.

A hang is certain after a window of some seconds in which nothing moved (or at once, when the samples of the last
minutes already show the standstill). A job that moves is dumped more often, to see who waits for whom.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mltop.probes.investigate.patience import REACHED, Arrivals, Patience, waited
from mltop.probes.model import JobReport, NodeState, RankStacks
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending
from mltop.probes.reach.view import NodeView

STUCK_GAPS_S = (1.0, 2.0, 2.5, 5.0)  # pauses before round 2, 3, 4, 5: the window grows to 5.5, then 10.5 s
MOVING_GAP_S = 0.35  # between rounds once the job was seen to move
MOVING_ROUNDS = 16
TAIL_ROUNDS = 6  # of a job that moved: when it stands still in so many at the end, it may just have hung
JITTER = 0.3  # of a pause, so that rounds do not fall into step with the job
CHEAP_JUDGE_S = 0.15  # judging that takes longer is not done after every round of a job that moves
JUDGE_EVERY = 4  # rounds, of those


@dataclass(frozen=True)
class Plan:
    """``rounds``: exactly so many (the user's --samples), None: as many as it takes. ``gap_s``: between those."""

    rounds: int | None = None
    gap_s: float = 1.0

    @property
    def most_rounds(self) -> int:
        return self.rounds if self.rounds is not None else MOVING_ROUNDS


def next_pause(plan: Plan, done: int, reports: list[JobReport], random_unit: float) -> float | None:
    """Seconds until the next round after ``done`` rounds, None when it is enough.

    ``random_unit`` is in 0..1 and spreads the pauses.
    """
    spread = 1.0 + JITTER * (random_unit - 0.5)
    if plan.rounds is not None:
        return plan.gap_s * spread if done < plan.rounds else None
    kinds = {report.verdict.kind for report in reports}
    if kinds & {"moving", "straggler"}:
        return MOVING_GAP_S * spread if done < MOVING_ROUNDS else None
    settled = bool(reports) and all(report.verdict.confidence == "high" for report in reports)
    if settled or not reports or done > len(STUCK_GAPS_S):
        return None
    return STUCK_GAPS_S[done - 1] * spread


def judge_due(plan: Plan, done: int, reports: list[JobReport], last_took_s: float) -> bool:
    """Whether to judge after ``done`` rounds. ``last_took_s``: what it cost the last time (0: not done yet).

    With thousands of ranks it takes as long as a dump; a verdict of each round is only needed where it decides
    when the next one is due.
    """
    if last_took_s < CHEAP_JUDGE_S or done >= plan.most_rounds or done % JUDGE_EVERY == 0:
        return True
    return plan.rounds is None and not {report.verdict.kind for report in reports} & {"moving", "straggler"}


def random_unit() -> float:
    return random.random()


Number = TypeVar("Number", int, float)

LOOK_S = 0.1  # between two looks at all nodes' states, and at least LOOK_SHARE times what one costs
LOOK_SHARE = 10.0
SOON_S = 1.0  # asked so shortly before the end, a node cannot have answered
ANSWER_S = 0.02  # waited for answers before anything else is looked at


class Round:
    """Every node that is reached is asked once, also those that are reached while it runs.

    ``step`` until nobody is ``awaited``. By node: ``expected`` ranks and those that ``came``; ``failed``: with why.

    A node that still owes the answer to an ``earlier`` round is not asked again: that answer counts in this one.
    """

    def __init__(
        self,
        hub: Hub,
        nodes: Sequence[str],
        args: dict[str, object],
        arrivals: Arrivals,
        *,
        take: Callable[[RankStacks, int], None],
        take_records: Callable[[RankRecords, int], None] = lambda *_: None,
        earlier: Round | None = None,
    ) -> None:
        self._hub = hub
        self._arrivals = arrivals
        self._nodes = set(nodes)
        self._args = args
        self._take, self._take_records = take, take_records
        self._look_at = 0.0
        self.views: list[NodeView] = []
        self._pending: Pending | None = earlier._pending if earlier else None
        self._open: set[str] = set(earlier._open) if earlier else set()
        self.asked_at: dict[str, float] = _of(self._open, earlier.asked_at) if earlier else {}
        self.expected: dict[str, int] = _of(self._open, earlier.expected) if earlier else {}
        self.came: dict[str, int] = _of(self._open, earlier.came) if earlier else {}
        self.done: set[str] = set()
        self.failed: dict[str, NodeState] = {}
        self._arrivals.news_at = time.monotonic()
        self._look(self._arrivals.news_at)

    def step(self) -> None:
        """Asks nodes that are reached now, and takes in what has come; returns within a fraction of a second."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        if self._pending is not None and self._open:
            self._take_answers(self._pending)
        else:
            time.sleep(ANSWER_S)

    def quiet_s(self) -> float:
        """Seconds since a node was last reached, failed or answered."""
        return time.monotonic() - self._arrivals.news_at

    def awaited(self, patience: Patience) -> list[NodeView]:
        """The nodes that it makes sense to wait for."""
        return self._arrivals.awaited(self.views, self.done | self.failed.keys(), time.monotonic(), patience)

    def slow(self, most_s: float) -> list[NodeView]:
        """The nodes that live, were asked less than ``most_s`` ago and still owe their answer."""
        since = time.monotonic() - most_s
        return [
            view
            for view in self.views
            if view.node in self._open and view.state.state == "live" and self.asked_at[view.node] > since
        ]

    def cancel(self) -> None:
        """Ends what is still asked for: it is of no use any more."""
        if self._pending is not None:
            self._pending.cancel()

    def silent(self) -> list[NodeState]:
        """The nodes without a full answer in this round, and why."""
        now = time.monotonic()
        return [self._why(view, now) for view in self.views if view.node not in self.done]

    def _look(self, now: float) -> None:
        self.views = [view for view in self._hub.view().nodes if view.node in self._nodes]
        self._arrivals.look(self.views, now)
        ended = time.monotonic()
        self._look_at = ended + max(LOOK_S, LOOK_SHARE * (ended - now))
        fresh = tuple(
            view.node for view in self.views if view.state.state in REACHED and view.node not in self.asked_at
        )
        if fresh:
            self.asked_at.update(dict.fromkeys(fresh, now))
            self._open.update(fresh)
            self._pending = self._hub.request("stacks", self._args, fresh, self._pending)

    def _take_answers(self, pending: Pending) -> None:
        for answer in pending.answers(ANSWER_S):
            node, message = answer.node, answer.message
            now = self._arrivals.news_at = time.monotonic()
            if message.expected is not None:
                self.expected[node] = message.expected
            if message.stacks is not None:
                self.came[node] = self.came.get(node, 0) + 1
                self._take(message.stacks, answer.size_bytes)
            if message.records is not None:
                self._take_records(message.records, answer.size_bytes)
            if message.kind in ("done", "error"):
                self._open.discard(node)
            if message.kind == "done":
                self.done.add(node)
            elif message.kind == "error":
                self.failed[node] = NodeState.because(node, "live", message.error, message.fix)
            if now >= self._look_at:
                return

    def _why(self, view: NodeView, now: float) -> NodeState:
        state, node = view.state, view.node
        if node in self.failed:
            return replace(self.failed[node], state=state.state, age_s=state.age_s)
        if node in self.asked_at:
            return replace(state, reason=self._too_slow(state, now - self.asked_at[node]), fix="")
        why = state.why or "it could not be asked"
        if state.state == "connecting":
            why = f"not reached within {waited(now - self._arrivals.began_at)} ({why})"
        return NodeState.because(node, state.state, why, state.fix, state.age_s)

    def _too_slow(self, state: NodeState, asked_s: float) -> str:
        """Why a node that was asked ``asked_s`` ago has not answered in full."""
        if asked_s < SOON_S and state.state in REACHED:
            return f"reached only {waited(asked_s)} before the end (a longer --timeout)"
        node = state.node
        part = f"{self.came.get(node, 0)} of {self.expected[node]} ranks" if node in self.expected else "nothing"
        why = f" ({state.reason})" if state.reason and state.state != "live" else ""
        return f"answered {part} within {waited(asked_s)}{why}"


def _of(nodes: Iterable[str], values: Mapping[str, Number]) -> dict[str, Number]:
    return {node: values[node] for node in nodes if node in values}
