"""What the hang judge is given: all that was seen of one job, on one machine or many, live or captured.

Made from samples, dumps and the last minutes, one bundle per job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.values import grouped, in_slices
from mltop.probes.model import Gap, JobKey, NodeState, RankDeath, RankSample, RankStacks, Sample
from mltop.probes.model.sample import is_loopback, is_of_one_machine, is_same_start

Number = TypeVar("Number", int, float)

# Agents read the boot time for themselves: start times of one process differ by clock ticks.


@dataclass
class RankSeen:
    """One rank of the roster. ``gone``: it was seen before and its process no longer exists.

    ``quiet_s``: for how long before the dump its counters stood still, from the samples of the last minutes;
    None when there is no such history. ``polled_s``: the same of one that may wake up to poll (a process that does
    next to nothing, and reads and writes nothing).
    """

    node: str
    sample: RankSample
    gone: bool = False
    quiet_s: float | None = None
    polled_s: float | None = None

    @property
    def process(self) -> Process:
        return (self.node, self.sample.pid)


@dataclass
class JobEvidence:
    """One job: its roster, all dumps of all rounds in any order, and what could not be read.

    ``job`` and ``uid`` together say which (JobKey); ``user``: the name of ``uid``. ``not_answered``: nodes that were
    asked and did not answer (their ranks are unknown, not gone). ``partial``: not all watched nodes were asked.
    ``samples``: the newest of the nodes that it runs on. ``deaths``: how ranks of it ended, with their nodes, in any
    order. ``rhythm_s``: how long a step takes when it moves (`JobMotion.rhythm`), None: not known.
    """

    job: str
    roster: list[RankSeen] = field(default_factory=list)
    dumps: list[RankStacks] = field(default_factory=list)
    not_answered: list[NodeState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    uid: int | None = None
    user: str = ""
    partial: bool = False
    samples: dict[str, Sample] = field(default_factory=dict)
    deaths: list[tuple[str, RankDeath]] = field(default_factory=list)
    rhythm_s: float | None = None


Process = tuple[str, int]  # node, pid
# What the samples said of each process, oldest first: (sampled_at, rank).
History = Mapping[Process, Sequence[tuple[float, RankSample]]]
Rounds = dict[Process, list[RankStacks]]  # the dumps of each process, oldest first


def history_of(samples: Iterable[Sample]) -> dict[Process, list[tuple[float, RankSample]]]:
    """History from samples of any nodes in any order."""
    history: dict[Process, list[tuple[float, RankSample]]] = {}
    for sample in in_slices(sorted(samples, key=lambda sample: sample.sampled_at)):
        for rank in sample.ranks:
            history.setdefault((sample.node, rank.pid), []).append((sample.sampled_at, rank))
    return history


def evidence_by_job(
    samples: Iterable[Sample],
    dumps: Iterable[RankStacks],
    history: History | None = None,
    not_answered: Sequence[NodeState] = (),
    gaps: Sequence[Gap] = (),
    *,
    or_ended: bool = False,
    partial: bool = False,
) -> list[JobEvidence]:
    """One bundle per job that has a live process or a dump, in order of the job's name. ``or_ended``: where there
    is none, those that the history still knows.

    ``samples``: the newest of each node. ``history``: the last minutes (`history_of`); a process in it that
    its node's newest sample no longer has is gone. ``not_answered``: each job gets those nodes that it was seen on,
    and all of them while some of its ranks are unaccounted for. ``gaps`` and ``partial`` go to every job.
    """
    newest = {sample.node: sample for sample in samples}
    history = history or {}
    in_order = sorted(dumps, key=lambda stacks: stacks.taken_at)
    rounds = grouped(in_order, lambda stacks: (stacks.node, stacks.pid))
    seen = _living(newest, history, rounds)
    seen += _gone(newest, history, rounds, {rank.process for rank in seen})
    seen += _only_dumped(rounds, {rank.process for rank in seen})
    bundles = _bundled(_named(seen), rounds, gaps, partial=partial)
    if or_ended and not bundles:
        bundles = _only_died(newest.values(), gaps)
    for bundle in bundles.values():
        _add_samples(bundle, newest)
    alive = [bundle for bundle in bundles.values() if bundle.dumps or any(not rank.gone for rank in bundle.roster)]
    alive = alive or (list(bundles.values()) if or_ended else [])
    for bundle in alive:
        bundle.not_answered = _missed_by(bundle, not_answered)
    parts = (part for bundle in alive for part in _by_world_size(bundle))
    return sorted(parts, key=lambda part: (part.job, part.uid is None, part.uid or 0))


def _bundled(
    seen: Iterable[RankSeen], rounds: Rounds, gaps: Sequence[Gap], *, partial: bool
) -> dict[tuple[JobKey, str], JobEvidence]:
    """Ranks and dumps by job."""
    bundles: dict[tuple[JobKey, str], JobEvidence] = {}
    for rank in in_slices(seen):
        job, uid = rank.sample.job_key
        machine = rank.node if rank.sample.is_here_only else ""
        new = JobEvidence(job, gaps=list(gaps), uid=uid, partial=partial)
        bundle = bundles.setdefault((rank.sample.job_key, machine), new)
        bundle.user = bundle.user or rank.sample.user
        bundle.roster.append(rank)
        bundle.dumps += rounds.get(rank.process, [])
    return bundles


def _add_samples(bundle: JobEvidence, newest: Mapping[str, Sample]) -> None:
    """The newest samples of its nodes, and how ranks of it ended there, by the watcher's clock."""
    nodes = dict.fromkeys([*(rank.node for rank in bundle.roster), *(node for node, _ in bundle.deaths)])
    bundle.samples = {node: newest[node] for node in nodes if node in newest}
    bundle.deaths = []
    for node, sample in bundle.samples.items():
        for death in sample.deaths:
            if death.job == bundle.job and (death.uid is None or bundle.uid is None or death.uid == bundle.uid):
                at = None if death.at is None else death.at - (sample.clock_skew_s or 0.0)
                bundle.deaths.append((node, replace(death, at=at)))


def _only_died(samples: Iterable[Sample], gaps: Sequence[Gap]) -> dict[tuple[JobKey, str], JobEvidence]:
    """Jobs that nothing is left of but how their ranks ended."""
    bundles: dict[tuple[JobKey, str], JobEvidence] = {}
    for sample in samples:
        for death in sample.deaths:
            key = (JobKey(death.job, death.uid), sample.node if is_of_one_machine(death.job) else "")
            if death.job:
                new = JobEvidence(death.job, gaps=list(gaps), uid=death.uid)
                bundles.setdefault(key, new).deaths.append((sample.node, death))
    return bundles


# What counters did between two readings.


def works(main_cpu_s: float | None, seconds: float) -> bool:
    """Whether a main thread had more CPU time than being stopped and looked at costs; unknown counts as yes."""
    return main_cpu_s is None or main_cpu_s >= limit.MOVE_CPU_S_PER_S * seconds


def process_calls_between(old: RankSample, new: RankSample) -> int | None:
    """Reads and writes of all threads."""
    return add(grown(old.read_syscalls, new.read_syscalls), grown(old.write_syscalls, new.write_syscalls))


def add(left: Number | None, right: Number | None) -> Number | None:
    """The sum of what is known, None of nothing."""
    if left is None:
        return right
    return left if right is None else left + right


def grown(old: Number | None, new: Number | None) -> Number | None:
    """None where it is unknown, or was counted anew."""
    return None if old is None or new is None or new < old else new - old


def quiet_for(points: Sequence[tuple[float, RankSample]], *, polls: bool = False) -> float | None:
    """Seconds at the end of ``points`` in which the counters stood still; None for fewer than two points.

    The main thread's switches and read and write calls count; a DataLoader's poll every 5 s does not, nor does, when it
    ``polls``, a main thread that only wakes up.
    """
    if len(points) < 2:
        return None
    end_at, end = points[-1]
    quiet_s = 0.0
    for (later_at, later), (earlier_at, earlier) in pairwise(reversed(points)):
        step_s = later_at - earlier_at
        if not _still(earlier, later, step_s, polls) or not _still(earlier, end, end_at - earlier_at, polls):
            break
        quiet_s = end_at - earlier_at
    return quiet_s


def _still(earlier: RankSample, later: RankSample, seconds: float, polls: bool) -> bool:
    allowed = max(1.0, 1.0 + limit.QUIET_RATE_PER_S * (seconds - 1.0))
    own = None if polls else grown(earlier.main_syscalls, later.main_syscalls)
    if own is None and (process_calls_between(earlier, later) or 0) > limit.MOVE_PROCESS_CALLS_PER_S * seconds:
        return False
    if own is not None and own > allowed:
        return False
    if polls:
        main_cpu_s = grown(earlier.main_cpu_s, later.main_cpu_s)
        return main_cpu_s is not None and main_cpu_s < limit.POLL_CPU * seconds
    if earlier.voluntary_switches is None or later.voluntary_switches is None:
        return False
    switches = later.voluntary_switches - earlier.voluntary_switches
    if earlier.main_cpu_s is not None and later.main_cpu_s is not None:
        switches = switches if works(later.main_cpu_s - earlier.main_cpu_s, seconds) else min(switches, 0)
    return 0 <= switches <= allowed


def _living(newest: Mapping[str, Sample], history: History, rounds: Rounds) -> list[RankSeen]:
    seen = []
    for node, rank in in_slices((node, rank) for node, sample in newest.items() for rank in sample.ranks):
        process = (node, rank.pid)
        before = _before_dump(history.get(process, ()), rank, rounds.get(process))
        seen.append(RankSeen(node, rank, quiet_s=quiet_for(before), polled_s=quiet_for(before, polls=True)))
    return seen


def _before_dump(
    points: Sequence[tuple[float, RankSample]], now: RankSample, dumped: list[RankStacks] | None
) -> list[tuple[float, RankSample]]:
    """Up to the first dump: dumps move the counters of the process they stop."""
    usable = [(at, rank) for at, rank in points if is_same_start(rank.started_at, now.started_at) is not False]
    if dumped:
        first = dumped[0]
        usable = [(at, rank) for at, rank in usable if at < first.taken_at]
        if first.before is not None:
            usable.append((first.taken_at, first.before))
    return usable


def _gone(newest: Mapping[str, Sample], history: History, rounds: Rounds, living: set[Process]) -> list[RankSeen]:
    """Processes that a node which still answers no longer has."""
    now = {(node, rank.pid): rank for node, sample in newest.items() for rank in sample.ranks}
    ended = []
    for (node, pid), points in history.items():
        last_at, last = points[-1]
        sample = newest.get(node)
        if sample is None or sample.sampled_at <= last_at or last.rank is None:
            continue
        replaced = (node, pid) in living and is_same_start(last.started_at, now[(node, pid)].started_at) is False
        if replaced or (node, pid) not in living:
            ended.append(RankSeen(node, last, gone=not _dumped_since(rounds.get((node, pid)), sample)))
    return ended


def _dumped_since(dumped: list[RankStacks] | None, sample: Sample) -> bool:
    """A dump with frames that is newer than the sample proves that the process still lives."""
    later = (stacks for stacks in dumped or () if stacks.taken_at > sample.sampled_at)
    return any(digest.frames for stacks in later for digest in stacks.digests)


def _only_dumped(rounds: Rounds, seen: set[Process]) -> list[RankSeen]:
    """Dumps of processes that no sample has: their own counters describe them."""
    lasts = [dumped[-1] for process, dumped in rounds.items() if process not in seen]
    return [
        RankSeen(last.node, last.after or last.before or RankSample(last.pid, last.rank, job=last.job, uid=last.uid))
        for last in lasts
    ]


def _named(seen: list[RankSeen]) -> list[RankSeen]:
    """Dead processes whose environment is gone take the job of their user's one job on their node, if there is one."""
    jobs: dict[tuple[str, int | None], set[str]] = {}
    for rank in seen:
        if rank.sample.job:
            jobs.setdefault((rank.node, rank.sample.uid), set()).add(rank.sample.job)

    for at, rank in enumerate(seen):
        here = jobs.get((rank.node, rank.sample.uid), set())
        if not rank.sample.job and rank.sample.rank is None and rank.sample.state == "Z" and len(here) == 1:
            seen[at] = replace(rank, sample=replace(rank.sample, job=next(iter(here))))
    with_master = (rank for rank in seen if rank.sample.master_address)
    masters = {(rank.node, rank.sample.job_key): rank.sample.master_address for rank in with_master}
    for at, rank in enumerate(seen):
        master = masters.get((rank.node, rank.sample.job_key))
        if master and not rank.sample.master_address:
            seen[at] = replace(rank, sample=replace(rank.sample, master_address=master))
    return seen


def _missed_by(bundle: JobEvidence, not_answered: Sequence[NodeState]) -> list[NodeState]:
    """Those of the nodes that ranks of this job may be on."""
    here = {rank.node for rank in bundle.roster}
    world_size = max((rank.sample.world_size or 0 for rank in bundle.roster), default=0)
    numbers = {rank.sample.rank for rank in bundle.roster if rank.sample.rank is not None}
    on_one_machine = any(is_loopback(rank.sample.master_address) for rank in bundle.roster)
    anywhere = not on_one_machine and len(numbers) < world_size
    return [state for state in not_answered if anywhere or state.node in here]


def _by_world_size(bundle: JobEvidence) -> list[JobEvidence]:
    """Jobs that share a name but not a size are kept apart; processes without a size go to the largest. What is gone of
    a size that nobody has any more is of an earlier start.
    """
    sizes = Counter(rank.sample.world_size for rank in bundle.roster if rank.sample.world_size and not rank.gone)
    every = {rank.sample.world_size for rank in bundle.roster if rank.sample.world_size}
    if len(sizes) < 2 and (not sizes or every == set(sizes)):
        return [bundle]
    largest = sizes.most_common(1)[0][0]
    parts = {size: replace(bundle, roster=[], dumps=[]) for size in sizes}
    size_of: dict[Process, int] = {}
    for rank in bundle.roster:
        size = rank.sample.world_size or largest
        if size in parts:
            parts[size].roster.append(rank)
            size_of[rank.process] = size
    for stacks in bundle.dumps:
        if (stacks.node, stacks.pid) in size_of:
            parts[size_of[stacks.node, stacks.pid]].dumps.append(stacks)
    return list(parts.values())
