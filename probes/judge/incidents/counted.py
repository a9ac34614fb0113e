"""What the counters of a job's collectives (flight records, RAS) add to what its stacks say of who holds it up.

Counters decide where stacks cannot: every rank waits, and one has never launched what the others wait in. They never
overrule stacks that name somebody: where they say the opposite, both are given, and both are less sure.

A record is of its own time. It names somebody only where the ranks were not seen to get on since, or cannot have (an
operation had taken as long as it may), and where the rank's own stack does not show that it has come further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from mltop.probes.judge.evidence.cases import GLOO, kind_of
from mltop.probes.judge.evidence.progress_words import group_text, operation_text
from mltop.probes.judge.hang.frames import where
from mltop.probes.judge.hang.view import MAIN
from mltop.probes.judge.incidents.scene import JobScene
from mltop.probes.judge.values import known
from mltop.probes.model import CONFIDENCES, Confidence, Culprit, Evidence, JobReport, StackDigest
from mltop.probes.model.evidence.collectives import ProgressVerdict
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.vocabulary import CulpritKind, EvidenceSource, ProgressKind

SLACK_S = 2.0  # what is known to stand since a look stood a little before it
# Before a job was first seen to stand. Who is named by an older record was waited for then, which may be over.
LATELY_S = 120.0
_NAMING: tuple[ProgressKind, ...] = ("never_entered", "mismatch", "not_started", "unresponsive", "init")
# Waits for the GPU, from which nobody can tell what it waits for: its counters can.
_OF_GPU = ("cuda.synchronize", "ddp.backward")
# What cannot be the same as "all have launched it": processes that are stopped or gone hold up what they have launched.
_MAY_HAVE_LAUNCHED: tuple[CulpritKind, ...] = ("stands", "computes", "polls", "elsewhere", "behind", "")
_PLAIN: tuple[CulpritKind, ...] = ("stands", "elsewhere", "behind", "stopped", "traced", "kernel")  # it does not work
_SOURCE_WORDS: dict[EvidenceSource, str] = {"ras": "NCCL's counters", "log": "the logs"}
_Age = Literal["now", "lately", "old"]


class Joined(NamedTuple):
    """Who is named by stacks and counters together, how sure that is, and what is to be said of it."""

    culprits: list[Culprit]
    confidence: Confidence
    evidence: list[Evidence]


def with_counters(job: JobScene, report: JobReport, culprits: Sequence[Culprit], confidence: Confidence) -> Joined:
    """``culprits``: those of the stacks."""
    verdicts, age = _answer(job, report)
    named = {rank for each in verdicts for rank in each.culprits}
    if not culprits:
        if not verdicts:
            return Joined([], confidence, [])
        sure = min(verdicts, key=lambda each: CONFIDENCES.index(each.confidence)).confidence
        accused = [one for each in verdicts for one in _culprits(each, report)]
        return Joined(list({one.rank: one for one in accused}.values()), sure if age == "now" else "low", [])
    by_stacks = {culprit.rank for culprit in culprits if culprit.rank is not None}
    if not by_stacks or (named & by_stacks):
        both = named == by_stacks and all(each.confidence == "high" for each in verdicts)
        is_plain = confidence == "low" or all(culprit.how in _PLAIN for culprit in culprits)
        # A slow step looks the same to stacks and to counters.
        is_long = (job.motion is not None and job.motion.phase == "stalled") or all(map(_has_timed_out, verdicts))
        is_surer = both and age == "now" and is_plain and is_long
        surer = CONFIDENCES[max(0, CONFIDENCES.index(confidence) - 1)]
        return Joined(list(culprits), surer if is_surer else confidence, [])
    opposite = _opposite(job, report, verdicts, age, culprits)
    if opposite is None:
        return Joined(list(culprits), confidence, [])
    less_sure = CONFIDENCES[min(len(CONFIDENCES) - 1, CONFIDENCES.index(confidence) + 1)]
    return Joined(list(culprits), less_sure, [opposite])


def _answer(job: JobScene, report: JobReport) -> tuple[list[ProgressVerdict], _Age]:
    """Those of the surest verdicts that name somebody; none where two sources name different ranks."""
    naming = [each for each in report.progress if each.culprits and each.kind in _NAMING]
    verdicts = [each for each in naming if _age(job, report, each) != "old" and not _is_outdated(each, report)]
    by_source: dict[EvidenceSource, set[int]] = {}
    for each in verdicts:
        by_source.setdefault(each.source, set()).update(each.culprits)
    answers = list(by_source.values())
    if not verdicts or not all(answers[0] & other for other in answers[1:]):
        return [], "old"
    best = min(CONFIDENCES.index(each.confidence) for each in verdicts)
    surest = [each for each in verdicts if CONFIDENCES.index(each.confidence) == best]
    ages = [_age(job, report, each) for each in surest]
    return surest, "now" if all(age == "now" for age in ages) else "lately"


def _age(job: JobScene, report: JobReport, verdict: ProgressVerdict) -> _Age:
    """Whether the ranks can have got on since. Times of a node are by its own clock, as those of its stacks are."""
    parties = [each for each in verdict.counters if each.rank in (*verdict.culprits, *verdict.waiting)]
    if all(each.source == "ras" for each in parties) or _has_timed_out(verdict):
        return "now"
    times = [each.at - job.skews.get(each.node, 0.0) if each.at is not None else None for each in parties]
    since = _standing_since(job, report)
    if not times or None in times or since is None:
        return "old"
    first = min(known(times))
    return "now" if first >= since - SLACK_S else "lately" if first >= since - LATELY_S else "old"


def _standing_since(job: JobScene, report: JobReport) -> float | None:
    """Since when nothing is known to have moved, by the watcher's clock."""
    motion = job.motion
    skew_s = max((job.skews.get(digest.node, 0.0) for digest in report.digests), default=0.0)
    by_stacks = report.verdict.since - skew_s if report.verdict.since is not None else None
    by_samples = motion.since if motion is not None and motion.phase in ("quiet", "stalled") else None
    return min(known((by_stacks, by_samples)), default=None)


def _has_timed_out(verdict: ProgressVerdict) -> bool:
    """Whether those who wait had waited for as long as they may when they were recorded: nobody goes on after that."""
    return any(
        record.at is not None
        and operation.created_at is not None
        and operation.timeout_s is not None
        and record.at - operation.created_at >= operation.timeout_s
        for record in verdict.counters
        if record.rank in verdict.waiting
        for operation in record.operations
    )


def _is_outdated(verdict: ProgressVerdict, report: JobReport) -> bool:
    """Whether a stack of those it accuses shows that they wait for others by now: in what they have launched since, or
    in what no counter counts.
    """
    if verdict.kind in ("not_started", "unresponsive"):
        return False
    return any(_waits_for_others(rank, verdict, digest) for rank in verdict.culprits for digest in _mains(report, rank))


def _waits_for_others(rank: int, verdict: ProgressVerdict, digest: StackDigest) -> bool:
    waits_in = digest.waiting_in
    own = next((side.operation for side in verdict.sides if rank in side.ranks), None)
    if verdict.kind == "mismatch" and own is not None:
        launched = waits_in is not None and kind_of(waits_in) == kind_of(own.name)
        return not launched and (verdict.group.backend == GLOO or waits_in not in (None, *_OF_GPU))
    return waits_in is not None and (verdict.group.backend == GLOO or waits_in not in _OF_GPU)


def _mains(report: JobReport, rank: int) -> Iterator[StackDigest]:
    own = (digest for digest in report.digests if digest.rank == rank and digest.child_of is None)
    return (digest for digest in own if digest.thread == MAIN and digest.error is None)


def _culprits(verdict: ProgressVerdict, report: JobReport) -> Iterator[Culprit]:
    here = f"{operation_text(verdict.operation, verdict.sequence)} of {group_text(verdict.group)}"
    for rank in verdict.culprits:
        record = next((each for each in verdict.counters if each.rank == rank), None)
        digest = next(_mains(report, rank), None)
        node = digest.node if digest is not None else record.node if record is not None else ""
        pid = digest.pid if digest is not None else record.pid if record is not None else None
        place = where(digest) if digest is not None else ""
        yield Culprit(rank, node, pid, _reason(verdict, rank, here), place, False)


def _reason(verdict: ProgressVerdict, rank: int, here: str) -> str:
    if verdict.kind == "never_entered":
        return f"it has not entered {here}"
    if verdict.kind == "not_started":
        return f"{here} has not begun on its GPU, and runs on the others'"
    if verdict.kind == "unresponsive":
        return "it does not answer NCCL's RAS"
    if verdict.kind == "init":
        return f"it does not come to {group_text(verdict.group)}, which is being made"
    own = next((side.operation for side in verdict.sides if rank in side.ranks), None)
    other = operation_text(own, verdict.sequence) if own is not None else "another operation"
    same = own is not None and verdict.operation is not None and kind_of(own.name) == kind_of(verdict.operation.name)
    what = "one of another size or type" if same else other
    return f"it is in {what}, while the others are in {here}"


def _opposite(
    job: JobScene, report: JobReport, verdicts: Sequence[ProgressVerdict], age: _Age, culprits: Sequence[Culprit]
) -> Evidence | None:
    """What is said where counters contradict the stacks."""
    by_stacks = ranks_text(sorted(known(culprit.rank for culprit in culprits)))
    if verdicts and age == "now":
        by_counters = ranks_text(sorted({rank for each in verdicts for rank in each.culprits}))
        text = f"{_source(verdicts[0])} name {by_counters}, the stacks {by_stacks}: they disagree"
        return Evidence(verdicts[0].source, text, verdicts[0].since)
    below = next((each for each in report.progress if _all_are_there(job, report, each, culprits)), None)
    if below is None:
        return None
    text = f"{_source(below)} say that all have launched it, the stacks that {by_stacks} is elsewhere"
    return Evidence(below.source, text, below.since)


def _all_are_there(job: JobScene, report: JobReport, verdict: ProgressVerdict, culprits: Iterable[Culprit]) -> bool:
    """Whether all who are accused have launched what the others wait in."""
    accused = list(culprits)
    if verdict.kind != "all_launched" or verdict.confidence == "low" or _age(job, report, verdict) != "now":
        return False
    return all(culprit.rank in verdict.waiting and culprit.how in _MAY_HAVE_LAUNCHED for culprit in accused)


def _source(verdict: ProgressVerdict) -> str:
    return _SOURCE_WORDS.get(verdict.source, "the flight records")
