"""Collectives over nodes: one launcher per node (active/all_reduce), all told which groups measure in which round.

The first node that can listens; the others are sent its addresses and port, so that all import torch at once. In the
search for bad nodes and links by pairs the judge says who measures with whom, the launchers stay up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mltop.probes.investigate.probing.context import END_S, Context, NodeRequests
from mltop.probes.investigate.probing.member import Member, endpoint_of, joined_sentence, readiness_of
from mltop.probes.investigate.probing.wanted import PAIR_BUDGET_S, pair_size
from mltop.probes.judge.probes.collective import merge_times
from mltop.probes.judge.probes.pairs import PairSearch
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import PairResult, ProbeEvent, RankTimes
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.receipt import Refused, admit_result

LISTEN_S = 20.0  # for the first node to listen: its agent is there, and a Python with torch is looked for
# For the launchers to meet. One that cannot reach the leader reports it within seconds; this covers slow starts of
# Python, as from a cold network file system.
JOIN_S = 30.0
REACH_S = 12.0  # for the agent of a node to answer
READY_S = 30.0  # beyond JOIN_S: for trying who reaches whom, and for importing torch
INIT_S = 10.0
SIZE_EXTRA_S = 5.0  # per size, beyond three times its budget


@dataclass(frozen=True)
class Round:
    """``groups`` of nodes measure side by side, ``budget_s`` per size and collective; ``work``: with GEMMs between."""

    groups: tuple[tuple[str, ...], ...]
    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    budget_s: float = 1.0
    work: bool = True

    @property
    def most_s(self) -> float:
        measures = len(self.sizes_bytes) * len(self.collectives)
        return INIT_S + measures * (3 * self.budget_s + SIZE_EXTRA_S)


@dataclass
class RoundResult:
    """``failures``: node → why it did not finish, "" for the node of a rank that did."""

    times: list[RankTimes] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


class Collective:
    """The launchers of one run: ``assemble``, then any number of ``measure``, then ``end``; all from one thread."""

    def __init__(self, context: Context) -> None:
        self._context, self._wanted, self._nodes = context, context.wanted, context.nodes
        self._board, self._stop = context.board, context.stop
        self._requests = NodeRequests(context, self._take, self._ended)
        self._round = 0
        self._times: list[RankTimes] = []
        self._endpoint: dict[str, Any] = {}  # of the leader
        self.members: dict[str, Member] = {}

    def assemble(self) -> tuple[str, ...]:
        """Starts the launchers. Returns the nodes that joined, in the order they were named."""
        leader = self._find_leader()
        if leader is None:
            return ()
        others = [node for node in self._nodes if node not in self.members]
        for node in others:
            self.members[node] = Member(node)
        self._requests.ask(self._options(leader), others)
        until = time.monotonic() + min(JOIN_S + READY_S, self._stop.left_s)
        given_up: set[str] = set()
        while self._waiting() and time.monotonic() < until and not self._stop.now:
            self._requests.step()
            self._give_up_unreached()
            self._go_without(leader, given_up)
            self._context.say(self._joined())
        if self._waiting() and not self._stop.cancelled.is_set():
            sentence = self._joined()
            for member in self._waiting():
                self._fail(member, sentence, stage=member.stage or "join")
        return tuple(node for node in self._nodes if node in self.members and self.members[node].usable)

    def measure(self, wanted: Round) -> RoundResult:
        """Has one round measured. Nodes whose ranks died or did not come to the end are in ``failures``; the others'
        times stand.
        """
        self._round += 1
        self._times = []
        involved = [node for group in wanted.groups for node in group]
        for node in involved:
            self.members[node].failed_ranks, self.members[node].rank_stages = {}, {}
        line: dict[str, object] = {
            "tell": "round",
            "round": self._round,
            "groups": [list(group) for group in wanted.groups],
            "ranks": {node: self.members[node].ranks for node in involved},
            "collectives": list(wanted.collectives),
            "sizes_bytes": list(wanted.sizes_bytes),
            "budget_s": wanted.budget_s,
            "work": wanted.work,
        }
        self._requests.tell(line, [node for node in self.members if self.members[node].usable])
        until = time.monotonic() + min(wanted.most_s, self._stop.left_s)
        while self._measuring(involved) and time.monotonic() < until and not self._stop.cancelled.is_set():
            self._requests.step()
            self._context.say(self._measured(involved))
        return RoundResult(self._times, self._why_not(involved, wanted))

    def end(self) -> None:
        """Ends every launcher, also one that hangs."""
        usable = [node for node, member in self.members.items() if member.usable]
        if usable and not self._stop.now:
            self._requests.tell({"tell": "end"}, usable)
            until = time.monotonic() + END_S
            while self._requests.open_nodes & set(usable) and time.monotonic() < until:
                self._requests.step()
        self._requests.cancel(END_S)

    # Before the first round.

    def _find_leader(self) -> str | None:
        """The first node that listens; those that cannot are noted as failed, each for its own reason."""
        for node in self._nodes:
            member = self.members[node] = Member(node)
            self._requests.ask(self._options(node), [node])
            limit_s = max(0.0, min(LISTEN_S, self._stop.left_s))
            until = time.monotonic() + limit_s
            while member.waiting and not self._endpoint and time.monotonic() < until and not self._stop.now:
                self._requests.step()
                self._context.say(f"{node} prepares" if len(self._nodes) > 1 else "preparing")
            if self._endpoint:
                return node
            if self._stop.cancelled.is_set():
                break
            if not member.failed:
                where = f"it is in stage '{member.stage}'" if member.stage else "nothing was heard of its probe"
                self._fail(member, f"did not listen within {limit_s:.0f} s: {where}", stage="listen")
            if self._stop.now:
                break
        return None

    def _give_up_unreached(self) -> None:
        now = time.monotonic()
        for member in self._waiting():
            phase = self._context.hub.node(member.node).state.state
            if now - member.asked_at > REACH_S and not member.joining(phase, now).reached:
                self._fail(member, f"not reached within {REACH_S:g} s")

    def _go_without(self, leader: str, given_up: set[str]) -> None:
        """A node that cannot come is not waited for: the leader is told as soon as it is known, once."""
        out = {node for node in self.members if self._is_out(node)} - given_up - {leader}
        if out:
            given_up |= out
            self._requests.tell({"tell": "without", "nodes": sorted(out)}, [leader])

    def _options(self, leader: str) -> dict[str, object]:
        wanted = self._wanted
        return {
            "backend": wanted.backend,
            "ranks": wanted.ranks,
            "cpu_ranks": wanted.ranks or (0 if len(self._nodes) == 1 else 1),
            "leader": not self._endpoint,
            "leader_node": leader,
            "addresses": self._endpoint.get("addresses", []),
            "port": self._endpoint.get("port", 0),
            "nodes": [node for node in self._nodes if not self._is_out(node)],
            "join_s": JOIN_S,
        }

    def _is_out(self, node: str) -> bool:
        return node in self.members and bool(self.members[node].failed or self.members[node].ended)

    def _waiting(self) -> list[Member]:
        return [member for member in self.members.values() if member.waiting]

    def _joined(self) -> str:
        now, hub, members = time.monotonic(), self._context.hub, self.members.values()
        nodes = [member.joining(hub.node(member.node).state.state, now) for member in members]
        return joined_sentence(nodes, now - min(member.asked_at for member in members))

    # While a round runs.

    def _measuring(self, involved: Sequence[str]) -> bool:
        return any(self.members[node].usable and self._round not in self.members[node].rounds for node in involved)

    def _measured(self, involved: Sequence[str]) -> str:
        stages = [stage for node in involved for stage in self.members[node].rank_stages.values()]
        newest = max(set(stages), key=stages.count) if stages else "init"
        return f"round {self._round}, {newest}" if len(self._nodes) > 1 and self._round > 1 else newest

    def _why_not(self, involved: Sequence[str], wanted: Round) -> dict[str, str]:
        """Node → why it did not finish: its own reason, or where its ranks were when the time was over."""
        reasons = {}
        for node in involved:
            member = self.members[node]
            if member.failed_ranks:
                reasons[node] = _of_ranks(member.failed_ranks)
            elif member.failed or member.ended:
                reasons[node] = member.failed or "its probe ended"
            elif self._round not in member.rounds:
                stages = ", ".join(f"rank {rank}: {stage}" for rank, stage in sorted(member.rank_stages.items()))
                reasons[node] = f"not done within {wanted.most_s:.0f} s ({stages or 'no rank began'})"
        return reasons

    # What arrives.

    def _take(self, node: str, event: ProbeEvent) -> None:
        member = self.members[node]
        if event.event == "listening":
            self._endpoint = self._endpoint or endpoint_of(event.data, alone=len(self._nodes) == 1)
        elif event.event == "ready":
            member.ready = readiness_of(event.data)
        elif event.event == "round":
            member.rounds.add(int(event.data.get("round", 0)))
        elif event.event == "times":
            self._take_times(node, event)
        elif event.event == "stage":
            if event.rank is not None:
                member.rank_stages[event.rank] = event.stage
            else:
                member.enter(event.stage)
            self._board.take(node, event)
        elif event.event in ("failed", "refused"):
            self._take_failure(member, event)
        else:
            self._board.take(node, event)

    def _take_failure(self, member: Member, event: ProbeEvent) -> None:
        """Notes the failure of a rank, of nodes that did not come or cannot speak for themselves, or of the node."""
        if isinstance(event.data.get("missing"), list):
            self._take_missing(event)
            return
        member = self.members.get(str(event.data.get("node")), member)
        if event.rank is not None or "round" in event.data:  # it stays for later rounds
            member.failed_ranks[-1 if event.rank is None else event.rank] = event.why
        else:
            member.failed = member.failed or event.why
        self._board.fail(member.node, event)

    def _take_missing(self, event: ProbeEvent) -> None:
        """The leader has begun without these."""
        for name in event.data["missing"]:
            other = self.members.get(str(name))
            if other is not None and not other.failed:
                self._fail(other, event.why, event.fix, stage=event.stage)

    def _take_times(self, node: str, event: ProbeEvent) -> None:
        try:
            times = msgspec.convert(event.data, RankTimes)
            admit_result(times)
        except (msgspec.ValidationError, Refused) as error:
            self._board.fail_node(node, f"its times cannot be read: {error}")
            return
        times.node = node
        if times.round == self._round:
            self._times.append(times)

    def _ended(self, node: str, why: str, fix: str) -> None:
        member = self.members[node]
        member.ended = True
        if why and not member.failed and not self._stop.now:
            self._fail(member, why, fix)

    def _fail(self, member: Member, why: str, fix: str = "", stage: str = "") -> None:
        member.failed = why
        self._board.fail_node(member.node, why, fix, stage=stage or member.stage)


def search(collective: Collective, context: Context, nodes: Sequence[str], on_cpu: bool) -> list[PairResult]:
    """Rounds of pairs until the judge knows enough; what was measured until then when it has to end early."""
    wanted, stop = context.wanted, context.stop
    choice = PairSearch(tuple(nodes), round_robin=wanted.round_robin)
    size = pair_size(wanted, on_cpu)
    results: list[PairResult] = []
    number = 0
    while not stop.now:
        pairs = choice.next_round(results)
        if not pairs:
            break
        number += 1
        context.say(f"round {number}: {len(pairs)} pair{'s' * (len(pairs) != 1)}")
        wanted_round = Round(tuple(pairs), ("all-reduce",), (size,), PAIR_BUDGET_S, work=False)
        measured = collective.measure(wanted_round)
        if stop.cancelled.is_set():
            break
        results.extend(pair_results(number, pairs, size, measured))
    return results


def pair_results(
    number: int, pairs: Sequence[tuple[str, str]], size_bytes: int, measured: RoundResult
) -> list[PairResult]:
    """One result for each pair: its bus bandwidth, or why there is none."""
    of_pair: dict[int, list[RankTimes]] = {}
    for times in measured.times:
        of_pair.setdefault(times.group, []).append(times)
    results = []
    for group, pair in enumerate(pairs):
        why = "; ".join(f"{node}: {measured.failures[node]}" for node in pair if measured.failures.get(node))
        merged = merge_times(of_pair.get(group, []), "")
        busbw = merged[0].busbw_bytes_per_s if merged and not why else None
        if merged and merged[0].wrong:
            why = f"{merged[0].wrong} wrong results"
        results.append(
            PairResult(number, list(pair), size_bytes, busbw, why or ("" if busbw else "nothing was measured"))
        )
    return results


def _of_ranks(whys: Mapping[int, str]) -> str:
    """ "ranks 3, 5: died: killed (SIGKILL); rank 4: stopped …"; of rank -1, which is nobody's, the reason alone."""
    by_why = grouped(whys, whys.__getitem__)
    return "; ".join(why if -1 in ranks else f"{ranks_text(ranks)}: {why}" for why, ranks in by_why.items())
