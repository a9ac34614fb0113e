"""Everything a verdict is made from, the same live and from a capture on disk."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mltop.probes.investigate.missing import with_reasons
from mltop.probes.model import CONFIDENCES, KINDS, Gap, JobReport, NodeState, RankStacks, Sample
from mltop.probes.reach.view import Connection

if TYPE_CHECKING:
    from mltop.probes.judge.evidence import JobEvidence


@dataclass
class Material:
    """``samples``: per node, oldest first, the last minutes; in a running dump all but the newest hold ranks only.

    ``dumps``: all rounds of all ranks. ``connections``: how each node was reached, by its name. ``partial``: not all
    nodes that are watched were asked.
    """

    nodes: list[NodeState] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    dumps: list[RankStacks] = field(default_factory=list)
    not_answered: list[NodeState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    connections: dict[str, Connection] = field(default_factory=dict)
    partial: bool = False

    @property
    def newest(self) -> list[Sample]:
        """The last sample of every node that has one."""
        return [samples[-1] for samples in self.samples.values() if samples]


def rank_gaps(material: Material) -> list[tuple[str, Gap]]:
    """(node, gap) of everything that may hide ranks: other users' processes, hidden ones."""
    return [(sample.node, gap) for sample in material.newest for gap in sample.gaps if gap.what == "ranks"]


def nodes_by_gap(material: Material) -> list[tuple[Gap, list[str]]]:
    """The same with the nodes that share a reason and a fix together."""
    groups: dict[tuple[str, str], tuple[Gap, list[str]]] = {}
    for node, gap in rank_gaps(material):
        groups.setdefault((gap.why, gap.fix), (gap, []))[1].append(node)
    return list(groups.values())


def judge(material: Material, job: str | None = None, until: float = math.inf) -> list[JobReport]:
    """A report per job: what hangs first, the surest first, then the largest; ``job`` keeps one.

    Each job is judged on its own: one that cannot be has a report that says why. Those that it is not the turn of by
    ``until`` (monotonic s) are not judged, and say so; the largest have theirs first.
    """
    from mltop.probes.judge.evidence import JobEvidence
    from mltop.probes.judge.hang import failed_report
    from mltop.probes.judge.jobs import evidence_by_job, history_of

    try:
        evidences = evidence_by_job(
            material.newest,
            material.dumps,
            history_of(sample for samples in material.samples.values() for sample in samples),
            [state.node for state in material.not_answered],
            material.gaps,
            or_ended=True,
        )
    except Exception as error:  # noqa: BLE001 - no verdict is better than none that anybody hears of
        return [failed_report(JobEvidence(job or ""), f"the jobs could not be told apart: {_words(error)}")]
    wanted = [evidence for evidence in evidences if job is None or evidence.job == job]
    reports = [_judged(evidence, material, until) for evidence in sorted(wanted, key=lambda one: -len(one.roster))]
    return sorted(reports, key=_worst_first)


def _judged(evidence: JobEvidence, material: Material, until: float) -> JobReport:
    from mltop.probes.judge.hang import failed_report, report

    if time.monotonic() > until:
        return failed_report(evidence, "not judged within the time: a longer --timeout, or --job for it alone")
    try:
        return with_reasons(report(evidence), material.not_answered, material.partial)
    except Exception as error:  # noqa: BLE001 - it costs this job its verdict, and says so
        return failed_report(evidence, f"judging it failed: {_words(error)}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error} (please report this)"


def _worst_first(report: JobReport) -> tuple[int, int, int, str]:
    verdict = report.verdict
    sureness = CONFIDENCES.index(verdict.confidence)
    return (KINDS.index(verdict.kind), sureness, -(report.world_size or 0), report.job)
