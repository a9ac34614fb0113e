"""One stack dump over all ranks of all nodes: rounds of dumps, a verdict after each, an end at the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.investigate.material import Material, judge
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.investigate.rounds import STUCK_GAPS_S, TAIL_ROUNDS, Plan, next_pause, random_unit
from mltop.probes.model import JobReport, NodeState, RankStacks
from mltop.probes.reach.hub import Hub

HEARTBEAT_S = 0.5  # progress is reported at least this often, also when nothing answers
ROUND_DEADLINE_S = 15.0  # py-spy's own limit is 3 s and one retry; more than 8 ranks take turns


@dataclass(frozen=True)
class StackRequest:
    """What to dump. ``job``: only this one; ``nodes`` empty: all. ``deadline_s`` is for the whole of it."""

    nodes: tuple[str, ...] = ()
    job: str | None = None
    plan: Plan = field(default_factory=Plan)
    native: bool = False
    ints: bool = True
    raw: bool = False
    deadline_s: float = 30.0


class StackRun:
    """A running dump in a daemon thread of its own. ``material`` grows with every round."""

    def __init__(
        self,
        hub: Hub,
        request: StackRequest,
        on_progress: Callable[[StackProgress], None],
        on_round: Callable[[StackRun], None] = lambda _: None,
    ) -> None:
        self._hub = hub
        self._request = request
        self._on_progress = on_progress
        self._on_round = on_round
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._started = time.monotonic()
        self._round = 0
        self._done_in_round = 0
        self._expected: dict[str, int] = {}
        self._reports: list[JobReport] = []
        self._answered: set[str] = set()
        self._told_at = 0.0
        self._round_starts: list[int] = []  # where each round begins in the material's dumps
        self._aside: list[RankStacks] = []  # rounds from before the job stopped
        self._rounds_aside = self._raw_after = 0
        self.error = ""  # one sentence when the dump failed
        self._history_until = 0.0  # monotonic s: samples up to here are in the material
        self.material = Material()

    def start(self) -> StackRun:
        threading.Thread(target=self._run, name="mltop-stacks", daemon=True).start()
        return self

    def cancel(self) -> None:
        self._cancelled.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._finished.wait(timeout_s)

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def rounds_done(self) -> int:
        return self._round

    @property
    def reports(self) -> list[JobReport]:
        return self._reports

    def _run(self) -> None:
        try:
            self._rounds()
        except Exception as error:  # noqa: BLE001 - a thread of its own: the caller must hear of it
            self.error = f"the dump failed: {type(error).__name__}: {error}"
            self._tell("failed", error=self.error)
        else:
            self._tell("cancelled" if self._cancelled.is_set() else "done")
        finally:
            self._finished.set()

    def _rounds(self) -> None:
        while True:
            self._round += 1
            self._round_starts.append(len(self.material.dumps))
            self._one_round()
            self._tell("judging")
            self._reports = self._judge()
            self._on_round(self)
            if self._cancelled.is_set():
                break
            pause = next_pause(self._request.plan, self._round - self._rounds_aside, self._reports, random_unit())
            if pause is None and self._stopped_meanwhile():
                pause = STUCK_GAPS_S[0]
            if pause is None or self._left_s() < pause + 0.5:
                break
            self._tell("watching")
            if self._cancelled.wait(pause):
                break
        self._take_back()

    def _stopped_meanwhile(self) -> bool:
        """Whether a job that moved stands still in the last rounds: it hung while it was watched.

        Then the earlier rounds are put aside and it is watched as long as one that stood still from the start.
        """
        if self._request.plan.rounds is not None or self._aside or self._round <= TAIL_ROUNDS:
            return False
        start = self._round_starts[-TAIL_ROUNDS]
        tail = replace(self.material, dumps=self.material.dumps[start:])
        if not any(report.verdict.kind == "hang" for report in judge(tail, self._request.job)):
            return False
        self._aside, self.material.dumps = self.material.dumps[:start], tail.dumps
        self._rounds_aside = self._raw_after = self._round
        return True

    def _take_back(self) -> None:
        """It moved again: no hang, and the earlier rounds count."""
        if self._aside and not any(report.verdict.kind == "hang" for report in self._reports):
            self.material.dumps = self._aside + self.material.dumps
            self._reports = self._judge()
            self._on_round(self)

    def _one_round(self) -> None:
        """Dump every rank once and take in the answers as they come."""
        self._done_in_round, self._expected = 0, {}
        args: dict[str, object] = {
            "native": self._request.native,
            "ints": self._request.ints,
            "raw": self._request.raw and self._round == self._raw_after + 1,
            "job": self._request.job or "",
        }
        pending = self._hub.request("stacks", args, self._request.nodes)
        deadline = time.monotonic() + min(ROUND_DEADLINE_S, max(0.1, self._left_s()))
        while pending.open_nodes and time.monotonic() < deadline:
            if self._cancelled.is_set():
                pending.cancel()
                return
            for answer in pending.answers(timeout_s=0.1):
                self._take(answer.node, answer.message.expected, answer.message.stacks)
            if time.monotonic() - self._told_at > HEARTBEAT_S:
                self._tell("dumping")
        for answer in pending.answers(timeout_s=0.0):
            self._take(answer.node, answer.message.expected, answer.message.stacks)
        if pending.open_nodes:
            pending.cancel()
        silent = pending.not_answered()
        self._answered |= set(pending.nodes) - {state.node for state in silent}
        # A node that was slow in one round only has answered: its ranks are known.
        self.material.not_answered = [state for state in silent if state.node not in self._answered]

    def _take(self, node: str, expected: int | None, stacks: RankStacks | None) -> None:
        if expected is not None:
            self._expected[node] = expected
        if stacks is not None:
            self.material.dumps.append(stacks)
            self._done_in_round += 1
        self._tell("dumping")

    def _judge(self) -> list[JobReport]:
        nodes = self._request.nodes or tuple(view.node for view in self._hub.view().nodes)
        self.material.nodes = [self._hub.node(node).state for node in nodes]
        now = time.monotonic()
        for node in nodes:
            self.material.samples.setdefault(node, []).extend(self._hub.history(node, self._history_until, now))
        self._history_until = now
        return judge(self.material, self._request.job)

    def _left_s(self) -> float:
        return self._request.deadline_s - (time.monotonic() - self._started)

    def _tell(self, phase: str, error: str = "") -> None:
        self._told_at = time.monotonic()
        self._on_progress(
            StackProgress(
                phase=phase,
                round=self._round,
                rounds=self._request.plan.most_rounds,
                ranks_done=self._done_in_round,
                ranks_expected=sum(self._expected.values()) if self._expected else None,
                elapsed_s=time.monotonic() - self._started,
                reports=tuple(self._reports),
                not_answered=tuple(self.material.not_answered),
                error=error,
            )
        )


def first_samples(hub: Hub, nodes: Sequence[str], timeout_s: float) -> list[NodeState]:
    """Wait until every node has a sample; the states of those that have none at the deadline."""
    changed = threading.Event()
    hub.subscribe(changed.set)
    deadline = time.monotonic() + timeout_s
    while True:
        views = [hub.node(node) for node in nodes]
        missing = [view.state for view in views if view.sample is None]
        left_s = deadline - time.monotonic()
        if not missing or left_s <= 0 or all(state.state in ("lost", "refused") for state in missing):
            return missing
        changed.wait(min(left_s, 0.5))
        changed.clear()
