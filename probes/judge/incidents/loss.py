"""What a job loses, as all sources together tell it: it died, hangs, waits for a slow rank or for data, or slows down.

The causes are another matter (join.py): here is who holds the job up, who waits, since when, and how sure that is.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.deaths import Death, Deaths, ended_well, kind_of_end, order_of
from mltop.probes.judge.evidence.progress_words import progress_evidence
from mltop.probes.judge.health.rule import FAILED
from mltop.probes.judge.incidents.counted import with_counters
from mltop.probes.judge.incidents.scene import JobScene, Place, Stacks
from mltop.probes.judge.values import known
from mltop.probes.model import Confidence, Culprit, Evidence, Finding, IncidentKind, JobReport, Waiting
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import counted, duration_words, percent_words
from mltop.probes.model.vocabulary import Act, CulpritKind

KIND_OF_FINDING: dict[str, IncidentKind] = {
    "job.hang": "hang",
    "job.odd_rank": "hang",
    "job.straggler": "straggler",
    "job.starved": "starved",
}
MOST_EVIDENCE = 12
STOPS: tuple[IncidentKind, ...] = ("crash", "hang", "stopped")
GOES_ON_S = 15.0  # a job that has moved for so long after a death does without the dead rank
WENT_ON_S = 600.0  # what stands still now moved for so long after it: nobody waited for the dead rank
MOVED_S = 15.0  # a movement is seen by the sample after it: stacks that are older than one by more are of another stall
STOOD_S = 10.0  # before its end, at least: then it ended because it stood
SEEN_STILL_S = 15.0  # before its first death, at most
SETTLED_S = 5.0  # after the last death: others may be about to end, too
ENDED_BY = (signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_STANDS = ("quiet", "stalled")
_ORDER: tuple[IncidentKind, ...] = ("crash", "hang", "stopped", "straggler", "starved", "slow", "node")


@dataclass
class Loss:
    """``waiting``: ranks that wait for the culprits, ``waits_in``: what the most of them wait in ("" not known).

    ``findings``: those of rules about the job that say the same, ``others`` what else they say of it. ``gone``: no rank
    is left. ``began``: it was seen to begin at ``since``; else it may be older. ``place``: where
    the most of the waiting ranks stand. ``ended``: when the job ended, of one that had stood still since ``since``.
    ``circle``: ranks that wait for one another.
    """

    kind: IncidentKind
    since: float | None = None
    culprits: list[Culprit] = field(default_factory=list)
    waiting: Ranges = field(default_factory=Ranges)
    waits_in: str = ""
    confidence: Confidence = "low"
    evidence: list[Evidence] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    others: list[Finding] = field(default_factory=list)
    deaths: Deaths | None = None
    gone: bool = False
    began: bool = False
    place: str = ""
    next: str = ""
    next_act: Act = ""
    ended: float | None = None
    circle: Ranges = field(default_factory=Ranges)

    @property
    def stops(self) -> bool:
        """Whether the job gets nothing done at all."""
        return self.kind in STOPS


def loss_of(job: JobScene) -> Loss | None:
    """The gravest that any source tells of a job, with what all others say of it; None: nothing is lost."""
    losses = known([_by_deaths(job), _by_stacks(job), _by_motion(job), *_by_findings(job), _by_slowdown(job)])
    if not losses:
        return None
    gravest, *others = _until_its_end(sorted(losses, key=lambda loss: _ORDER.index(loss.kind)))
    for other in others:
        _add(gravest, other)
    if gravest.kind == "hang" and gravest.deaths is not None and not gravest.gone:
        _blame_the_dead(gravest, gravest.deaths)
    for finding in job.findings:
        is_listed = any(finding is other for other in (*gravest.findings, *gravest.others))
        if finding.until is None and finding.id != FAILED and not is_listed:
            gravest.others.append(finding)
    gravest.waiting = gravest.waiting.without(Ranges.of(known(culprit.rank for culprit in gravest.culprits)))
    gravest.evidence = gravest.evidence[:MOST_EVIDENCE]
    return gravest


def _add(gravest: Loss, other: Loss) -> None:
    """Who is named by stacks is surer than who is named from outside: their losses come first."""
    if other.stops or not gravest.stops:  # what made it slow tells nothing of why it stands
        gravest.evidence += [line for line in other.evidence if line not in gravest.evidence]
    if other.kind != gravest.kind:
        if not (gravest.kind == "crash" and other.kind == "hang"):
            gravest.others += other.findings
        return
    gravest.findings += other.findings
    gravest.began = gravest.began or other.began
    gravest.since = min(known((gravest.since, other.since)), default=None)
    gravest.culprits = _numbered(gravest.culprits, other.culprits)
    if not gravest.culprits and other.culprits:
        gravest.culprits, gravest.confidence = other.culprits, other.confidence
    gravest.deaths = gravest.deaths or other.deaths
    gravest.waiting = gravest.waiting or other.waiting
    gravest.circle = gravest.circle or other.circle
    gravest.waits_in, gravest.place = gravest.waits_in or other.waits_in, gravest.place or other.place
    if not (other.next or other.next_act):
        gravest.next, gravest.next_act = "", ""
    elif gravest.next or gravest.next_act:
        gravest.next, gravest.next_act = other.next, other.next_act


def _until_its_end(losses: list[Loss]) -> list[Loss]:
    """A job that stood still and then ended was ended for that, by its watchdog or by people: who held it up is named,
    and when it ended; where a rank died of something else meanwhile, that.
    """
    end = next((loss for loss in losses if loss.gone), None)
    stalls = [loss for loss in losses if loss.kind == "hang" and loss is not end]
    if end is None or end.deaths is None or not stalls:
        return losses
    left = [loss for loss in losses if loss is not end and loss not in stalls]
    stall, *others = stalls
    for other in others:
        _add(stall, other)
    at, since = end.since, stall.since
    if at is None or since is None or since > at - STOOD_S or _has_own_cause(end.deaths):
        return [end, *left]
    evidence = [*stall.evidence, *end.evidence]
    return [
        replace(stall, kind=end.kind, deaths=end.deaths, gone=True, ended=at, evidence=evidence, next="", next_act=""),
        *left,
    ]


def _has_own_cause(deaths: Deaths) -> bool:
    """The first one died of something that nobody does to a job which stands still."""
    ways = [(death.report.how, death.report.code) for death in deaths.firsts]
    errors = all(death.report.error for death in deaths.firsts)
    by_itself = all(how == "oom" or (how == "signal" and code not in ENDED_BY) for how, code in ways)
    return bool(ways) and (errors or by_itself)


# From how ranks ended.


def _by_deaths(job: JobScene) -> Loss | None:
    """A rank that has died, and all that went down with it: the first one tells why."""
    deaths = order_of(job.deaths)
    if not deaths.all or deaths.all_finished:
        return None
    gone, stopped = not job.ranks, not deaths.firsts and all(death.strength == 3 for death in deaths.all)
    if stopped and not gone and not _stalled(job):
        return None  # it is being ended
    first = (deaths.firsts or deaths.all)[0].report.at
    if first is None:  # a pidfd tells how a process ended and not when
        first = min(known(death.report.at for death in deaths.all), default=None)
    if not gone and _goes_on(job, first):
        return None
    if _stood_before(job, deaths, first):
        deaths.firsts, deaths.sure = [], False
    ended_alone = deaths.all if len(deaths.all) == 1 and not (stopped and gone) else []
    named = deaths.firsts or ended_alone or (deaths.all if stopped and not gone else [])
    named = [death for death in named if not death.is_in_vain]
    waited_for = _waited_for(job, deaths) if not named else []
    return Loss(
        "hang" if not gone else "stopped" if stopped else "crash",
        first,
        [died(death) for death in named] or waited_for,
        _numbers(job.ranks),
        confidence="high" if deaths.sure else "medium" if deaths.firsts or waited_for else "low",
        evidence=[Evidence("samples", text, first) for text in deaths.lines()],
        deaths=deaths,
        gone=gone,
        began=True,
        next="" if deaths.sure else "the job's log, and the error file of each rank",
    )


def _stood_before(job: JobScene, deaths: Deaths, first: float | None) -> bool:
    """Whether those that died first said nothing, and the job had stood still until then: they may have waited in vain,
    for one that was ended after them, or lives.
    """
    still = job.still
    if not deaths.firsts or still is None or still.since is None or first is None:
        return False
    wordless = all(death.strength == 1 for death in deaths.firsts)
    return wordless and first - still.since >= STOOD_S and first - still.at <= SEEN_STILL_S


def _waited_for(job: JobScene, deaths: Deaths) -> list[Culprit]:
    """Those few that live, where all others have ended because they waited in vain."""
    fell = [death for death in deaths.all if not ended_well(death.report)]
    ended_at = max(known(death.report.at for death in fell), default=None)
    if not all(death.is_in_vain for death in fell) or ended_at is None or job.at - ended_at < SETTLED_S:
        return []
    if not 0 < len(job.ranks) <= len(fell) or len(job.ranks) + len(fell) < (job.world_size or 0):
        return []
    reason = f"{ranks_text(sorted(known(death.rank for death in fell)))} waited for it in vain and ended"
    return [place.culprit(reason, "stands", _seen_in(job, place)) for place in job.ranks]


def _seen_in(job: JobScene, place: Place) -> str:
    """Where its stack stood, "" where none was taken."""
    waiting = job.stacks.report.verdict.waiting if job.stacks is not None else []
    return next((group.where for group in waiting if place.rank is not None and place.rank in group.ranks), "")


def _numbered(culprits: Sequence[Culprit], others: Sequence[Culprit]) -> list[Culprit]:
    """Of a rank that was never seen alive only stacks know the number: ``others`` of the same process."""
    ranks = {(culprit.node, culprit.pid): culprit.rank for culprit in others}
    return [
        replace(culprit, rank=ranks.get((culprit.node, culprit.pid))) if culprit.rank is None else culprit
        for culprit in culprits
    ]


def _goes_on(job: JobScene, since: float | None) -> bool:
    """Whether the ranks that are left have moved for a while since: an elastic job does without the dead one."""
    motion = job.motion
    if motion is None:
        return False
    if motion.phase in ("moving", "starting"):
        return motion.at - (since or 0.0) > GOES_ON_S
    if since is None or motion.since is None:
        return False
    return motion.phase in _STANDS and motion.since - since > WENT_ON_S


def died(death: Death) -> Culprit:
    report, gpu = death.report, next(iter(death.report.gpus), None)
    return Culprit(report.rank, death.node, report.pid, death.words(), "no process", True, gpu, kind_of_end(report))


def _blame_the_dead(loss: Loss, deaths: Deaths) -> None:
    """Stacks may name a rank as gone: how it ended is known better."""
    dead = _numbered([died(death) for death in deaths.firsts], loss.culprits)
    numbers = {culprit.rank for culprit in dead}
    named = {culprit.rank for culprit in loss.culprits}
    if dead and (not named or named & numbers):
        kept = [culprit for culprit in loss.culprits if culprit.rank not in numbers]
        loss.culprits = [*(culprit for culprit in dead if not named or culprit.rank in named), *kept]


# From stacks.


def _by_stacks(job: JobScene) -> Loss | None:
    """Also by the counters that came with them."""
    if job.stacks is None or not still_holds(job, job.stacks):
        return None
    report, at = job.stacks
    verdict = report.verdict
    evidence = [Evidence("stacks", text, at or None) for text in verdict.evidence]
    counted_lines = [line for verdict in report.progress for line in progress_evidence(verdict)]
    if verdict.kind == "hang" or (verdict.kind == "suspect" and _stalled(job)):
        return _of_standing(job, report, at, [*evidence, *counted_lines])
    if verdict.kind == "straggler" and verdict.stragglers:
        slow = [replace(_placed(job, culprit), how="slow") for culprit in verdict.stragglers]
        return Loss("straggler", at or None, slow, confidence=verdict.confidence, evidence=[*evidence, *counted_lines])
    if verdict.kind == "unclear" and not verdict.ended and report.progress and _stalled(job):
        return _of_counters(job, report, [*counted_lines, *evidence])
    return None


def _of_standing(job: JobScene, report: JobReport, at: float, evidence: list[Evidence]) -> Loss:
    verdict = report.verdict
    joined = with_counters(job, report, verdict.culprits, verdict.confidence)
    culprits = [_placed(job, culprit) for culprit in joined.culprits]
    named = {culprit.rank for culprit in culprits}
    waiting = Ranges.of({rank for group in verdict.waiting for rank in group.ranks if rank not in named})
    motion = job.motion if job.motion is not None and job.motion.phase in _STANDS else None
    since = min(known((verdict.since or (at or None), motion.since if motion is not None else None)), default=None)
    loss = Loss("hang", since, culprits, waiting, collective(report), joined.confidence, [*joined.evidence, *evidence])
    loss.began = motion is not None and motion.since is not None
    if not culprits:
        loss.next_act, loss.next = "probe_all_reduce", "when the job has been ended; NCCL's RAS and its log"
    loss.place = _place(verdict.waiting)
    loss.circle = Ranges.of(verdict.circle if named <= set(verdict.circle) else ())
    return loss


def _of_counters(job: JobScene, report: JobReport, evidence: list[Evidence]) -> Loss | None:
    """Of a job that has stood for longer than it ever did, and whose stacks do not tell for whom. None where counters
    do not either, or name others than those that are odd from outside.
    """
    motion = job.motion
    odd = {culprit.rank for culprit in motion.odd} if motion is not None else set()
    joined = with_counters(job, report, (), "low")
    named = {culprit.rank for culprit in joined.culprits}
    if not named or motion is None or (odd and not odd & named):
        return None
    waiting = motion.ranks.without(Ranges.of(known(named)))
    culprits = [_placed(job, culprit) for culprit in joined.culprits]
    return Loss("hang", motion.since, culprits, waiting, collective(report), joined.confidence, evidence)


def _place(waiting: Sequence[Waiting]) -> str:
    if not waiting:
        return ""
    fullest = max(waiting, key=lambda group: group.ranks.count).where
    return fullest if len(waiting) == 1 else f"{fullest}, and in {counted(len(waiting) - 1, 'other place')},"


def _stalled(job: JobScene) -> bool:
    """Who is only suspected may do long work of its own: until the job has stood for longer than it ever did."""
    return job.motion is not None and job.motion.phase == "stalled"


def still_holds(job: JobScene, stacks: Stacks) -> bool:
    """Not once the job was seen to move again, nor when it was started anew, or has ended well.

    A job that is seen for the first time is "starting", whatever it does: whether it was started since, its processes
    tell.
    """
    motion = job.motion
    if _ended_well(job):
        return False
    if motion is not None and motion.since is not None:
        if motion.phase == "moving" and motion.since > stacks.at:
            return False
        if motion.phase in _STANDS and motion.since > stacks.at + MOVED_S:
            return False
    pids = {(digest.node, digest.pid) for digest in stacks.report.digests if digest.child_of is None}
    return not job.ranks or not pids or any((place.node, place.pid) in pids for place in job.ranks)


def _ended_well(job: JobScene) -> bool:
    return not job.ranks and order_of(job.deaths).all_finished


def collective(report: JobReport) -> str:
    """What most of the ranks wait in, by its name; "" where none does."""
    waits = [made for made in report.classes if made.waiting_in]
    return max(waits, key=lambda made: made.count).waiting_in or "" if waits else ""


def _placed(job: JobScene, culprit: Culprit) -> Culprit:
    """With its GPU, where the samples know it."""
    place = job.by_rank.get(culprit.rank) if culprit.rank is not None else None
    place = place or (job.by_pid.get((culprit.node, culprit.pid)) if culprit.pid is not None else None)
    if culprit.gpu is not None or place is None or not place.gpus:
        return culprit
    return replace(culprit, gpu=place.gpus[0])


# From outside.


def _by_motion(job: JobScene) -> Loss | None:
    motion = job.motion
    if motion is None or motion.phase != "stalled" or _ended_well(job) or _moves_by_its_stacks(job):
        return None
    culprits = [_placed(job, culprit) for culprit in motion.odd]
    named = {culprit.rank for culprit in culprits}
    waiting = motion.ranks.without(Ranges.of({rank for rank in named if rank is not None}))
    dead = {death.rank for death in job.deaths}
    evidence = [Evidence("samples", text, motion.at) for text in motion.signals]
    if motion.rhythm is not None:
        evidence.append(Evidence("samples", f"{rhythm_words(motion.rhythm.step_s, motion.rhythm.spread)} before that"))
    evidence += [
        Evidence("samples", f"{_who(culprit)}: {culprit.reason}", motion.at, culprit.node)
        for culprit in culprits
        if culprit.how not in ("dead", "left") or culprit.rank not in dead  # how it ended is said apart
    ]
    confidence: Confidence = "medium" if len(motion.signals) > 1 else "low"
    return Loss("hang", motion.since, culprits, waiting, "", confidence, evidence, began=True, next_act="stacks")


def _moves_by_its_stacks(job: JobScene) -> bool:
    """Stacks that were taken after it seemed to stand saw it move: they look closer."""
    stacks, motion = job.stacks, job.motion
    if stacks is None or motion is None or stacks.report.verdict.kind not in ("moving", "straggler"):
        return False
    return motion.since is not None and stacks.at > motion.since and motion.at - stacks.at < (motion.patience_s or 60.0)


def rhythm_words(step_s: float, spread: float) -> str:
    """ "a step took 2.1 s ± 3 %"."""
    return f"a step took {duration_words(step_s)} ± {percent_words(spread)}"


def _who(culprit: Culprit) -> str:
    return f"rank {culprit.rank}" if culprit.rank is not None else f"pid {culprit.pid}"


def _by_findings(job: JobScene) -> list[Loss]:
    """Rules about the whole job."""
    losses: dict[IncidentKind, Loss] = {}
    for finding in job.findings:
        kind = KIND_OF_FINDING.get(finding.id)
        if kind is None or finding.until is not None or finding.severity == "info":
            continue
        loss = losses.setdefault(kind, Loss(kind, finding.since, confidence="medium"))
        loss.since = min(known((loss.since, finding.since)), default=None)
        loss.findings.append(finding)
        loss.evidence.append(Evidence("health", finding.message, finding.since, finding.node))
        loss.evidence += [Evidence("health", text, None, finding.node) for text in finding.evidence]
        culprit = _of_finding(job, finding)
        if culprit is not None:
            loss.culprits.append(culprit)
    if "hang" in losses:
        named = {culprit.rank for culprit in losses["hang"].culprits}
        losses["hang"].waiting = _numbers([place for place in job.ranks if place.rank not in named])
        losses["hang"].next_act = "stacks"
    return list(losses.values())


def _of_finding(job: JobScene, finding: Finding) -> Culprit | None:
    """The one rank that a finding is about."""
    rank = finding.ranks.first if finding.ranks.count == 1 else None
    if rank is None:
        return None
    place = job.by_rank.get(rank)
    how: CulpritKind = "slow" if finding.id == "job.straggler" else ""
    reason = "is slow" if how == "slow" else "never reached the collective"
    found = place.culprit(reason, how) if place else Culprit(rank, "", None, reason, "", True, None, how)
    return replace(found, node=finding.node)


def _by_slowdown(job: JobScene) -> Loss | None:
    slowdown = job.motion.slowdown if job.motion is not None else None
    if job.motion is None or slowdown is None or job.motion.phase not in ("moving", "quiet"):
        return None
    places = [job.by_rank[rank] for rank in slowdown.ranks if rank in job.by_rank]
    text = f"a step takes {duration_words(slowdown.now_s)}, it took {duration_words(slowdown.before_s)}"
    evidence = [Evidence("samples", text, slowdown.since)]
    evidence += [Evidence("samples", line, slowdown.since) for line in slowdown.beside]
    culprits = [place.culprit("the others wait for it", "slow") for place in places]
    return Loss(
        "straggler" if culprits else "slow",
        slowdown.since,
        culprits,
        confidence="medium",
        evidence=evidence,
        began=True,
    )


def _numbers(places: Sequence[Place]) -> Ranges:
    return Ranges.of(known(place.rank for place in places))
