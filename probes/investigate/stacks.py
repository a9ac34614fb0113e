"""One stack dump over all ranks of all nodes: rounds of dumps, a verdict after each, an end at the deadline.

No node holds up the others: those that are reached are dumped at once, those that come later join the running
round, and the rest is waited for as long as `Patience` says. What is known so far is judged and told meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mltop.probes.investigate.history import Histories
from mltop.probes.investigate.material import Material, judge
from mltop.probes.investigate.patience import Arrivals, Patience
from mltop.probes.investigate.progress import FINISHED, End, Run, StackPhase, StackProgress
from mltop.probes.investigate.proofs import Proofs
from mltop.probes.investigate.rounds import STUCK_GAPS_S, TAIL_ROUNDS, Plan, Round, judge_due, next_pause, random_unit
from mltop.probes.judge.values import known
from mltop.probes.model import JobKey, JobReport, NodeState, RankStacks
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.sharing import Sharing
from mltop.probes.reach.view import NodeView

GONE_S = 10.0  # without a sample
TELL_S = 0.2  # progress is reported about this often, also when nothing answers
PARTIAL_S = 1.5  # nothing new for so long: what is known is judged while the rest is waited for
# A node that is slower than this is not waited for: it goes on, and its answer counts in a later round.
PATIENCE = Patience(connecting_s=4.0, lost_s=2.0, live_s=3.0)
ALL_THERE = Patience(connecting_s=1.0, lost_s=0.5, live_s=3.0)  # every rank of every job has answered
LATER_ROUNDS = Patience(connecting_s=0.0, lost_s=0.0, live_s=3.0)  # who comes now is asked, but not waited for
# Where no round follows: py-spy's own limit is 3 s and one retry, and more than 8 ranks take turns.
ONLY_ROUND = Patience(connecting_s=4.0, lost_s=2.0, live_s=15.0)
# While no rank was seen: nothing can be judged without those that may still come, so the deadline is theirs.
NOBODY_YET = Patience(connecting_s=math.inf, lost_s=2.0, live_s=15.0)
SLOW_S = 8.0  # after being asked, likewise where others were waited for or watched meanwhile
HISTORIES_S = 1.0  # for what nodes have kept of the last minutes, once the ranks have answered
REMEMBER_S = 0.05  # how long the history is read at a time
JUDGE_LATE_S = 2.0  # after the deadline, at most
# From a rank's timeout in its log until its flight record is there. torch looks up the symbols of its libraries before
# it writes: 11 s on a busy machine with torch 2.13 for CPUs.
RECORDS_S = 6.0
RECORDS_MOST_S = 20.0
RECORDS_PAUSE_S = 3.0  # between two looks for them
LATE_RECORDS_S = 5.0  # for an agent to answer one
MOST_OF_A_NODE_BYTES = 128 * 1024 * 1024  # of JSON, in all rounds: 16 of 8 ranks have 3 MB


@dataclass(frozen=True)
class StackRequest:
    """What to dump. ``job``: only this one; ``nodes`` empty: all. ``deadline_s`` is for the whole of it.

    ``pids``: these processes of the nodes instead of all ranks. ``unassigned``: processes of no job, too, each as a job
    of its own; a run that finds no rank goes over to them by itself. ``rhythms``: as of Material.
    """

    nodes: tuple[str, ...] = ()
    job: str | None = None
    plan: Plan = field(default_factory=Plan)
    native: bool = False
    ints: bool = True
    raw: bool = False
    pids: tuple[int, ...] = ()
    unassigned: bool = False
    deadline_s: float = 30.0
    rhythms: Mapping[JobKey, float] = field(default_factory=dict)


def is_gone(state: NodeState) -> bool:
    """Whether the node went away, rather than being slow."""
    return state.state in ("lost", "refused") or (state.state == "stale" and (state.age_s or 0.0) > GONE_S)


def _stands_still(report: JobReport) -> bool:
    """Whether the job stands still, or may: every rank waits, for too short a time to tell it from a slow step."""
    unsure = report.verdict.kind == "unclear" and bool(report.classes)
    return report.verdict.stands_still or (unsure and all(ranks.waiting_in for ranks in report.classes))


class StackRun(Run):
    """A running dump. ``material`` grows with every round."""

    name = "dump"

    def __init__(
        self,
        hub: Hub,
        request: StackRequest,
        on_progress: Callable[[StackProgress], None],
        on_round: Callable[[StackRun], None] = lambda _: None,
    ) -> None:
        super().__init__(request.deadline_s)
        self._hub = hub
        self._request = request
        self._nodes = request.nodes or tuple(view.node for view in hub.view().nodes)
        self._on_progress = on_progress
        self._on_round = on_round
        self._now: Round | None = None
        self._judged_dumps, self._judge_took_s = -1, 0.0
        self._answered: set[str] = set()
        self._arrivals = Arrivals(self._stop.began)
        self._told_at = 0.0
        self._round_starts: list[int] = []  # where each round begins in the material's dumps
        self._aside: list[RankStacks] = []  # rounds from before the job stopped
        self._rounds_aside = self._raw_after = 0
        self._sharing = Sharing()
        self._seen: dict[JobKey, set[int]] = {}  # ranks dumped
        self._sizes: dict[JobKey, int] = {}  # world sizes
        self._bytes_of: dict[str, int] = {}  # node → of its dumps
        self._proofs = Proofs(hub, request.ints)
        self._histories = Histories(hub, self._nodes)
        self._asked_records = self._stop.began
        self.rounds_done = 0
        self.reports: list[JobReport] = []
        self.material = Material(rhythms=request.rhythms)

    def _work(self) -> None:
        try:
            self._dump()
        finally:
            self._histories.close()

    def _dump(self) -> None:
        while True:
            self.rounds_done += 1
            self._round_starts.append(len(self.material.dumps))
            self._one_round()
            if self._finds_only_unassigned():
                self._request = replace(self._request, unassigned=True)
                self._one_round()
            done = self.rounds_done - self._rounds_aside
            if self.cancelled or judge_due(self._request.plan, done, self.reports, self._judge_took_s):
                self._tell("judging")
                self._judge()
            self._on_round(self)
            if self.cancelled:
                break
            self._prove()
            pause = next_pause(self._request.plan, done, self.reports, random_unit())
            if pause is None and self._stopped_meanwhile():
                pause = STUCK_GAPS_S[0]
            if pause is None or self._stop.left_s < pause + 0.5:
                break
            self._tell("watching")
            if self._stop.cancelled.wait(pause):
                break
        self._late_answers()
        if self._late_records() or self._judged_dumps != len(self.material.dumps):
            self._judge()
        self._take_back()

    def _late_answers(self) -> None:
        """Takes in answers of nodes that live and are slow: what they may need is granted before the end."""
        turn = self._now
        assert turn is not None
        while turn.slow(SLOW_S) and not self._stop.now:
            turn.step()
            self._answered |= turn.done
            if time.monotonic() - self._told_at > TELL_S:
                self._tell("dumping")
        turn.cancel()
        self._proofs.cancel()

    def _late_records(self) -> bool:
        """Takes in records that ranks have written since they were asked for: a watchdog reports a timeout first, and
        writes what it knows seconds later. Whether there are any.
        """
        verdicts = [report.verdict for report in self.reports]
        may_stand = any(verdict.kind not in ("moving", "straggler") and not verdict.ended for verdict in verdicts)
        if self.cancelled or self._request.pids or self._request.unassigned or not may_stand:
            return False
        # How long before its node's newest sample a rank wrote last into its log that it had waited in vain.
        samples = known(self._hub.node(node).sample for node in self._answered)
        ago = (sample.sampled_at - line.at for sample in samples for line in sample.log_lines if line.kind == "timeout")
        told_s = min((ago_s for ago_s in ago if ago_s < RECORDS_MOST_S), default=None)
        if told_s is None:
            return time.monotonic() - self._asked_records > RECORDS_S and self._ask_for_records()
        until = time.monotonic() + min(RECORDS_MOST_S - told_s, self._stop.left_s - LATE_RECORDS_S)
        self._stop.cancelled.wait(max(0.0, min(RECORDS_S - told_s, until - time.monotonic())))
        came = False
        while not self._stop.now:
            more = self._ask_for_records()
            came = came or more
            if (came and not more) or time.monotonic() > until:
                break
            self._stop.cancelled.wait(RECORDS_PAUSE_S)
        return came

    def _ask_for_records(self) -> bool:
        """Takes in what ranks have written since the dumps began. Whether any of it is new."""
        before = dict(self.material.records)
        newer_s = time.monotonic() - self._asked_records + RECORDS_S
        args = {"newer_s": newer_s, "job": self._request.job or ""}
        pending = self._hub.request("records", args, sorted(self._answered))
        quiet_at = time.monotonic() + LATE_RECORDS_S
        while pending.open_nodes and not self._stop.now and time.monotonic() < quiet_at:
            for answer in pending.answers(TELL_S):
                quiet_at = time.monotonic() + LATE_RECORDS_S
                if answer.message.records is not None:
                    self._take_records(answer.message.records, answer.size_bytes)
        pending.cancel()
        return self.material.records != before

    def _prove(self) -> None:
        """Has ranks of which Python says nothing looked at below it, while the next round is waited for.

        Whether a job moves is seen in the second round, or the samples before have told that it does not.
        """
        first = self.rounds_done == 1
        reports = [report for report in self.reports if _stands_still(report) or not first]
        if not self._request.native and self._request.plan.most_rounds > self.rounds_done:
            self._proofs.ask(self.material.dumps[self._round_starts[-1] :], reports)

    def _stopped_meanwhile(self) -> bool:
        """Whether a job that moved stands still in the last rounds: it hung while it was watched.

        Then the earlier rounds are put aside and it is watched as long as one that stood still from the start.
        """
        if self._request.plan.rounds is not None or self._aside or self.rounds_done <= TAIL_ROUNDS:
            return False
        start = self._round_starts[-TAIL_ROUNDS]
        tail = replace(self.material, dumps=self.material.dumps[start:])
        if not any(map(_stands_still, judge(tail, self._request.job, self._judge_until))):
            return False
        self._aside, self.material.dumps = self.material.dumps[:start], tail.dumps
        self._rounds_aside = self._raw_after = self.rounds_done
        return True

    def _take_back(self) -> None:
        """Counts the earlier rounds again when the job moved again: it was no hang."""
        if self._aside and not any(map(_stands_still, self.reports)):
            self.material.dumps = self._aside + self.material.dumps
            self._judge()
            self._on_round(self)

    def _one_round(self) -> None:
        """Dumps every rank once and takes in the answers as they come."""
        first = self.rounds_done == self._raw_after + 1
        args: dict[str, object] = {
            "native": self._request.native,
            "ints": self._request.ints,
            "raw": self._request.raw and first,
            "job": self._request.job or "",
            "records": first or not self._answered.issuperset(self._nodes),
        }
        if self._request.pids:
            args["pids"] = list(self._request.pids)
        if self._request.unassigned:
            args["unassigned"] = True
        nodes = [node for node in self._nodes if not self._is_too_much(node)]
        turn = self._now = Round(
            self._hub, nodes, args, self._arrivals, take=self._take, take_records=self._take_records, earlier=self._now
        )
        self._proofs.take(self._take)
        while not self._stop.now:
            turn.step()
            self._proofs.take(self._take)
            self._answered |= turn.done
            if not self._waits_for(turn):
                break
            self._remember(0.0, REMEMBER_S)
            if turn.quiet_s() > PARTIAL_S and self._judged_dumps != len(self.material.dumps):
                self._judge()
                self._tell("dumping")
            elif time.monotonic() - self._told_at > TELL_S:
                self._tell("dumping" if self._arrivals.reached else "connecting")

    def _finds_only_unassigned(self) -> bool:
        """Whether no rank of any job was found where processes of no job run."""
        request = self._request
        if self.rounds_done > 1 or self.material.dumps or request.job or request.pids or request.unassigned:
            return False
        if self._stop.now:
            return False
        samples = [self._hub.node(node).sample for node in self._nodes]
        return any(s.unassigned for s in samples if s is not None) and not any(
            s.ranks for s in samples if s is not None
        )

    def _waits_for(self, turn: Round) -> list[NodeView]:
        """The nodes to wait for. One that did not answer in the first round is asked again, but holds up nobody."""
        if self.rounds_done > 1:
            return [view for view in turn.awaited(LATER_ROUNDS) if view.node in self._answered]
        if not self.material.dumps:
            return turn.awaited(NOBODY_YET)
        if self._request.plan.rounds == 1:
            return turn.awaited(ONLY_ROUND)
        all_there = bool(self._sizes) and all(len(self._seen[job]) >= size for job, size in self._sizes.items())
        return turn.awaited(ALL_THERE if all_there else PATIENCE)

    def _is_too_much(self, node: str) -> bool:
        return self._bytes_of.get(node, 0) > MOST_OF_A_NODE_BYTES

    def _take(self, stacks: RankStacks, size_bytes: int) -> None:
        self._bytes_of[stacks.node] = self._bytes_of.get(stacks.node, 0) + size_bytes
        if self._is_too_much(stacks.node):
            return
        self._sharing.stacks(stacks)
        self.material.dumps.append(stacks)
        sample = stacks.before
        if sample is not None and sample.world_size and sample.rank is not None:
            job = sample.job_key
            self._seen.setdefault(job, set()).add(sample.rank)
            self._sizes[job] = max(sample.world_size, self._sizes.get(job, 0))

    def _take_records(self, records: RankRecords, size_bytes: int) -> None:
        self._bytes_of[records.node] = self._bytes_of.get(records.node, 0) + size_bytes
        if not self._is_too_much(records.node):
            self.material.records[records.node, records.pid] = records

    def _judge(self) -> None:
        assert self._now is not None
        began = time.monotonic()
        self._judged_dumps = len(self.material.dumps)
        views = [self._hub.node(node) for node in self._nodes]
        self.material.nodes = [view.state for view in views]
        # Of a node that was never reached there is none: its defaults would say how.
        reached = [view for view in views if view.connection.connect_s is not None]
        self.material.connections = {view.node: view.connection for view in reached}
        self.material.partial = len(self._nodes) < len(self._hub.view().nodes)
        gone = {view.node for view in views if is_gone(view.state)}
        # A node that was slow in one round only has answered: its ranks are known. One that went away meanwhile has
        # not: what its ranks do since is unknown.
        self.material.not_answered = [
            state for state in self._now.silent() if state.node not in self._answered or state.node in gone
        ]
        too_much = f"it sent more than {MOST_OF_A_NODE_BYTES / 1e6:.0f} MB of stacks: the rest is not taken"
        self.material.not_answered += [
            NodeState(node, "live", too_much) for node in filter(self._is_too_much, self._nodes)
        ]
        self._remember(HISTORIES_S, math.inf)
        self.material.judged_until = time.time()
        for view in views:
            self._add_newest(view)
        self.reports = judge(self.material, self._request.job, self._judge_until)
        self._judge_took_s = time.monotonic() - began

    def _remember(self, wait_s: float, most_s: float) -> None:
        """Reads what the last minutes say of the ranks: once for each node, in the time that others need to answer."""
        new = self._arrivals.reached - self.material.samples.keys()
        self._histories.collect(new if wait_s else (), wait_s)
        until = time.monotonic() + most_s
        for node in new:
            if self._histories.has(node):
                self.material.samples[node] = [self._sharing.ranks_of(sample) for sample in self._histories.of(node)]
            if time.monotonic() > until:
                return

    def _add_newest(self, view: NodeView) -> None:
        """Keeps the newest sample whole, of the one before it only the ranks."""
        sample, samples = view.sample, self.material.samples.setdefault(view.node, [])
        if sample is None:
            return
        if samples and samples[-1].sampled_at >= sample.sampled_at:
            samples.pop()
        elif samples:
            samples[-1] = self._sharing.ranks_of(samples[-1])
        samples.append(sample)

    @property
    def _judge_until(self) -> float:
        """Until when, in monotonic s, jobs are judged: what came just before the deadline still is."""
        return self._stop.began + self._stop.deadline_s + JUDGE_LATE_S

    def _tell_end(self, end: End) -> None:
        self._tell(end)

    def _tell(self, phase: StackPhase) -> None:
        self._told_at = time.monotonic()
        turn = self._now
        over = phase in FINISHED
        waited_for = {view.node for view in self._waits_for(turn)} if turn is not None and not over else set()
        self._on_progress(
            StackProgress(
                phase=phase,
                round=self.rounds_done,
                rounds=self._request.plan.most_rounds,
                ranks_done=sum(turn.came.values()) if turn is not None else 0,
                ranks_expected=sum(turn.expected.values()) if turn is not None and turn.expected else None,
                elapsed_s=self._told_at - self._stop.began,
                reports=tuple(self.reports),
                not_answered=tuple(state for state in self.material.not_answered if state.node not in waited_for),
                error=self.error,
                nodes_total=len(self._nodes),
                nodes_reached=len(self._arrivals.reached),
                nodes_answered=len(self._answered),
            )
        )
