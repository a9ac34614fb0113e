"""One machine that is watched under several names: short and long, or its address.

From samples, dumps and the last minutes to one bundle of evidence per job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
from mltop.probes.judge.hang.job import is_loopback
from mltop.probes.judge.hang.view import syscalls_between, works
from mltop.probes.model import Gap, JobKey, RankSample, RankStacks, Sample

# Agents read the boot time for themselves: start times of one process differ by clock ticks.
START_SLACK_S = 1.0


def same_machines(samples: Iterable[Sample], nodes_missing: Collection[str] = ()) -> dict[str, str]:
    """Node → the name of the same machine that is kept: the shortest one that answered, addresses last.

    Proof is a rank's process that both have: containers share their host's boot id, but number processes anew.
    """
    firsts: dict[str, list[Sample]] = {}
    found: dict[str, str] = {}
    for sample in sorted(samples, key=lambda sample: (sample.node in nodes_missing, _plainness(sample.node))):
        if not sample.boot_id or not sample.ranks:
            continue
        known = firsts.setdefault(sample.boot_id, [])
        first = next((one for one in known if _share_a_process(one, sample)), None)
        if first is None:
            known.append(sample)
        else:
            found[sample.node] = first.node
    return found


def without_twins(
    rounds: Mapping[tuple[str, int], list[RankStacks]], twins: Mapping[str, str]
) -> dict[tuple[str, int], list[RankStacks]]:
    """The rounds of each process (node, pid) under the kept name: those of the agent that could read more of them.

    Two agents that dump one process at the same moment keep each other out.
    """
    kept = {process: dumped for process, dumped in rounds.items() if process[0] not in twins}
    for (node, pid), dumped in rounds.items():
        if node in twins:
            process = (twins[node], pid)
            if _readable(dumped) > _readable(kept.get(process, [])):
                kept[process] = [_renamed(stacks, twins[node]) for stacks in dumped]
    return kept


def _readable(dumped: list[RankStacks]) -> int:
    return sum(any(digest.frames for digest in stacks.digests) for stacks in dumped)


def _renamed(stacks: RankStacks, node: str) -> RankStacks:
    return replace(stacks, node=node, digests=[replace(digest, node=node) for digest in stacks.digests])


def _plainness(node: str) -> tuple[bool, int, str]:
    return (node[:1].isdigit() or ":" in node, len(node), node)


def _share_a_process(one: Sample, other: Sample) -> bool:
    processes = {rank.pid: rank for rank in one.ranks}
    return any(_is_same(processes[rank.pid], rank) for rank in other.ranks if rank.pid in processes)


def _is_same(one: RankSample, other: RankSample) -> bool:
    if one.started_at is None or other.started_at is None:
        return False
    same_rank = (one.rank, one.job_key) == (other.rank, other.job_key)
    return same_rank and abs(one.started_at - other.started_at) < START_SLACK_S


# (node, pid) → what the samples said of it, oldest first: (sampled_at, rank).
History = Mapping[tuple[str, int], Sequence[tuple[float, RankSample]]]
_Process = tuple[str, int]
_Place = tuple[JobKey, str]  # a job, and its node where the job's own address says it is on one machine


def history_of(samples: Iterable[Sample]) -> dict[_Process, list[tuple[float, RankSample]]]:
    """History from samples of any nodes in any order."""
    history: dict[_Process, list[tuple[float, RankSample]]] = {}
    for sample in sorted(samples, key=lambda sample: sample.sampled_at):
        for rank in sample.ranks:
            history.setdefault((sample.node, rank.pid), []).append((sample.sampled_at, rank))
    return history


def evidence_by_job(
    samples: Iterable[Sample],
    dumps: Iterable[RankStacks],
    history: History | None = None,
    nodes_missing: Sequence[str] = (),
    gaps: Sequence[Gap] = (),
    *,
    or_ended: bool = False,
) -> list[JobEvidence]:
    """One bundle per job that has a live process or a dump, in order of the job's name. ``or_ended``: where there
    is none, those that the history still knows.

    ``samples``: the newest of each node. ``history``: the last minutes (`history_of`); a process in it that
    its node's newest sample no longer has is gone. ``nodes_missing``: asked and not answered; each job gets
    those that it was seen on, and all of them while some of its ranks are unaccounted for. ``gaps`` go to
    every job. A machine under several names counts once, and the gaps of its jobs say so.
    """
    newest = {sample.node: sample for sample in samples}
    twins = same_machines(newest.values(), nodes_missing)
    twin_jobs = {node: {rank.job_key for rank in newest[node].ranks} for node in twins}
    newest = {node: sample for node, sample in newest.items() if node not in twins}
    nodes_missing = [node for node in nodes_missing if node not in twins]
    history = {process: points for process, points in (history or {}).items() if process[0] not in twins}
    rounds = without_twins(_by_process(dumps), twins)
    seen = _living(newest, history, rounds)
    seen += _gone(newest, history, rounds, {(one.node, one.sample.pid) for one in seen})
    seen += _only_dumped(rounds, {(one.node, one.sample.pid) for one in seen})
    bundles: dict[_Place, JobEvidence] = {}
    for one in _named(seen):
        job, uid = one.sample.job_key
        bundle = bundles.setdefault(_place(one.node, one.sample), JobEvidence(job, gaps=list(gaps), uid=uid))
        bundle.user = bundle.user or one.sample.user
        bundle.roster.append(one)
        bundle.dumps += rounds.get((one.node, one.sample.pid), [])
    alive = [bundle for bundle in bundles.values() if bundle.dumps or any(not one.gone for one in bundle.roster)]
    alive = alive or (list(bundles.values()) if or_ended else [])
    for bundle in alive:
        bundle.nodes_missing = _missing_nodes(bundle, nodes_missing)
        key = JobKey(bundle.job, bundle.uid)
        bundle.gaps += [_twin_gap(node, twins[node]) for node, jobs in twin_jobs.items() if key in jobs]
    parts = (part for bundle in alive for part in _by_world_size(bundle))
    return sorted(parts, key=lambda one: (one.job, one.uid is None, one.uid or 0))


def quiet_for(points: Sequence[tuple[float, RankSample]]) -> float | None:
    """Seconds at the end of ``points`` in which the counters stood still; None for fewer than two points.

    Main-thread switches and read and write calls count; a DataLoader's poll every 5 s does not.
    """
    if len(points) < 2:
        return None
    end_at, end = points[-1]
    quiet_s = 0.0
    for (later_at, later), (earlier_at, earlier) in pairwise(reversed(points)):
        step_s = later_at - earlier_at
        if not _still(earlier, later, step_s) or not _still(earlier, end, end_at - earlier_at):
            break
        quiet_s = end_at - earlier_at
    return quiet_s


def _still(earlier: RankSample, later: RankSample, seconds: float) -> bool:
    allowed = max(1.0, 1.0 + limit.QUIET_RATE_PER_S * (seconds - 1.0))
    if earlier.voluntary_switches is None or later.voluntary_switches is None:
        return False
    switches = later.voluntary_switches - earlier.voluntary_switches
    if earlier.main_cpu_s is not None and later.main_cpu_s is not None:
        switches = switches if works(later.main_cpu_s - earlier.main_cpu_s, seconds) else min(switches, 0)
    return 0 <= switches <= allowed and (syscalls_between(earlier, later) or 0) <= allowed


def _by_process(dumps: Iterable[RankStacks]) -> dict[_Process, list[RankStacks]]:
    rounds: dict[_Process, list[RankStacks]] = {}
    for stacks in sorted(dumps, key=lambda stacks: stacks.taken_at):
        rounds.setdefault((stacks.node, stacks.pid), []).append(stacks)
    return rounds


def _living(
    newest: Mapping[str, Sample], history: History, rounds: Mapping[_Process, list[RankStacks]]
) -> list[RankSeen]:
    seen = []
    for node, sample in newest.items():
        for rank in sample.ranks:
            process = (node, rank.pid)
            quiet_s = _quiet_before_dump(history.get(process, ()), rank, rounds.get(process))
            seen.append(RankSeen(node, rank, quiet_s=quiet_s))
    return seen


def _quiet_before_dump(
    points: Sequence[tuple[float, RankSample]], now: RankSample, dumped: list[RankStacks] | None
) -> float | None:
    """Up to the first dump: dumps move the counters of the process they stop."""
    usable = [(at, rank) for at, rank in points if _same_process(rank, now)]
    if dumped:
        first = dumped[0]
        usable = [(at, rank) for at, rank in usable if at < first.taken_at]
        if first.before is not None:
            usable.append((first.taken_at, first.before))
    return quiet_for(usable)


def _gone(
    newest: Mapping[str, Sample],
    history: History,
    rounds: Mapping[_Process, list[RankStacks]],
    living: set[_Process],
) -> list[RankSeen]:
    """Processes that a node which still answers no longer has."""
    now = {(node, rank.pid): rank for node, sample in newest.items() for rank in sample.ranks}
    found = []
    for (node, pid), points in history.items():
        last_at, last = points[-1]
        sample = newest.get(node)
        if sample is None or sample.sampled_at <= last_at or last.rank is None:
            continue
        replaced = (node, pid) in living and not _same_process(last, now[(node, pid)])
        if replaced or (node, pid) not in living:
            found.append(RankSeen(node, last, gone=not _dumped_since(rounds.get((node, pid)), sample)))
    return found


def _dumped_since(dumped: list[RankStacks] | None, sample: Sample) -> bool:
    """A dump with frames that is newer than the sample proves that the process still lives."""
    return any(
        stacks.taken_at > sample.sampled_at and any(digest.frames for digest in stacks.digests)
        for stacks in dumped or ()
    )


def _only_dumped(rounds: Mapping[_Process, list[RankStacks]], seen: set[_Process]) -> list[RankSeen]:
    """Dumps of processes that no sample has: their own counters describe them."""
    found = []
    for (node, pid), dumped in rounds.items():
        if (node, pid) not in seen:
            last = dumped[-1]
            sample = last.after or last.before or RankSample(pid, last.rank, job=last.job, uid=last.uid)
            found.append(RankSeen(node, sample))
    return found


def _same_process(one: RankSample, other: RankSample) -> bool:
    """A pid can be used again: start times tell (1 s of slack, they come from clock ticks)."""
    if one.started_at is None or other.started_at is None:
        return True
    return abs(one.started_at - other.started_at) < 1.0


def _named(seen: list[RankSeen]) -> list[RankSeen]:
    """Dead processes whose environment is gone take the job of their user's one job on their node, if there is one."""
    jobs: dict[tuple[str, int | None], set[str]] = {}
    for one in seen:
        if one.sample.job:
            jobs.setdefault((one.node, one.sample.uid), set()).add(one.sample.job)
    named = []
    for one in seen:
        here = jobs.get((one.node, one.sample.uid), set())
        if not one.sample.job and one.sample.rank is None and one.sample.state == "Z" and len(here) == 1:
            one = replace(one, sample=replace(one.sample, job=next(iter(here))))  # noqa: PLW2901
        named.append(one)
    masters = {(one.node, one.sample.job_key): one.sample.master_address for one in named if one.sample.master_address}
    return [
        one
        if one.sample.master_address
        else replace(one, sample=replace(one.sample, master_address=masters.get((one.node, one.sample.job_key))))
        for one in named
    ]


def _twin_gap(node: str, first: str) -> Gap:
    return Gap(f"node.{node}", f"is the same machine as {first}: its ranks count once", "name each machine once")


def _place(node: str, sample: RankSample) -> _Place:
    """Loopback addresses are equal on all machines: such a job is on one of them only."""
    return (sample.job_key, node if is_loopback(sample.master_address) else "")


def _missing_nodes(bundle: JobEvidence, nodes_missing: Sequence[str]) -> list[str]:
    on_one_machine = any(is_loopback(one.sample.master_address) for one in bundle.roster)
    here = {one.node for one in bundle.roster}
    if on_one_machine:
        return [node for node in nodes_missing if node in here]
    world_size = max((one.sample.world_size or 0 for one in bundle.roster), default=0)
    numbers = {one.sample.rank for one in bundle.roster if one.sample.rank is not None}
    return [node for node in nodes_missing if node in here or len(numbers) < world_size]


def _by_world_size(bundle: JobEvidence) -> list[JobEvidence]:
    """Jobs that share a name but not a size are told apart; processes without a size go to the largest."""
    sizes = Counter(one.sample.world_size for one in bundle.roster if one.sample.world_size and not one.gone)
    if len(sizes) < 2:
        return [bundle]
    largest = sizes.most_common(1)[0][0]
    parts = {size: replace(bundle, roster=[], dumps=[]) for size in sizes}
    size_of: dict[_Process, int] = {}
    for one in bundle.roster:
        size = one.sample.world_size or largest
        if size in parts:
            parts[size].roster.append(one)
            size_of[one.node, one.sample.pid] = size
    for stacks in bundle.dumps:
        if (stacks.node, stacks.pid) in size_of:
            parts[size_of[stacks.node, stacks.pid]].dumps.append(stacks)
    return list(parts.values())
