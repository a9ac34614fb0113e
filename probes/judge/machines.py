"""One machine that is watched under several names: short and long, or its address."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from mltop.probes.model import RankSample, RankStacks, Sample

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
