"""Everything a verdict is made from, the same live and from a capture on disk; equal parts of many dumps kept once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mltop.probes.model import (
    CONFIDENCES,
    VERDICT_KINDS,
    Gap,
    JobKey,
    JobReport,
    NodeState,
    RankStacks,
    Sample,
)
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.model.ranks import Ranges
from mltop.probes.reach.view import Connection
from mltop.probes.system.limits import limit_words

if TYPE_CHECKING:
    from mltop.probes.judge.hang.evidence import JobEvidence


_HIDES_RANKS = ("ranks", "ranks.environment")  # what gaps are about that may hide ranks


@dataclass
class Material:
    """All that a verdict is made from. ``samples``: per node, oldest first, the last minutes; in a running dump all but
    the newest hold ranks only.

    ``dumps``: all rounds of all ranks. ``connections``: how each node was reached, by its name. ``partial``: not all
    nodes that are watched were asked. ``rhythms``: how long a step of a job takes, s, where that is known.
    ``records``: by node and pid, what ranks have on record of their collectives. ``judged_until``: when it was last
    judged, unix s.
    """

    nodes: list[NodeState] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    dumps: list[RankStacks] = field(default_factory=list)
    not_answered: list[NodeState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    connections: dict[str, Connection] = field(default_factory=dict)
    partial: bool = False
    rhythms: Mapping[JobKey, float] = field(default_factory=dict)
    records: dict[tuple[str, int], RankRecords] = field(default_factory=dict)
    judged_until: float = math.inf

    @property
    def newest(self) -> list[Sample]:
        """The last sample of every node that has one."""
        return [samples[-1] for samples in self.samples.values() if samples]

    def as_judged(self, samples: Iterable[tuple[str, list[Sample]]]) -> Iterator[tuple[str, list[Sample]]]:
        """Of each node's samples those that give the same verdict again when they are read from a file.

        Without what was taken after the last verdict, or between the look at the past and the node's first stacks.
        """
        first_dumps: dict[str, float] = {}
        for dump in self.dumps:
            first_dumps[dump.node] = min(dump.taken_at, first_dumps.get(dump.node, math.inf))
        for node, of_node in samples:
            first_dump = first_dumps.get(node, -math.inf)
            before = [kept.sampled_at for kept in self.samples.get(node, ()) if kept.sampled_at < first_dump]
            last_before = max(before, default=first_dump)
            judged = [sample for sample in of_node if sample.sampled_at <= self.judged_until]
            yield node, [sample for sample in judged if not last_before < sample.sampled_at < first_dump]


def rank_gaps(material: Material) -> list[tuple[str, Gap]]:
    """The (node, gap) of everything that may hide ranks: other users' processes, hidden ones."""
    return [(sample.node, gap) for sample in material.newest for gap in sample.gaps if gap.what in _HIDES_RANKS]


def nodes_by_gap(material: Material) -> list[tuple[Gap, list[str]]]:
    """The ``rank_gaps`` with the nodes that share a reason and a fix together."""
    groups: dict[tuple[str, str], tuple[Gap, list[str]]] = {}
    for node, gap in rank_gaps(material):
        groups.setdefault((gap.why, gap.fix), (gap, []))[1].append(node)
    return list(groups.values())


def judge(material: Material, job: str | None = None, until: float = math.inf) -> list[JobReport]:
    """A report per job: what hangs first, the surest first, then the largest; ``job`` keeps one.

    Each job is judged on its own: one that cannot be has a report that says why. Those that it is not the turn of by
    ``until`` (monotonic s) are not judged, and say so; the largest have theirs first.
    """
    from mltop.probes.judge.hang.evidence import JobEvidence, evidence_by_job, history_of
    from mltop.probes.judge.hang.verdict import failed_report

    try:
        evidences = evidence_by_job(
            material.newest,
            material.dumps,
            history_of(sample for samples in material.samples.values() for sample in samples),
            material.not_answered,
            material.gaps,
            or_ended=True,
            partial=material.partial,
        )
    except Exception as error:  # noqa: BLE001 - no verdict is better than none that anybody hears of
        return [failed_report(JobEvidence(job or ""), f"the jobs could not be distinguished: {_words(error)}")]
    evidences = [evidence for evidence in evidences if job is None or evidence.job == job]
    for evidence in evidences:
        evidence.rhythm_s = material.rhythms.get(JobKey(evidence.job, evidence.uid))
    evidences.sort(key=lambda evidence: -len(evidence.roster))
    reports = sorted((_judged(evidence, until) for evidence in evidences), key=_worst_first)
    for report in reports if material.records else ():
        _add_progress(report, material.records)
    return reports


def _add_progress(report: JobReport, records: Mapping[tuple[str, int], RankRecords]) -> None:
    """What the records of the job's processes say, and why some cannot be used."""
    from mltop.probes.judge.evidence.progress import judge_progress

    processes = {(digest.node, digest.pid): None for digest in report.digests}
    own = [records[process] for process in processes if process in records]
    told = (replace(progress, node=each.node, pid=each.pid) for each in own for progress in each.progress)
    if report.verdict.kind not in ("moving", "straggler"):  # else they are of a wait that is over
        report.progress = list(judge_progress(told, report.world_size))
    pipe = next((each.pipe for each in own if each.pipe), "")
    if pipe and report.verdict.stands_still and not report.progress:
        why = f"no rank has left a record; each would write one at once when its pipe is written to, as {pipe}"
        report.verdict.gaps.append(Gap.about("flight_recorder", why=why))
    unread: dict[str, list[int]] = {}
    for each in own:
        for gap in each.gaps:
            unread.setdefault(gap.why, []).append(-1 if each.rank is None else each.rank)
    report.verdict.gaps += [
        Gap.about("flight_recorder", item=str(Ranges.of(ranks)), why=why) for why, ranks in unread.items()
    ]


def _judged(evidence: JobEvidence, until: float) -> JobReport:
    from mltop.probes.judge.hang.verdict import failed_report, report

    if time.monotonic() > until:
        return failed_report(evidence, "not judged within the time: a longer --timeout, or --job for it alone")
    try:
        return report(evidence)
    except Exception as error:  # noqa: BLE001 - it costs this job its verdict, and says so
        return failed_report(evidence, f"judging it failed: {_words(error)}")


def _words(error: Exception) -> str:
    return limit_words(error) or f"{type(error).__name__}: {error} (please report this)"


def _worst_first(report: JobReport) -> tuple[int, int, int, str]:
    verdict = report.verdict
    sureness = CONFIDENCES.index(verdict.confidence)
    return (VERDICT_KINDS.index(verdict.kind), sureness, -(report.world_size or 0), report.job)
