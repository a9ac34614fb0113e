"""NCCL's RAS asked twice about jobs that stand, at the user's word, and what it says joined with what is known.

One node of a job is asked, since its RAS collects from all others. A job that is not known to stand, or for which a
question is a danger, is not asked, and a gap says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Event

import msgspec

from mltop.probes.investigate.material import Material
from mltop.probes.judge.evidence.ras import (
    FIRST_SAFE_VERSION,
    PAUSE_S,
    RasSituation,
    judge_ras,
    makes_communicators,
    why_not_ask,
)
from mltop.probes.model import Gap, JobReport, RankSample
from mltop.probes.model.evidence.ras import RasAnswer, RasRank, admit_answer, node_of_hosts
from mltop.probes.model.receipt import Refused
from mltop.probes.model.vocabulary import RasRefusal
from mltop.probes.reach.hub import Hub

ANSWER_S = 20.0  # of a node: RAS has twelve, and eight connections before
_VERSION = ".".join(map(str, FIRST_SAFE_VERSION))
_WHY: dict[RasRefusal, str] = {
    "not_standing": "not asked: the job is not known to stand still",
    "young": "not asked: ranks were started minutes ago, and a question while NCCL starts may crash one",
    "creating": "not asked: a rank is making or ending a communicator, and a question meanwhile may crash one",
    "old_version": f"not asked: its NCCL is not known to be {_VERSION} or later, and a question may crash a rank of it",
    "asked_lately": "not asked: it was asked just now",
}


@dataclass
class _Asked:
    """A job: the node that is asked, its ranks there, and what came."""

    report: JobReport
    node: str
    pids: list[int]
    ranks: list[tuple[str, RankSample]]  # of all nodes
    answers: list[RasAnswer] = field(default_factory=list)
    inner: dict[int, int] = field(default_factory=dict)  # on that node: the pid that RAS tells → ours
    why: str = ""


def ask_about(
    hub: Hub,
    material: Material,
    reports: Sequence[JobReport],
    *,
    consent: bool,
    cancelled: Event | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Adds what RAS says to ``progress`` of these reports, and why it was not asked to their gaps. Takes most of a
    minute where a job is asked. ``consent``: to ask versions of NCCL that a question may crash, too.
    """
    stop = cancelled or Event()
    jobs: list[_Asked] = []
    for report in reports:
        job = _asked(report, material)
        refusal = _refusal(report, job, consent, material)
        if job is None or refusal is not None:
            why = _WHY[refusal] if refusal is not None else "not asked: no rank of it is in any sample"
            report.verdict.gaps.append(_gap(report, why))
        else:
            jobs.append(job)
    for turn in range(2 if jobs else 0):
        if turn and stop.wait(PAUSE_S):
            break
        tell(f"asking NCCL's RAS, question {turn + 1} of 2")
        for job in jobs:
            if not job.why and not stop.is_set():
                _ask(hub, job)
        if all(job.why for job in jobs):
            break
    for job in jobs:
        _take(job)


def _gap(report: JobReport, why: str) -> Gap:
    return Gap.about("ras", item=report.job, why=why)


def _asked(report: JobReport, material: Material) -> _Asked | None:
    own = {(digest.node, digest.pid) for digest in report.digests}
    ranks = [
        (sample.node, rank)
        for sample in material.newest
        for rank in sample.ranks
        if (sample.node, rank.pid) in own and rank.state not in ("Z", "X")
    ]
    if not ranks:
        return None
    node = min(ranks, key=lambda each: (each[1].rank is None, each[1].rank or 0))[0]
    return _Asked(report, node, [rank.pid for of_node, rank in ranks if of_node == node], ranks)


def _refusal(report: JobReport, job: _Asked | None, consent: bool, material: Material) -> RasRefusal | None:
    verdict = report.verdict
    signals = sum((verdict.stands_still, verdict.stands_still and verdict.confidence != "low", bool(report.progress)))
    at = {sample.node: sample.sampled_at for sample in material.newest}
    ages = [at[node] - rank.started_at for node, rank in (job.ranks if job else ()) if rank.started_at is not None]
    versions = {rank.versions.get("nccl", "") for _, rank in (job.ranks if job else ())}
    situation = RasSituation(
        nccl_version=versions.pop() if len(versions) == 1 else "",
        signals=signals,
        age_s=min(ages) if job is not None and len(ages) == len(job.ranks) else None,
        creating=makes_communicators(report.digests),
        consent=consent,
    )
    return why_not_ask(situation) if job is not None or signals < 2 else None


def _ask(hub: Hub, job: _Asked) -> None:
    pending = hub.request("ras", {"pids": job.pids}, (job.node,))
    for answer in pending.answers(ANSWER_S):
        message = answer.message
        if message.kind == "error":
            job.why = message.error
        elif message.kind == "done":
            try:
                told = msgspec.convert(message.data.get("answer"), RasAnswer)
                admit_answer(told)
                pairs = msgspec.convert(message.data.get("inner_pids"), list[tuple[int, int]])
            except (msgspec.ValidationError, Refused) as error:
                job.why = f"the node's answer is refused: {error}"
                return
            job.answers.append(told)
            job.inner = {inner: pid for pid, inner in pairs}
    if pending.open_nodes:
        pending.cancel()
        job.why = "no answer in time"


def _take(job: _Asked) -> None:
    if job.why or len(job.answers) < 2:
        job.report.verdict.gaps.append(_gap(job.report, job.why or "it was asked once only, which tells nothing"))
        return
    first, second = job.answers
    known = _Known(job, second)
    told = judge_ras(first, second, known.rank_of)
    job.report.progress += told
    if not told:
        why = "two answers half a minute apart tell of nobody who waits"
        job.report.verdict.gaps.append(_gap(job.report, known.unmatched or why))


class _Known:
    """Which rank of the job a rank of a communicator is: by its host, its process and its GPU."""

    def __init__(self, job: _Asked, answer: RasAnswer) -> None:
        self._pids = {(node, rank.pid): rank for node, rank in job.ranks}
        self._job = job
        own = {host for host, pid in answer.places if pid in job.inner}
        self._nodes = node_of_hosts(answer, _pids_by_node(job.ranks))
        if len(own) == 1:
            self._nodes[own.pop()] = job.node
        unknown = sorted({host for host, _ in answer.places} - self._nodes.keys())
        self.unmatched = f"its hosts cannot be matched with nodes: {', '.join(unknown[:4])}" if unknown else ""

    def rank_of(self, told: RasRank) -> int | None:
        node = self._nodes.get(told.host)
        if node is None or told.pid is None:
            return None
        pid = self._job.inner.get(told.pid, told.pid) if node == self._job.node else told.pid
        rank = self._pids.get((node, pid))
        if rank is None or (rank.gpus and told.nvml_dev is not None and told.nvml_dev not in rank.gpus):
            return None
        return rank.rank


def _pids_by_node(ranks: Iterable[tuple[str, RankSample]]) -> list[tuple[str, frozenset[int]]]:
    nodes: dict[str, set[int]] = {}
    for node, rank in ranks:
        nodes.setdefault(node, set()).add(rank.pid)
    return [(node, frozenset(pids)) for node, pids in nodes.items()]
