"""What two answers of NCCL's RAS say of a job that stands, and whether it may be asked at all.

RAS counts what the host has handed over: equal counts that stay are no sign of health, and it knows nothing of messages
between two ranks, of captured graphs, of what runs on the GPU. What differs between ranks is told by counts, never by
what RAS itself calls an outlier: those may be the ranks that are ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mltop.probes.judge.evidence.progress import judge_progress, surest_first
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.evidence.collectives import Group, GroupProgress, ProgressVerdict
from mltop.probes.model.evidence.ras import RasAnswer, RasCommunicator, RasRank, version_of
from mltop.probes.model.verdict import StackDigest
from mltop.probes.model.vocabulary import RasRefusal

# nccl#1762: with a rank missing and two communicators, the answering rank reads beyond an array; mended in this one.
FIRST_SAFE_VERSION = (2, 29, 2)
YOUNG_S = 300.0  # nccl#1669, nccl#1718: asked while communicators are made, a rank crashes
PAUSE_S = 30.0  # between two questions
APART_S = 10.0  # two answers that are compared
_MAKING = frozenset({
    "init_process_group", "new_group", "_new_process_group_helper", "split_group", "new_subgroups", "init_device_mesh",
    "new_subgroups_by_enumeration", "_init_process_groups", "initialize_model_parallel", "destroy_process_group",
})  # fmt: skip
_MAKING_NATIVE = ("ncclCommInit", "ncclCommSplit", "ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize")

# RAS's text tells of few ranks one by one. The many count as members with these numbers, which are told to nobody.
_FIRST_OF_MANY = -1
RankOf = Callable[[RasRank], "int | None"]


@dataclass(frozen=True)
class RasSituation:
    """What is known before the question. ``signals``: independent ones that say that the job stands still.

    ``age_s``: since the job's last rank was started, ``asked_s``: since the last question, None: never, or not known.
    ``consent``: the user has been told what it can do to this version, and wants it.
    """

    nccl_version: str
    signals: int
    age_s: float | None
    creating: bool
    asked_s: float | None = None
    consent: bool = False


def why_not_ask(situation: RasSituation) -> RasRefusal | None:
    """None: it may be asked once. Consent makes up for an old version, for nothing else."""
    if situation.asked_s is not None and situation.asked_s < PAUSE_S:
        return "asked_lately"
    if situation.signals < 2:
        return "not_standing"
    if situation.age_s is None or situation.age_s < YOUNG_S:
        return "young"
    if situation.creating:
        return "creating"
    version = version_of(situation.nccl_version)
    if (version is None or version < FIRST_SAFE_VERSION) and not situation.consent:
        return "old_version"
    return None


def makes_communicators(digests: Iterable[StackDigest]) -> bool:
    """Whether any thread is making or ending a communicator."""
    frames = (frame for digest in digests for frame in digest.frames)
    return any(
        frame.function.rpartition(".")[2] in _MAKING or frame.function.startswith(_MAKING_NATIVE) for frame in frames
    )


def judge_ras(first: RasAnswer, second: RasAnswer, rank_of: RankOf) -> tuple[ProgressVerdict, ...]:
    """The surest first; empty where it moves, or nothing can be told. ``rank_of``: the job's number of a rank."""
    if second.received_at - first.received_at < APART_S:
        return ()
    earlier = {communicator.name: communicator for communicator in first.communicators}
    names = Counter(communicator.name for communicator in second.communicators)
    verdicts: list[ProgressVerdict] = []
    counted: list[GroupProgress] = []
    for communicator in second.communicators:
        before = earlier.get(communicator.name)
        if before is None or names[communicator.name] > 1:  # two of one name cannot be told apart
            continue
        verdicts += _of_states(before, communicator, rank_of)
        if _stands(before, communicator) and not second.timeouts:
            verdicts += _of_counts(communicator, rank_of)
            counted += _progress(communicator, rank_of)
    verdicts += map(_without_the_many, judge_progress(counted))
    certain = [verdict for verdict in verdicts if verdict.kind != "all_launched"]
    return tuple(sorted(certain or verdicts, key=surest_first))


def _group(communicator: RasCommunicator, rank_of: RankOf) -> Group:
    members = [(rank.rank, rank_of(rank)) for rank in communicator.ranks]
    numbers = tuple(number for _, number in sorted(members) if number is not None)
    is_whole = len(numbers) == communicator.size == len(set(numbers))
    return Group(
        communicator.name, f"communicator {communicator.hash}", numbers if is_whole else None, communicator.size, "nccl"
    )


def _numbers(ranks: Iterable[RasRank], rank_of: RankOf) -> tuple[int, ...]:
    return tuple(sorted(set(known(map(rank_of, ranks)))))


def _of_states(before: RasCommunicator, now: RasCommunicator, rank_of: RankOf) -> Iterator[ProgressVerdict]:
    """Who does not answer, and who does not come to a communicator that is being made: in both answers."""
    earlier = {rank.rank: rank for rank in before.ranks}
    lasting = [rank for rank in now.ranks if (was := earlier.get(rank.rank)) is not None and was.state == rank.state]
    silent = [rank for rank in lasting if rank.state == "gone" and (rank.unresponsive or rank.dead)]
    group = _group(now, rank_of)
    waiting = _numbers((rank for rank in now.ranks if rank.state == "running"), rank_of)
    if silent:
        culprits, counters = _numbers(silent, rank_of), _records(silent, group, rank_of)
        yield ProgressVerdict(
            "unresponsive", group, culprits=culprits, waiting=waiting, counters=counters, confidence="high"
        )
    making = [rank for rank in lasting if rank.state == "init"]
    absent = [rank for rank in lasting if rank.state == "gone" and not (rank.unresponsive or rank.dead)]
    if making and len(making) >= len(absent):
        culprits, waiting = _numbers(absent, rank_of), _numbers(making, rank_of)
        counters = _records([*making, *absent], group, rank_of)
        yield ProgressVerdict("init", group, culprits=culprits, waiting=waiting, counters=counters, confidence="medium")


def _records(
    ranks: Iterable[RasRank], group: Group, rank_of: RankOf, completed: int | None = None
) -> tuple[GroupProgress, ...]:
    return tuple(
        GroupProgress(group, rank_of(one), one.rank, one.host, one.pid, one.total, completed=completed, source="ras")
        for one in ranks
    )


def _stands(before: RasCommunicator, now: RasCommunicator) -> bool:
    """Whether every rank is running and nothing was launched in between."""
    counts = {rank.rank: rank.counts for rank in before.ranks}
    if not now.ranks or (before.usual, before.usual_ranks) != (now.usual, now.usual_ranks):
        return False
    return all(rank.state == "running" and rank.counts is not None for rank in now.ranks) and counts == {
        rank.rank: rank.counts for rank in now.ranks
    }


def _told(communicator: RasCommunicator) -> int:
    return len(communicator.ranks) + communicator.usual_ranks


def _of_counts(communicator: RasCommunicator, rank_of: RankOf) -> Iterator[ProgressVerdict]:
    """Equal totals of other operations, and equal counts of all."""
    size = communicator.size
    vectors = grouped(communicator.ranks, lambda rank: tuple(sorted(rank.counts or ())))
    having = {vector: len(ranks) for vector, ranks in vectors.items()}
    if communicator.usual is not None:
        usual = tuple(sorted(communicator.usual))
        having[usual] = having.get(usual, 0) + communicator.usual_ranks
    totals = {sum(count for _, count in vector) for vector in having}
    if len(totals) != 1:
        return
    group = _group(communicator, rank_of)
    counters = _records(communicator.ranks, group, rank_of)
    numbers = _numbers(communicator.ranks, rank_of)
    if len(having) == 1:
        if size == _told(communicator) and totals != {0}:
            yield ProgressVerdict("all_launched", group, totals.pop(), waiting=numbers, counters=counters)
        return
    most = max(having.values())
    has_majority = 2 * most > sum(having.values())
    few = [rank for vector, ranks in vectors.items() if having[vector] < most for rank in ranks]
    culprits = _numbers(few, rank_of) if has_majority else ()
    waiting = tuple(number for number in numbers if number not in culprits)
    yield ProgressVerdict(
        "mismatch", group, totals.pop(), culprits=culprits, waiting=waiting, counters=counters, confidence="medium"
    )


def _progress(communicator: RasCommunicator, rank_of: RankOf) -> Sequence[GroupProgress]:
    """Of a communicator in which some have launched more than others: these wait for those."""
    totals = known(rank.total for rank in communicator.ranks)
    if communicator.usual_ranks:
        totals.append(sum(count for _, count in communicator.usual or ()))
    if len(set(totals)) < 2 or _told(communicator) != communicator.size:
        return ()
    if any(rank_of(rank) is None for rank in communicator.ranks):
        return ()
    least = min(totals)
    group = _group(communicator, rank_of)
    many = [
        GroupProgress(group, _FIRST_OF_MANY - number, enqueued=totals[-1], completed=least, source="ras")
        for number in range(communicator.usual_ranks)
    ]
    return [*_records(communicator.ranks, group, rank_of, least), *many]


def _without_the_many(verdict: ProgressVerdict) -> ProgressVerdict:
    """Without those who have no number: if they are waited for, nobody is named."""
    named = min(verdict.culprits, default=0) >= 0
    return replace(
        verdict,
        culprits=verdict.culprits if named else (),
        waiting=tuple(rank for rank in verdict.waiting if rank >= 0),
        counters=tuple(record for record in verdict.counters if record.rank is None or record.rank >= 0),
    )
