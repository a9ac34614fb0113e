"""NCCL's RAS asked about jobs that stand, at the user's word, and what it says joined with what is known.

One node of a job is asked, since its RAS collects from all others. A job that is not known to stand, or for which a
question is a danger, is not asked, and it is said why: by one rule, for `mltop stacks --ras` as for the screen's key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event

import msgspec

from mltop.probes.investigate.material import Material
from mltop.probes.investigate.progress import Question, Run
from mltop.probes.judge.evidence.ras import (
    APART_S,
    FIRST_SAFE_VERSION,
    PAUSE_S,
    RasSituation,
    judge_ras,
    makes_communicators,
    why_not_ask,
)
from mltop.probes.judge.values import known
from mltop.probes.model import Gap, JobKey, JobMotion, JobReport, RankSample, Sample
from mltop.probes.model.evidence.collectives import ProgressVerdict
from mltop.probes.model.evidence.ras import RasAnswer, RasRank, admit_answer, node_of_hosts
from mltop.probes.model.receipt import Refused
from mltop.probes.model.vocabulary import RasRefusal
from mltop.probes.reach.hub import Hub

ANSWER_S = 20.0  # of a node: RAS has twelve, and eight connections before
LOOK_S = 5.0
STACKS_HOLD_S = 300.0  # of a job that stands: after that, its threads may have gone on to make communicators
COMPARED_S = 900.0  # an answer that is older says nothing of this stand
SINCE_DUMP_S = 15.0  # a job that last moved so long after its stacks were taken stands somewhere else than they say
_VERSION = ".".join(map(str, FIRST_SAFE_VERSION))
REFUSALS: Mapping[RasRefusal, str] = {
    "not_standing": "the job is not known to be stuck",
    "young": "ranks were started minutes ago, and a question while NCCL starts may crash one",
    "creating": "a rank is making or ending a communicator, and a question meanwhile may crash one",
    "old_stacks": "its stacks are too old to show that no rank creates a communicator: dump them again",
    "old_version": f"its NCCL is not known to be {_VERSION} or later, and a question may crash a rank of it",
    "asked_lately": f"it was asked less than {PAUSE_S:.0f} s ago, and every question is a risk",
}
_NOBODY = "no rank of it is in any sample"
_ONE_TELLS_NOTHING = "one answer names no waiting rank; a second one, half a minute later, is compared with it"
_TWO_TELL_NOTHING = "two answers half a minute apart name no waiting rank"


@dataclass
class _Asked:
    """A job: the node that is asked, its ranks there, and what came."""

    report: JobReport
    node: str
    pids: list[int]
    ranks: list[tuple[str, RankSample]]  # of all nodes
    at: dict[str, float] = field(default_factory=dict)  # of the newest sample of each node, by its clock
    answers: list[RasAnswer] = field(default_factory=list)
    inner: dict[int, int] = field(default_factory=dict)  # on that node: the pid that RAS tells → ours
    why: str = ""

    @property
    def nccl_version(self) -> str:
        """ "" where it is not known, or ranks have different ones."""
        versions = {rank.versions.get("nccl", "") for _, rank in self.ranks}
        return versions.pop() if len(versions) == 1 else ""


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
        job = _asked(report, material.newest)
        refusal = _refusal(job, consent=consent) if job is not None else _of_nobody(report)
        if job is None or refusal is not None:
            why = REFUSALS[refusal] if refusal is not None else _NOBODY
            report.verdict.gaps.append(_gap(report, f"not asked: {why}"))
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


def _asked(report: JobReport, newest: Sequence[Sample]) -> _Asked | None:
    own = {(digest.node, digest.pid) for digest in report.digests}
    ranks = [
        (sample.node, rank)
        for sample in newest
        for rank in sample.ranks
        if (sample.node, rank.pid) in own and rank.state not in ("Z", "X")
    ]
    if not ranks:
        return None
    node = min(ranks, key=lambda each: (each[1].rank is None, each[1].rank or 0))[0]
    at = {sample.node: sample.sampled_at for sample in newest}
    return _Asked(report, node, [rank.pid for of_node, rank in ranks if of_node == node], ranks, at)


def _signals(report: JobReport) -> int:
    """Independent ones that say that it stands; what RAS itself has told is none."""
    verdict = report.verdict
    recorded = any(told.source != "ras" for told in report.progress)
    return sum((verdict.stands_still, verdict.stands_still and verdict.confidence != "low", recorded))


def _of_nobody(report: JobReport) -> RasRefusal | None:
    return None if _signals(report) >= 2 else "not_standing"


def _refusal(
    job: _Asked, *, consent: bool, asked_s: float | None = None, motions: Sequence[JobMotion] = ()
) -> RasRefusal | None:
    """The one rule. ``asked_s``: since the last question about it; ``motions``: how it gets on, as seen since then."""
    report, own = job.report, [motion for motion in motions if motion.job_key == job.report.job_key]
    own = [motion for motion in own if motion.place in ("", job.node)]
    moves = any(motion.phase in ("moving", "starting") for motion in own)
    stalled = any(motion.phase == "stalled" for motion in own)
    ages = [job.at[node] - rank.started_at for node, rank in job.ranks if rank.started_at is not None]
    situation = RasSituation(
        nccl_version=job.nccl_version,
        signals=0 if moves else _signals(report) + stalled,
        age_s=min(ages) if len(ages) == len(job.ranks) else None,
        creating=makes_communicators(report.digests),
        asked_s=asked_s,
        consent=consent,
    )
    refusal = why_not_ask(situation)
    return "old_stacks" if refusal in (None, "old_version") and _are_old(job, own) else refusal


def _are_old(job: _Asked, motions: Sequence[JobMotion]) -> bool:
    """Whether the stacks tell nothing of what the ranks do now."""
    taken = known(digest.taken_at for digest in job.report.digests)
    if not taken or max(job.at.values()) - max(taken) > STACKS_HOLD_S:
        return True
    return any(motion.since is not None and motion.since > max(taken) + SINCE_DUMP_S for motion in motions)


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
        job.report.verdict.gaps.append(_gap(job.report, job.why or "it was asked only once, which shows nothing"))
        return
    first, second = job.answers
    names = _Names(job, second)
    told = judge_ras(first, second, names.rank_of)
    job.report.progress += told
    if not told:
        job.report.verdict.gaps.append(_gap(job.report, names.unmatched or _TWO_TELL_NOTHING))


class _Names:
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


# One question at the screen's key.


@dataclass(frozen=True)
class RasPlan:
    """What a question would be. ``node``: that is asked, of ``ranks`` on ``nodes``; ``nccl_version``: "" not known.
    ``why``: why it must not be put, "" it may; ``is_old``: only with the user's consent, since its NCCL is older than
    the first that is known to survive questions, or unknown.
    """

    job: JobKey
    node: str = ""
    ranks: int = 0
    nodes: int = 0
    nccl_version: str = ""
    why: str = ""
    is_old: bool = False


@dataclass(frozen=True)
class RasTold:
    """What came of one question. ``asked``: whether it was put at all; ``answers``: how many were compared.

    ``processes``: the (node, pid) that the job had; ``received_at``: unix s, by the node's clock. ``why``: why nothing
    is told, "" where ``progress`` tells something.
    """

    job: JobKey
    node: str = ""
    nccl_version: str = ""
    asked: bool = False
    answers: int = 0
    received_at: float = 0.0
    progress: tuple[ProgressVerdict, ...] = ()
    processes: frozenset[tuple[str, int]] = frozenset()
    why: str = ""


@dataclass
class _Kept:
    """Of a job: when it was asked last (monotonic s), and what came of it."""

    asked_at: float
    answer: RasAnswer | None = None
    told: RasTold | None = None


class RasDesk:
    """The questions of a session, from any thread: half a minute apart, each compared with the one before it."""

    def __init__(
        self,
        hub: Hub,
        motions: Callable[[], Sequence[JobMotion]] = tuple,
        newest: Callable[[str], Sample | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``newest``: the newest sample of a node, else the hub's. ``clock``: monotonic s."""
        self._hub, self._motions, self._clock = hub, motions, clock
        self._newest = newest or (lambda node: hub.node(node).sample)
        self._kept: dict[JobKey, _Kept] = {}
        self._lock = threading.Lock()

    def plan(self, report: JobReport) -> RasPlan:
        """What a question about this job would be; nothing is asked."""
        job, refusal = self._looked_at(report, consent=False)
        if job is None:
            return RasPlan(report.job_key, why=REFUSALS[refusal] if refusal is not None else _NOBODY)
        is_old = refusal == "old_version"
        why = REFUSALS[refusal] if refusal is not None and not is_old else ""
        nodes = len({node for node, _ in job.ranks})
        return RasPlan(report.job_key, job.node, len(job.ranks), nodes, job.nccl_version, why, is_old)

    def ask(self, report: JobReport) -> RasTold:
        """Asks once, at the user's word, if it still may be."""
        key = report.job_key
        with self._lock:
            job, refusal = self._looked_at(report, consent=True)
            if job is None or refusal is not None:
                return RasTold(key, why=f"not asked: {REFUSALS[refusal] if refusal is not None else _NOBODY}")
            before = self._kept.get(key)
            kept = self._kept[key] = _Kept(self._clock())
        _ask(self._hub, job)
        told = _told_of(job, before.answer if before is not None else None)
        if job.answers:
            kept.answer, kept.told = job.answers[0], told
        elif before is not None:  # what it said then still holds
            kept.answer, kept.told = before.answer, before.told
        return told

    def joined(self, reports: Sequence[JobReport]) -> tuple[JobReport, ...]:
        """With what was told of their jobs."""
        kept = [each.told for each in [*self._kept.values()] if each.told is not None]
        return tuple(joined_with(report, kept) for report in reports)

    def _looked_at(self, report: JobReport, *, consent: bool) -> tuple[_Asked | None, RasRefusal | None]:
        nodes = {digest.node for digest in report.digests if digest.node}
        job = _asked(report, known(map(self._newest, nodes)))
        if job is None:
            return None, _of_nobody(report)
        kept = self._kept.get(report.job_key)
        asked_s = self._clock() - kept.asked_at if kept is not None else None
        return job, _refusal(job, consent=consent, asked_s=asked_s, motions=self._motions())


def _told_of(job: _Asked, before: RasAnswer | None) -> RasTold:
    processes = frozenset((node, rank.pid) for node, rank in job.ranks)
    told = RasTold(job.report.job_key, job.node, job.nccl_version, asked=True, processes=processes, why=job.why)
    if not job.answers or job.why:
        return replace(told, why=job.why or "no answer in time")
    (answer,) = job.answers
    names = _Names(job, answer)
    compared = before is not None and APART_S <= answer.received_at - before.received_at <= COMPARED_S
    if before is not None and compared:
        verdicts, nothing = judge_ras(before, answer, names.rank_of), _TWO_TELL_NOTHING
    else:
        verdicts, nothing = _judge_one(answer, names.rank_of), _ONE_TELLS_NOTHING
    return replace(
        told,
        nccl_version=answer.nccl_version or told.nccl_version,
        answers=2 if compared else 1,
        received_at=answer.received_at,
        progress=tuple(
            replace(verdict, counters=tuple(replace(record, at=answer.received_at) for record in verdict.counters))
            for verdict in verdicts
        ),
        why="" if verdicts else names.unmatched or nothing,
    )


def _judge_one(answer: RasAnswer, rank_of: Callable[[RasRank], int | None]) -> tuple[ProgressVerdict, ...]:
    """That the job stands is known by other signs, which is what a second answer would show; so nothing is sure."""
    before = replace(answer, received_at=answer.received_at - APART_S)
    return tuple(
        replace(verdict, confidence="medium" if verdict.kind == "unresponsive" else "low")
        for verdict in judge_ras(before, answer, rank_of)
    )


def joined_with(report: JobReport, told: Iterable[RasTold]) -> JobReport:
    """The report with what RAS told of its job in place of what RAS told before: of the same processes, in the same
    stand.
    """
    processes = {(digest.node, digest.pid) for digest in report.digests}
    verdict = report.verdict
    own = [
        each
        for each in told
        if each.job == report.job_key and each.progress and each.processes & processes
        if verdict.stands_still and (verdict.since or 0.0) <= each.received_at
    ]
    if not own:
        return report
    others = [each for each in report.progress if each.source != "ras"]
    return replace(report, progress=[*others, *own[-1].progress])


def look(desk: RasDesk, report: JobReport, on_done: Callable[[RasPlan], None]) -> Run:
    """Whether a job may be asked about, and what that would be."""
    nothing = RasPlan(report.job_key)

    def on_plan(plan: RasPlan, error: str) -> None:
        on_done(replace(plan, why=error) if error else plan)

    return Question("look at RAS", LOOK_S, lambda _: desk.plan(report), nothing, on_plan)


def question(desk: RasDesk, report: JobReport, on_done: Callable[[RasTold], None]) -> Run:
    """One question."""
    nothing = RasTold(report.job_key)

    def on_told(told: RasTold, error: str) -> None:
        on_done(replace(told, why=error) if error else told)

    return Question("question to RAS", ANSWER_S, lambda _: desk.ask(report), nothing, on_told)
