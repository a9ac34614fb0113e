"""Step 0: which ranks should be there, which are, and which are gone. Unseen is not gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from mltop.probes.judge.evidence import JobEvidence, RankSeen
from mltop.probes.judge.fold import Ranges, fold, ranks_text
from mltop.probes.judge.frames import UserFrames
from mltop.probes.judge.view import RankView, is_dead, view_of
from mltop.probes.model import Gap, RankSample, RankStacks

MOST_ON_ONE_MACHINE = 4096  # ranks: a job that claims to have more on one machine is not believed
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True)
class Absent:
    """A rank that a watched machine should run and does not. ``pid`` None: never seen, or unclear which."""

    rank: int
    node: str
    pid: int | None
    reason: str


@dataclass
class Roster:
    """``silent``: ranks on nodes that did not answer; ``unseen``: numbers on machines that nobody watches."""

    world_size: int | None
    views: list[RankView]
    gone: list[Absent] = field(default_factory=list)
    silent: list[RankView] = field(default_factory=list)
    unseen: Ranges = field(default_factory=Ranges)
    twice: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def read_roster(evidence: JobEvidence) -> Roster:
    """Match dumps to ranks, take out the dead, and name the numbers that nothing was seen of."""
    views = _views(evidence)
    silent_nodes = set(evidence.nodes_missing)
    alive, dead, silent = [], [], []
    for view in views:
        if _is_gone(view):
            dead.append(view)
        elif view.node in silent_nodes and not view.rounds:
            silent.append(view)
        else:
            alive.append(view)
    samples = [(view.node, view.seen.sample) for view in views]
    roster = Roster(world_size_of(sample for _, sample in samples), _without_wrappers(alive), silent=silent)
    counts = Counter(view.rank for view in roster.views if view.rank is not None)
    roster.twice = sorted(rank for rank, count in counts.items() if count > 1)
    _Search(roster, dead, samples, silent_nodes).run()
    _note_gaps(roster, evidence)
    return roster


def world_size_of(samples: Iterable[RankSample]) -> int | None:
    """The world size that most ranks name, None when none does."""
    sizes = Counter(sample.world_size for sample in samples if sample.world_size)
    return sizes.most_common(1)[0][0] if sizes else None


def is_loopback(address: str | None) -> bool:
    return address is not None and (address in ("localhost", "::1") or address.startswith("127."))


def _views(evidence: JobEvidence) -> list[RankView]:
    dumps: dict[tuple[str, int], list[RankStacks]] = {}
    for stacks in evidence.dumps:
        dumps.setdefault((stacks.node, stacks.pid), []).append(stacks)
    users = UserFrames()
    views = [view_of(seen, dumps.pop((seen.node, seen.sample.pid), []), users) for seen in evidence.roster]
    for (node, pid), rounds in dumps.items():
        sample = next((found for stacks in rounds for found in (stacks.after, stacks.before) if found), None)
        views.append(view_of(RankSeen(node, sample or RankSample(pid, rounds[0].rank)), rounds, users))
    views.sort(key=lambda view: (view.rank is None, view.rank or 0, view.node, view.pid))
    return views


def _is_gone(view: RankView) -> bool:
    if view.seen.gone or view.states[-1] in _DEAD_STATES or view.seen.sample.state in _DEAD_STATES:
        return True
    last = view.rounds[-1].digests if view.rounds else []
    return any(digest.child_of is None and is_dead(digest) for digest in last)


def _without_wrappers(views: list[RankView]) -> list[RankView]:
    """A launcher's shell may carry its rank's environment: the child with the same number is the rank."""
    pids = {(view.node, view.pid): view.rank for view in views}

    def wraps(view: RankView) -> bool:
        return view.rank is not None and any(
            pids.get((view.node, child), -1) == view.rank for child in view.seen.sample.children
        )

    return [view for view in views if not wraps(view)]


class _Search:
    """Looks for the numbers that no live process has, from the surest to the least sure reason."""

    def __init__(
        self,
        roster: Roster,
        dead: list[RankView],
        samples: list[tuple[str, RankSample]],
        silent_nodes: set[str],
    ) -> None:
        self.roster = roster
        self.dead = dead
        self.samples = samples
        self.silent_nodes = silent_nodes
        self.nodes = list(dict.fromkeys(node for node, _ in samples if node not in silent_nodes))
        seen = (view.rank for view in [*roster.views, *roster.silent] if view.rank is not None)
        self.open = Ranges.below(roster.world_size or 0).without(Ranges.of(seen))
        self.replaced = {view.rank for view in roster.views}  # a restart took the dead one's number
        self.on_node = self._ranks_by_node()

    def run(self) -> None:
        self._dead_with_number()
        self._dead_without_number()
        for node in self.nodes:
            numbers = self._expected(node)
            self._gone(self.open.within(numbers), node, f"no process on {node}, which runs {ranks_text(numbers)}")
        self._all_on_one_machine()
        self.roster.unseen = self.open

    def _gone(self, ranks: Ranges, node: str, reason: str, pid: int | None = None) -> None:
        if ranks:
            self.open = self.open.without(ranks)
            self.roster.gone += [Absent(rank, node, pid, f"gone: {reason}") for rank in ranks]

    def _dead_with_number(self) -> None:
        for view in self.dead:
            if view.rank is not None and view.rank not in self.replaced and view.node not in self.silent_nodes:
                self._gone(Ranges.of([view.rank]), view.node, _how_it_went(view), view.pid)

    def _dead_without_number(self) -> None:
        dead_of: dict[str, list[RankView]] = {}
        for view in self.dead:
            if view.rank is None:
                dead_of.setdefault(view.node, []).append(view)
        for node in self.nodes:
            dead = dead_of.get(node, [])
            missing = self.open.within(self._expected(node) or self.open)
            if dead and len(dead) == missing.count:
                self._gone(missing, node, _how_it_went(dead[0]), dead[0].pid if len(dead) == 1 else None)

    def _ranks_by_node(self) -> dict[str, Ranges]:
        """The numbers each node should run, where every rank there agrees on the first one."""
        first: dict[str, set[tuple[int, int]]] = {}
        for node, sample in self.samples:
            if None not in (sample.rank, sample.local_rank, sample.local_world_size):
                assert sample.rank is not None
                assert sample.local_rank is not None
                assert sample.local_world_size is not None
                block = (sample.rank - sample.local_rank, sample.local_world_size)
                first.setdefault(node, set()).add(block)
            elif sample.local_world_size and sample.local_world_size == sample.world_size:
                first.setdefault(node, set()).add((0, sample.local_world_size))
        blocks = {node: next(iter(found)) for node, found in first.items() if len(found) == 1}
        return {
            node: Ranges([(start, start + size - 1)])
            for node, (start, size) in blocks.items()
            if start >= 0 and 0 < size <= MOST_ON_ONE_MACHINE
        }

    def _expected(self, node: str) -> Ranges:
        return self.on_node.get(node, Ranges())

    def _all_on_one_machine(self) -> None:
        """Without local sizes: the master's address may say that the whole job is on the one node seen."""
        missing = self.open.count
        if len(self.nodes) != 1 or self.silent_nodes or not 0 < missing <= MOST_ON_ONE_MACHINE:
            return
        node = self.nodes[0]
        masters = {sample.master_address for _, sample in self.samples if sample.master_address}
        sizes_known = any(sample.local_world_size for _, sample in self.samples)
        # One of two ranks missing is also the usual job of one rank per node: ask for a clear majority.
        # Started by hand without a master's address: nothing could have brought ranks of other machines in.
        by_hand = not masters and all(sample.launcher == "env" for _, sample in self.samples)
        local = masters == {node} or by_hand
        mostly_here = not sizes_known and local and 2 * missing < len(self.roster.views)
        if (masters and all(map(is_loopback, masters))) or mostly_here:
            self._gone(self.open, node, f"no process on {node}, where the whole job runs")


def _how_it_went(view: RankView) -> str:
    if view.seen.gone:
        return f"its process {view.pid} was seen before and is gone"
    if "Z" in (view.states[-1], view.seen.sample.state):
        return "its process has died (zombie)"
    return f"its process {view.pid} is gone"


def _note_gaps(roster: Roster, evidence: JobEvidence) -> None:
    roster.gaps.extend(evidence.gaps)
    for node in evidence.nodes_missing:
        here = [view.rank for view in roster.silent if view.node == node and view.rank is not None]
        whose = f" ({ranks_text(here)})" if here else ""
        roster.gaps.append(Gap(f"node.{node}", f"it did not answer, so its ranks{whose} are unknown"))
    if roster.unseen:
        verb = "is" if roster.unseen.count == 1 else "are"
        why = f"{ranks_text(roster.unseen)} {verb} not on the watched nodes"
        fix = "add their nodes with -w" if not evidence.nodes_missing else ""
        roster.gaps.append(Gap(f"rank.{fold(roster.unseen)}", why, fix))
    if roster.twice:
        why = f"{ranks_text(roster.twice)} of job {evidence.job} exist more than once: jobs that share a name"
        roster.gaps.append(Gap(f"rank.{fold(roster.twice)}", why, "one of them at a time: -w with its nodes only"))
