"""Collectives over nodes: one launcher per node (active/all_reduce/node.py), which meet here and nowhere else.

The first node that listens says by which network the others are to be reached: they are told its address, so that all
import torch at once. When all have, they try to connect to each other; those that are to blame for failed connections
are left out, the others go on with the store of one of them. A round that fails is stopped in its group, and what all
ranks were doing tells who is to blame. In the search for bad nodes and links by pairs the judge says who measures with
whom, the launchers stay up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import msgspec

from mltop.probes.investigate.probing.board import MOST_CHARS
from mltop.probes.investigate.probing.context import END_S, Context, NodeRequests
from mltop.probes.investigate.probing.member import Member, joined_sentence
from mltop.probes.investigate.probing.wanted import PAIR_BUDGET_S, pair_size
from mltop.probes.judge.probes.blame import Cause, accused, causes, is_clear, targets
from mltop.probes.judge.probes.collective import merge_times
from mltop.probes.judge.probes.pairs import PairSearch
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import PairResult, ProbeEvent, RankState, RankTimes
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.receipt import MOST_PROBE_RANKS, MOST_RANK_NUMBERS, Refused, admit_result
from mltop.probes.model.text import plain_text

LISTEN_S = 20.0  # for the first node to listen: its agent is there, and a Python with torch is looked for
# For the launchers to meet. One that cannot reach the leader reports it within seconds; this covers slow starts of
# Python, as from a cold network file system.
JOIN_S = 30.0
REACH_S = 12.0  # for the agent of a node to answer
REACHED_S = 10.0  # for all to say whom they reach: some seconds after they know it, where a machine is busy
READY_S = 30.0  # behind the first node that has imported torch, and then behind the first whose ranks are there
STATES_S = 3.0  # for a launcher to say what its ranks were doing
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


@dataclass
class _Trouble:
    """A group whose round has failed: what each of its nodes says that its ranks were doing, until ``until``."""

    nodes: Sequence[str]
    until: float
    states: dict[str, list[RankState]] = field(default_factory=dict)
    over: bool = False


_JOIN_FIX = (
    "allow TCP between the nodes on all ports: gloo and NCCL choose free ones; NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) "
    "on the nodes names another network"
)


class Collective:
    """The launchers of one run: ``assemble``, then any number of ``measure``, then ``end``; all from one thread."""

    def __init__(self, context: Context) -> None:
        self._context, self._wanted, self._nodes = context, context.wanted, context.nodes
        self._board, self._stop = context.board, context.stop
        self._requests = NodeRequests(context, self._take, self._ended)
        self._round = 0
        self._times: list[RankTimes] = []
        self._groups: Sequence[Sequence[str]] = ()
        self._troubles: dict[int, _Trouble] = {}  # of this round, by group
        self._store = ""  # whose launcher has it
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
        self._leave_out(JOIN_S, lambda member: member.place is None)
        self._leave_out(READY_S, lambda member: member.stage != "join")
        for node, why in self._blamed_for_unreached([member.node for member in self._waiting()]).items():
            self._fail(self.members[node], why, _JOIN_FIX, stage="join")
        self._go()
        self._leave_out(READY_S, lambda member: not member.ready)
        return tuple(node for node in self._nodes if node in self.members and self.members[node].usable)

    def measure(self, wanted: Round) -> RoundResult:
        """Has one round measured. Nodes whose ranks died or did not come to the end are in ``failures``; the others'
        times stand.
        """
        self._round += 1
        self._times, self._troubles, self._groups = [], {}, wanted.groups
        involved = [node for group in wanted.groups for node in group]
        for node in involved:
            self.members[node].failed_ranks, self.members[node].rank_stages = {}, {}
        ranks = {node: self.members[node].ranks for node in involved}
        line = {"tell": "round", "round": self._round, "ranks": ranks, **asdict(wanted)}
        self._requests.tell(line, [node for node in self.members if self.members[node].usable])
        until = time.monotonic() + min(wanted.most_s, self._stop.left_s)
        while not self._stop.cancelled.is_set():
            here = [member for member in map(self.members.__getitem__, involved) if member.usable]
            if all(self._round in member.rounds for member in here):
                break
            late = time.monotonic() > until
            if late and all(trouble.over for trouble in self._troubles.values()):
                break
            self._requests.step()
            for group, trouble in tuple(self._troubles.items()):  # more may come meanwhile
                self._conclude(group, trouble)
            self._context.say(self._measured(involved))
        return RoundResult(self._times, self._why_not(involved, wanted))

    def end(self) -> None:
        """Ends every launcher, also one that hangs."""
        self._store = ""
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
            while member.waiting and not member.place and time.monotonic() < until and not self._stop.now:
                self._requests.step()
                self._context.say(f"{node} prepares" if len(self._nodes) > 1 else "preparing")
            if member.place:
                return node
            if self._stop.cancelled.is_set():
                break
            if not member.failed:
                where = f"it is in stage '{member.stage}'" if member.stage else "nothing was heard of its probe"
                self._fail(member, f"did not listen within {limit_s:.0f} s: {where}", stage="listen")
            if self._stop.now:
                break
        return None

    def _leave_out(self, limit_s: float, is_late: Callable[[Member], bool]) -> None:
        """Waits for those that are late. The others go on without them once the limit is over, counted from the first
        that is not late: what is slow for all, as torch on a cold file system, ends with the nodes' own deadlines.
        """
        until = time.monotonic() + min(limit_s, self._stop.left_s)
        while (late := [*filter(is_late, self._waiting())]) and time.monotonic() < until and not self._stop.now:
            if not any(not is_late(member) and not self._is_out(node) for node, member in self.members.items()):
                until = time.monotonic() + min(limit_s, self._stop.left_s)
            self._requests.step()
            self._give_up_unreached()
            self._context.say(self._joined())
        if late and not self._stop.cancelled.is_set():
            sentence = self._joined(is_late)
            for member in late:
                self._fail(member, sentence, stage=member.stage or "join")

    def _blamed_for_unreached(self, nodes: Sequence[str]) -> dict[str, str]:
        """Has them try to connect to each other: who is to blame for the connections that fail, and why."""
        places = {node: place for node in nodes if (place := self.members[node].place) is not None}
        if len(places) < 2:
            return {}
        for node in places:
            self.members[node].cannot = None
            to = {other: [places[other].address, places[other].port] for other in targets(list(places), node)}
            self._requests.tell({"tell": "reach", "nodes": to}, [node])
        until = time.monotonic() + min(REACHED_S, self._stop.left_s)
        while time.monotonic() < until and not self._stop.now:
            if all(self._is_out(node) or self.members[node].cannot is not None for node in places):
                break
            self._requests.step()
        cannot = {node: reasons for node in places if (reasons := self.members[node].cannot)}
        told = {node: {to: why for to, why in reasons.items() if to in places} for node, reasons in cannot.items()}
        return accused(told, {node: place.address for node, place in places.items()})

    def _go(self) -> None:
        """Those that are here begin, with the store of the first. Who is not counts as many ranks as the largest."""
        here = {member.node: place for member in self._waiting() if (place := member.place) is not None}
        if not here or self._stop.now:
            return
        self._store = next(iter(here))
        first, most = 0, max(place.ranks for place in here.values())
        for node in self._nodes:
            if node in here:
                store = [here[self._store].address, here[self._store].port]
                line: dict[str, object] = {"tell": "go", "store": store, "serves": node == self._store}
                self._requests.tell({**line, "first_rank": first}, [node])
            first += here[node].ranks if node in here else most

    def _give_up_unreached(self) -> None:
        now = time.monotonic()
        for member in self._waiting():
            phase = self._context.hub.node(member.node).state.state
            if now - member.asked_at > REACH_S and phase not in ("live", "stale"):
                self._fail(member, f"not reached within {REACH_S:g} s")

    def _options(self, leader: str) -> dict[str, object]:
        wanted, place = self._wanted, self.members[leader].place
        return {
            "backend": wanted.backend,
            "ranks": wanted.ranks,
            "cpu_ranks": wanted.ranks or (0 if len(self._nodes) == 1 else 1),
            "alone": len(self._nodes) == 1,
            "leader_address": place.address if place else "",
            "join_s": JOIN_S,
        }

    def _is_out(self, node: str) -> bool:
        return bool(self.members[node].failed or self.members[node].ended)

    def _waiting(self) -> list[Member]:
        return [member for member in self.members.values() if member.waiting]

    def _joined(self, is_late: Callable[[Member], bool] = lambda member: not member.ready) -> str:
        now, hub, members = time.monotonic(), self._context.hub, self.members.values()
        nodes = [
            replace(member.joining(hub.node(member.node).state.state, now), joined=not is_late(member))
            for member in members
        ]
        return joined_sentence(nodes, now - min(member.asked_at for member in members))

    # While a round runs.

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
                # "ranks 3, 5: died: killed (SIGKILL)"; of rank -1, which is nobody's, the reason alone.
                by_why = grouped(member.failed_ranks, member.failed_ranks.__getitem__).items()
                reasons[node] = "; ".join(why if -1 in of else f"{ranks_text(of)}: {why}" for why, of in by_why)
            elif member.failed or member.ended:
                reasons[node] = member.failed or "its probe ended"
            elif self._round not in member.rounds:
                stages = ", ".join(f"rank {rank}: {stage}" for rank, stage in sorted(member.rank_stages.items()))
                reasons[node] = f"not done within {wanted.most_s:.0f} s ({stages or 'no rank began'})"
        return reasons

    # When it fails.

    def _stop_group(self, node: str) -> None:
        """The first trouble of a group ends its round everywhere; later ones are its consequences."""
        group = next((number for number, nodes in enumerate(self._groups) if node in nodes), None)
        if group is not None and group not in self._troubles and self._round not in self.members[node].rounds:
            nodes = self._groups[group]
            self._troubles[group] = _Trouble(nodes, time.monotonic() + STATES_S)
            here = [node for node in nodes if not self._is_out(node)]
            self._requests.tell({"tell": "stop", "round": self._round, "group": group}, here)

    def _take_states(self, member: Member, event: ProbeEvent) -> None:
        trouble = self._troubles.get(event.data.get("group", -1))
        if trouble is None or event.data.get("round") != self._round:
            return
        states = msgspec.convert(event.data.get("states"), list[RankState])[:MOST_PROBE_RANKS]
        for state in states:
            if not 0 <= state.rank <= MOST_RANK_NUMBERS:
                raise ValueError(f"it has a rank {state.rank}")
            state.node = member.node
            for name in ("stage", "why", "printed"):
                setattr(state, name, plain_text(getattr(state, name), MOST_CHARS))
        trouble.states[member.node] = states

    def _conclude(self, group: int, trouble: _Trouble) -> None:
        """Once all have answered, or it is too late: who is to blame."""
        open_nodes = [node for node in trouble.nodes if node not in trouble.states and not self._is_out(node)]
        if trouble.over or (open_nodes and time.monotonic() < trouble.until):
            return
        trouble.over = True
        gone = {node: f"{node} does not answer: its launcher or its network is stuck" for node in open_nodes}
        gone |= {node: f"{node} is gone: its launcher has ended" for node in trouble.nodes if self._is_out(node)}
        states = [state for of_node in trouble.states.values() for state in of_node]
        if not is_clear(states, gone):
            gone = self._blamed_for_unreached(trouble.nodes)
        for cause in causes(states, gone):
            self._blame(cause, group, trouble)

    def _blame(self, cause: Cause, group: int, trouble: _Trouble) -> None:
        """It stays for later rounds. What concerns no node is said of the first that is here."""
        if cause.node and cause.rank is None and self.members[cause.node].failed:
            return  # which is known
        member = self.members[cause.node or next((n for n in trouble.nodes if not self._is_out(n)), trouble.nodes[0])]
        member.failed_ranks[-1 if cause.rank is None else cause.rank] = cause.why
        where = {"round": self._round, "group": group}
        failed = ProbeEvent(
            "failed", rank=cause.rank, stage=cause.stage, why=cause.why, fix=cause.fix, data=dict(where)
        )
        self._board.fail(member.node, failed)
        for state in trouble.states.get(cause.node, ()):
            if state.rank == cause.rank and state.printed:
                self._board.take(cause.node, ProbeEvent("note", rank=cause.rank, text=state.printed))

    # What arrives.

    def _take(self, node: str, event: ProbeEvent) -> None:
        member = self.members[node]
        if event.event in ("listening", "reached", "ready", "round"):
            member.take(event)
        elif event.event == "trouble":
            if event.data.get("round") == self._round:
                self._stop_group(node)
        elif event.event == "states":
            self._take_states(member, event)
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
        """Of a rank or in a round: it stays for later rounds; or of the node."""
        if event.rank is not None or "round" in event.data:
            member.failed_ranks[-1 if event.rank is None else event.rank] = event.why
        else:
            self._out(member, event.why)
        self._board.fail(member.node, event)

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
        elif not member.failed and self._store:
            self._out(member, "its probe ended")

    def _fail(self, member: Member, why: str, fix: str = "", stage: str = "") -> None:
        self._out(member, why)
        self._board.fail_node(member.node, why, fix, stage=stage or member.stage)

    def _out(self, member: Member, why: str) -> None:
        """It takes no part any more; without the store nobody does."""
        member.failed = member.failed or why
        self._stop_group(member.node)
        if member.node == self._store and not self._stop.now:
            self._store = ""
            for other in [other for other in self.members.values() if not self._is_out(other.node)]:
                self._fail(other, f"{member.node}, which has the store, is gone: {member.failed}")


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
