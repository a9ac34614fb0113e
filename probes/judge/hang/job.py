"""One job as the judge sees it: who should be there, who is gone, who waits, who does not, and how long it was watched.

Unseen is not gone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mltop.probes.judge.deaths import Death, Deaths, kind_of_end, order_of
from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.assumed import Assumed, assume_waits
from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
from mltop.probes.judge.hang.frames import UserFrames, called_from, key_of
from mltop.probes.judge.hang.kernel import kernel_phrases
from mltop.probes.judge.hang.view import (
    BACKWARD,
    RankView,
    follow_training_threads,
    is_dead,
    known_waits,
    view_of,
    with_wait,
)
from mltop.probes.judge.nodes import by_reason, folded
from mltop.probes.judge.values import grouped, in_slices, known
from mltop.probes.model import (
    CONFIDENCES,
    Confidence,
    Culprit,
    Gap,
    RankSample,
    StackDigest,
    Verdict,
    Waiting,
)
from mltop.probes.model.ranks import Ranges, fold, ranks_text
from mltop.probes.model.sample import is_loopback
from mltop.probes.model.units import duration_words
from mltop.probes.model.vocabulary import CulpritKind

MOST_ON_ONE_MACHINE = 4096  # ranks: a job that claims to have more on one machine is not believed
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True)
class Absent:
    """A rank that a watched machine should run and does not. ``pid`` None: never seen, or unclear which.

    ``death``: how it ended, where its node tells.
    """

    rank: int
    node: str
    pid: int | None
    reason: str
    gpu: int | None = None
    death: Death | None = None

    def culprit(self) -> Culprit:
        how: CulpritKind = "dead" if self.death is None else kind_of_end(self.death.report)
        return Culprit(self.rank, self.node, self.pid, self.reason, "no process", True, self.gpu, how)


@dataclass
class Roster:
    """``silent``: ranks on nodes that did not answer; ``unseen``: numbers on machines that nobody watches."""

    world_size: int | None
    views: list[RankView]
    gone: list[Absent] = field(default_factory=list)
    silent: list[RankView] = field(default_factory=list)
    unseen: Ranges = field(default_factory=Ranges)
    twice: list[int] = field(default_factory=list)
    deaths: Deaths = field(default_factory=Deaths)  # of those that are gone


def read_roster(evidence: JobEvidence) -> Roster:
    """Match dumps to ranks, take out the dead, and name the numbers that nothing was seen of."""
    views = _views(evidence)
    silent_nodes = {state.node for state in evidence.not_answered}
    alive, dead, silent = [], [], []
    for view in in_slices(views):
        if _is_gone(view):
            dead.append(view)
        elif view.node in silent_nodes and not view.rounds:
            silent.append(view)
        else:
            alive.append(view)
    samples = [(view.node, view.seen.sample) for view in in_slices(views)]
    sizes = Counter(sample.world_size for _, sample in samples if sample.world_size)
    world_size = max(sizes, key=lambda size: sizes[size], default=None)
    roster = Roster(world_size, _without_wrappers(alive), silent=silent)
    counts = Counter(view.rank for view in roster.views if view.rank is not None)
    roster.twice = sorted(rank for rank, count in counts.items() if count > 1)
    _Search(roster, dead, samples, silent_nodes, evidence).run()
    roster.deaths = order_of([absent.death for absent in roster.gone if absent.death is not None])
    return roster


def _views(evidence: JobEvidence) -> list[RankView]:
    dumps = grouped(evidence.dumps, lambda stacks: (stacks.node, stacks.pid))
    users = UserFrames()
    views = [view_of(seen, dumps.pop((seen.node, seen.sample.pid), []), users) for seen in in_slices(evidence.roster)]
    for (node, pid), rounds in dumps.items():
        sample = next((counters for stacks in rounds for counters in (stacks.after, stacks.before) if counters), None)
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
        evidence: JobEvidence,
    ) -> None:
        self.roster = roster
        self.deaths = {(node, report.pid): Death(node, report) for node, report in evidence.deaths}
        self.gpus = {(view.node, view.pid): next(iter(view.seen.sample.gpus), None) for view in dead}
        self.dead = dead
        self.samples = samples
        self.silent_nodes = silent_nodes
        self.nodes = list(dict.fromkeys(node for node, _ in samples if node not in silent_nodes))
        self.whole = {node for node in self.nodes if _shows_all(evidence, node)}
        seen = (view.rank for view in [*roster.views, *roster.silent] if view.rank is not None)
        self.open = Ranges.below(roster.world_size or 0).without(Ranges.of(seen))
        self.replaced = {view.rank for view in roster.views}  # a restart took the dead one's number
        self.on_node = self._ranks_by_node()

    def run(self) -> None:
        for view in self.dead:
            if view.rank is not None and view.rank not in self.replaced and view.node not in self.silent_nodes:
                self._gone(Ranges.of([view.rank]), view.node, _how_it_went(view), view.pid)
        self._add_dead()
        self._dead_without_number()
        for node in self.nodes:
            numbers = self._expected(node) if node in self.whole else Ranges()
            self._gone(self.open.within(numbers), node, f"no process on {node}, which runs {ranks_text(numbers)}")
        self._all_on_one_machine()
        self.roster.unseen = self.open

    def _gone(self, ranks: Ranges, node: str, reason: str, pid: int | None = None) -> None:
        if ranks:
            self.open = self.open.without(ranks)
            death = None if pid is None else self.deaths.get((node, pid))
            if death is not None and death.rank is None and ranks.count == 1:  # its node never saw it alive
                death = Death(node, replace(death.report, rank=ranks.first))
            gpu = None if pid is None else self.gpus.get((node, pid))
            why = reason if death is None or death.report.how == "unknown" else death.words()
            self.roster.gone += [Absent(rank, node, pid, f"gone: {why}", gpu, death) for rank in ranks]

    def _add_dead(self) -> None:
        """Ranks that nothing is left of but what their node says of their end. The last end of a number counts."""
        living = self.replaced | {view.rank for view in self.roster.silent} | {one.rank for one in self.roster.gone}
        starts = known(view.seen.sample.started_at for view in self.roster.views)
        begun = min(starts, default=0.0)  # before that ranks of an earlier attempt ended
        last: dict[int, Death] = {}
        for death in sorted(self.deaths.values(), key=lambda death: death.report.at or 0.0):
            if death.rank is not None and death.rank not in living and (death.report.at or begun) >= begun:
                last[death.rank] = death
        for rank, death in last.items():
            self._gone(Ranges.of([rank]), death.node, death.words(), death.report.pid)

    def _dead_without_number(self) -> None:
        dead_of = grouped((view for view in self.dead if view.rank is None), lambda view: view.node)
        for node in self.nodes:
            dead = dead_of.get(node, [])
            missing = self.open.within(self._expected(node) or self.open)
            if dead and len(dead) == missing.count:
                self._gone(missing, node, _how_it_went(dead[0]), dead[0].pid if len(dead) == 1 else None)

    def _ranks_by_node(self) -> dict[str, Ranges]:
        """The numbers each node should run, where every rank there agrees on the first one."""
        first: dict[str, set[tuple[int, int]]] = {}
        for node, sample in self.samples:
            local_size = sample.local_world_size
            if sample.rank is not None and sample.local_rank is not None and local_size is not None:
                first.setdefault(node, set()).add((sample.rank - sample.local_rank, local_size))
            elif local_size and local_size == sample.world_size:
                first.setdefault(node, set()).add((0, local_size))
        return {
            node: Ranges([(start, start + size - 1)])
            for node, blocks in first.items()
            for start, size in (blocks if len(blocks) == 1 else ())
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
        if node not in self.whole:
            return  # a loopback address says that they run on this machine, not that they show
        masters = {sample.master_address for _, sample in self.samples if sample.master_address}
        sizes_known = any(sample.local_world_size for _, sample in self.samples)
        # One of two ranks missing is also the usual job of one rank per node: ask for a clear majority.
        # Started by hand without a master's address: nothing could have brought ranks of other machines in.
        by_hand = not masters and all(sample.launcher == "env" for _, sample in self.samples)
        local = masters == {node} or by_hand
        mostly_here = not sizes_known and local and 2 * missing < len(self.roster.views)
        if (masters and all(map(is_loopback, masters))) or mostly_here:
            self._gone(self.open, node, f"no process on {node}, where the whole job runs")


def _shows_all(evidence: JobEvidence, node: str) -> bool:
    """Whether a process that its samples do not have is not there: in a container others may run beside ours."""
    sample = evidence.samples.get(node)
    return sample is not None and sample.host.sees_all_processes is True


def _how_it_went(view: RankView) -> str:
    if view.seen.gone:
        return f"its process {view.pid} was seen before and is gone"
    if "Z" in (view.states[-1], view.seen.sample.state):
        return "its process has died (zombie)"
    return f"its process {view.pid} is gone"


def _gaps(roster: Roster, evidence: JobEvidence) -> list[Gap]:
    gaps = list(evidence.gaps)
    if roster.unseen:
        gaps.append(_unseen_gap(roster.unseen, evidence))
    if roster.twice:
        shared = "jobs that share a name, or a machine that has several"
        why = f"{ranks_text(roster.twice)} of job {evidence.job} exist more than once: {shared}"
        fix = "one of them at a time: -w with its nodes only, each by one name"
        gaps.append(Gap.about("rank", item=fold(roster.twice), why=why, fix=fix, code="duplicate"))
    return gaps


def _unseen_gap(unseen: Ranges, evidence: JobEvidence) -> Gap:
    """Ranks that no watched node has may be on those that did not answer, or on those that were not dumped."""
    have, they, are = ("has", "it", "is") if unseen.count == 1 else ("have", "they", "are")
    undumped = "dump all nodes" if evidence.partial else ""
    if evidence.not_answered:
        silent = folded(state.node for state in evidence.not_answered)
        others = " or on nodes that were not dumped" if evidence.partial else ""
        why = f"{ranks_text(unseen)} {have} not answered: {they} may be on {silent}{others}"
        return Gap.about("rank", item=str(unseen), why=why, fix=undumped, code="unwatched")
    confined = [rank.node for rank in evidence.roster if not _shows_all(evidence, rank.node)]
    if confined and _may_be_beside(evidence):
        why = (
            f"{ranks_text(unseen)} {are} not seen from here: {folded(confined)} may show only one container's processes"
        )
        fix = "run mltop on the machine itself, outside of containers" + (f", or {undumped}" if undumped else "")
        return Gap.about("rank", item=str(unseen), why=why, fix=fix, code="unwatched")
    where = "the nodes that were dumped" if evidence.partial else "the watched nodes"
    why = f"{ranks_text(unseen)} {are} not on {where}"
    return Gap.about("rank", item=str(unseen), why=why, fix=undumped or "add their nodes with -w", code="unwatched")


def _may_be_beside(evidence: JobEvidence) -> bool:
    """Whether the job says that more of its ranks run on the machines of those that are seen."""
    samples = [rank.sample for rank in evidence.roster]
    here = Counter(rank.node for rank in evidence.roster)
    sizes = [(here[rank.node], rank.sample.local_world_size) for rank in evidence.roster]
    return any(is_loopback(sample.master_address) for sample in samples) or any(
        size is not None and seen < size for seen, size in sizes
    )


def _silent_gaps(roster: Roster, evidence: JobEvidence) -> Iterator[Gap]:
    """One for each reason, with the ranks that the nodes' samples named."""
    for state, reason, nodes in by_reason(evidence.not_answered):
        named = _numbers(view for view in roster.silent if view.node in nodes)
        whose = ("its ranks" if len(nodes) == 1 else "their ranks") + (f" ({ranks_text(named)})" if named else "")
        why = f"{state}: {reason}" if reason else state
        yield Gap.about("node", item=folded(nodes), why=f"{why}; {whose} are unknown", code="no_answer")


@dataclass
class JobView:
    """``views`` are the ranks with a live process on a node that answered; the lists below divide them."""

    roster: Roster
    stopped: list[RankView] = field(default_factory=list)
    waiters: list[RankView] = field(default_factory=list)
    others: list[RankView] = field(default_factory=list)  # readable, and in no collective
    unreadable: list[RankView] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    assumed: Assumed | None = None  # what ``waiters`` wait in, when no rule but their number tells it
    evidence: JobEvidence = field(default_factory=lambda: JobEvidence(""))

    @property
    def views(self) -> list[RankView]:
        return self.roster.views

    @property
    def running(self) -> list[RankView]:
        return [*self.waiters, *self.others]

    @property
    def mostly_stopped(self) -> bool:
        """At least half of the ranks are stopped: whatever the others do, the job does not get on."""
        return bool(self.stopped) and 2 * len(self.stopped) >= len(self.views)

    def kernel_says(self, view: RankView, wchan: str | None, pid: int | None = None) -> str:
        """``: /data on server fs01 has not answered for 48 s``: what its node knows of where ``pid`` stands; or ""."""
        sample = self.evidence.samples.get(view.node)
        phrases = kernel_phrases(sample, view.pid if pid is None else pid, view.seen.sample.gpus, wchan)
        return f": {'; '.join(phrases[: limit.KERNEL_PHRASES])}" if phrases else ""

    @cached_property
    def window_s(self) -> float:
        """How long the waiting ranks (or all, when none waits) were watched: what half of them reach."""
        watched = self.waiters or self.running
        return statistics.median(view.window_s for view in watched) if watched else 0.0

    @cached_property
    def quiet_s(self) -> float | None:
        """How long before the first dump the waiting ranks stood still; None when too few have a history."""
        histories = [view.quiet_s for view in self.waiters if view.quiet_s is not None]
        return min(histories) if histories and 2 * len(histories) >= len(self.waiters) else None

    @cached_property
    def counted(self) -> bool:
        """The counters of most waiting ranks could be read."""
        read = sum(view.motion.switches is not None for view in self.waiters)
        return 2 * read > len(self.waiters)

    @property
    def known_s(self) -> float:
        """For how long the standstill is known: watched, and quiet before that."""
        return self.window_s + (self.quiet_s or 0.0)

    @property
    def watched(self) -> str:
        """``no progress for 3 min 25 s``: in all dumps, and in the samples before them.

        One dump alone shows no standstill: then the samples before it do, or nothing does.
        """
        if (self.quiet_s or 0.0) >= limit.TOLD_QUIET_S:
            return f"no progress for {duration_words(round(self.known_s))}"
        return f"no progress for {self.window_s:.1f} s" if self.window_s >= limit.TOLD_WINDOW_S else "seen once"

    def confidence(self, *caps: Confidence) -> Confidence:
        """How surely it stands still, and not more than any of ``caps``.

        Lower when other threads of waiting ranks do I/O or train, when ranks are unseen or unreadable, or when a wait
        is a guess (autograd).
        """
        limits: list[Confidence] = [self.standstill, *caps]
        unknown = self.roster.unseen or self.roster.silent or self.unreadable
        guessed = any(view.waiting_in == BACKWARD for view in self.waiters)
        side = any(view.is_led or view.motion.calling() for view in self.waiters)
        if unknown or guessed or side:
            limits.append("medium")
        return max(limits, key=CONFIDENCES.index)

    @cached_property
    def standstill(self) -> Confidence:
        """How surely nothing moves, whoever is to blame.

        high: watched for 5 s, or quiet for 30 s before; low: under 3 s and not even quiet for 10 s, or with unknown
        counters (stacks alone look alike in a slow healthy job).
        """
        quiet_s = self.quiet_s or 0.0
        if not self.counted and self.quiet_s is None:
            return "low"
        if self.window_s >= limit.WINDOW_LONG_S - limit.WINDOW_SLACK_S or quiet_s >= limit.QUIET_LONG_S:
            return "high"
        if self.window_s < limit.WINDOW_SHORT_S and quiet_s < limit.QUIET_SHORT_S:
            return "low"
        return "medium"

    def hang(self, evidence: list[str], confidence: Confidence, culprits: Sequence[Culprit] = ()) -> Verdict:
        return Verdict("hang", list(culprits), waiting_lines(self.waiters), [], evidence, confidence)

    def unclear(self, *evidence: str) -> Verdict:
        return Verdict("unclear", [], waiting_lines(self.waiters), [], list(evidence), "low")


def read_job(evidence: JobEvidence) -> JobView:
    roster = read_roster(evidence)
    job = JobView(roster, evidence=evidence)
    follow_training_threads(roster.views)
    _share_waits(roster.views)
    job.assumed = assume_waits([view for view in roster.views if view.readable and not view.stopped])
    for view in in_slices(roster.views):
        if view.stopped:
            job.stopped.append(view)
        elif not view.readable:
            job.unreadable.append(view)
        elif view.waiting_in is not None and not (view.waiting_in == BACKWARD and view.spins):  # it computes
            job.waiters.append(view)
        else:
            job.others.append(view)
    job.gaps = [*_gaps(roster, evidence), *_unreadable_gaps(job.unreadable), *_silent_gaps(roster, evidence)]
    return job


def _share_waits(views: Sequence[RankView]) -> None:
    """What native frames of one rank show holds for a rank at the same place that was read without them: for one that
    sleeps there as it does, or runs as it does. Not for one whose own native frames show no wait.
    """
    shown = [view for view in in_slices(views) if any(map(_shows_native, view.mains))]
    if not shown:
        return
    waits = {
        spins: known_waits(main for view in shown if view.spins is spins for main in view.mains if _shows_native(main))
        for spins in (False, True)
    }
    denied = {id(view): {key_of(main) for main in view.mains if _shows_native(main)} for view in shown}
    for view in views:
        mine = denied.get(id(view), ())
        for at, main in enumerate(view.mains):
            if main.waiting_in or key_of(main) in mine:
                continue
            view.mains[at] = with_wait(main, waits[view.spins])
            if view.waits[at] in (None, BACKWARD):
                view.waits[at] = view.mains[at].waiting_in or view.waits[at]


def _shows_native(main: StackDigest) -> bool:
    return main.frames[0].native


def names(views: Sequence[RankView]) -> str:
    """``ranks 0-1,3``, or pids for processes without a rank."""
    numbers = _numbers(views)
    pids = ", ".join(view.name for view in views if view.rank is None)
    return " and ".join(filter(None, (ranks_text(numbers) if numbers else "", pids)))


def _numbers(views: Iterable[RankView]) -> list[int]:
    return known(view.rank for view in views)


def waiting_lines(views: Iterable[RankView]) -> list[Waiting]:
    """One line per place, the fullest first. Ranks without a number are counted as none."""
    places: dict[tuple[str, str | None], str] = {}  # thousands of ranks stand in a few places

    def text(view: RankView) -> str:
        """``all_reduce, called from train (case.py:60)``."""
        key = (key_of(view.now), view.waiting_in)
        if key not in places:
            places[key] = f"{view.waiting_in}, called from {called_from(view.now)}"
        return places[key]

    fullest_first = sorted(grouped(views, text).items(), key=lambda place: -len(place[1]))
    return [Waiting(Ranges.of(_numbers(here)), place) for place, here in fullest_first]


def _unreadable_gaps(views: Sequence[RankView]) -> Iterator[Gap]:
    """One gap per reason."""
    for alike in grouped(views, lambda view: (view.error.error, view.error.fix) if view.error else None).values():
        why, fix = (alike[0].error.error or "", alike[0].error.fix) if alike[0].error else ("no stack was taken", "")
        yield Gap.about("stacks", item=fold(_numbers(alike)) or alike[0].name, why=why, fix=fix)
