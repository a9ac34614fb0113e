"""Which rank hangs the job: the decision procedure, one step after the other, first answer wins.

0, 1  gone, stopped or stuck in the kernel while others wait      here
2     the job moves: accuse nobody, name stragglers               movement.py
3     some wait in a collective, some do not                      outsiders.py
4     all wait, in different collectives                          mismatch.py
5     all wait at the same line, in different turns of a loop     mismatch.py
6     all equal: below Python                                     here

Step 2 is asked before 0 and 1: a rank that ended while the others go on is nobody's hang. How sure a verdict
is, `JobView.confidence` decides: high when who waits and who does not is distinct, the stacks are stable, and
the standstill was watched for 5 s or the samples show it for 30 s before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.classes import merge
from mltop.probes.judge.hang.evidence import JobEvidence
from mltop.probes.judge.hang.frames import key_of, where
from mltop.probes.judge.hang.job import JobView, names, read_job, waiting_lines
from mltop.probes.judge.hang.mismatch import by_loop_counter, harmless, local_differences, mismatch
from mltop.probes.judge.hang.movement import moving
from mltop.probes.judge.hang.outsiders import non_waiters, outside_lines, work_s
from mltop.probes.judge.hang.view import MAIN, RankView, leading_digest
from mltop.probes.judge.values import grouped, in_slices
from mltop.probes.model import Confidence, JobReport, StackDigest, Verdict
from mltop.probes.model.ranks import ranks_text

MOST_SILENT = 8  # nodes named: after these, only their number


def report(evidence: JobEvidence) -> JobReport:
    """Verdict, classes of the newest stacks, and each rank's newest digests (also of its children).

    Pure: the same evidence gives the same verdict, live and from a capture.
    """
    job = read_job(evidence)
    views = [*job.views, *job.roster.silent]
    classes = merge([replace(view.now, thread=MAIN) if view.is_led else view.now for view in views if view.readable])
    digests = [digest for view in in_slices(views) for digest in _newest_digests(view)]
    return JobReport(evidence.job, job.roster.world_size, _judge(job), classes, digests, evidence.uid, evidence.user)


def failed_report(evidence: JobEvidence, why: str) -> JobReport:
    """The report of a job that could not be judged: what is wrong with it is its own, the others have verdicts."""
    verdict = Verdict("unclear", evidence=[why])
    return JobReport(evidence.job, None, verdict, uid=evidence.uid, user=evidence.user, error=why)


def _judge(job: JobView) -> Verdict:
    verdict = _first_answer(job)
    verdict.evidence.extend(_silent_lines(job, verdict))
    if verdict.kind == "hang" and verdict.confidence == "low":
        _lower(job, verdict)
    verdict.gaps.extend(job.gaps)
    if verdict.stands_still:
        # Nothing is known to have moved since then, by the newest stacks of those who wait.
        newest = [view.times[-1] for view in job.waiters or job.running if view.times]
        verdict.since = max(newest) - job.known_s if newest else None
    return verdict


def _lower(job: JobView, verdict: Verdict) -> None:
    """Who is named with low confidence is suspected only; a standstill that names nobody must be sure to be a hang."""
    if verdict.culprits:
        verdict.kind = "suspect"
    elif job.standstill == "low":
        verdict.kind = "unclear"
        counted = job.counted or job.quiet_s is not None
        why = "take more samples" if counted else "counters would show it, but could not be read"
        verdict.evidence.append(f"a slow step looks the same: {why}")


def _silent_lines(job: JobView, verdict: Verdict) -> list[str]:
    """ "rank 11 on h12 gave no stack": whoever is missing may be the cause, above all where nobody else is named."""
    silent = job.roster.silent
    if not silent:
        return []
    nodes = list(dict.fromkeys(view.node for view in silent))
    hosts = ", ".join(nodes[:MOST_SILENT]) + (f" and {len(nodes) - MOST_SILENT} more" if nodes[MOST_SILENT:] else "")
    advice = ": look there first" if verdict.kind == "hang" and not verdict.culprits else ""
    return [f"{names(silent)} on {hosts} gave no stack{advice}"]


def _first_answer(job: JobView) -> Verdict:
    if not job.views:
        return _nobody_alive(job)
    if job.roster.twice:
        return _unclear(job, "rank numbers exist more than once: jobs share this name, or a machine has several names")
    return moving(job) or gone_or_stopped(job) or _too_little(job) or _by_stacks(job)


def _too_little(job: JobView) -> Verdict | None:
    """Why no stack can accuse anyone, None when they can."""
    if len(job.running) + len(job.stopped) < limit.READABLE_SHARE * len(job.views) or not job.running:
        return _unclear(job, f"only {len(job.running)} of {len(job.views)} ranks have a readable stack")
    if not job.waiters:
        more_than_once = job.window_s >= limit.TOLD_WINDOW_S
        how = f"made {job.watched}" if more_than_once else "were seen once: take more samples"
        return _unclear(job, f"no rank waits in a collective and most {how}")
    if job.window_s < limit.WINDOW_LEAST_S and (job.quiet_s or 0.0) < limit.QUIET_SHORT_S:
        return _unclear(job, "one dump cannot distinguish a hang from a slow step: take more samples")
    return None


def _by_stacks(job: JobView) -> Verdict:
    verdict = _all_poll(job) or non_waiters(job) or mismatch(job)
    if verdict:
        return verdict
    differences = local_differences(job)
    return by_loop_counter(job, differences) or _below_python(job, harmless(job, differences))


def _all_poll(job: JobView) -> Verdict | None:
    """Nobody is elsewhere who could end what the ranks look for: nobody is named. One may wait in a collective."""
    if job.assumed is None or not job.assumed.polls or job.others:
        return None
    assumed = job.assumed
    polling = [view for view in job.waiters if view.polls]
    everyone = "every rank" if len(polling) > 1 else "the only rank"
    who = f"each of {names(polling)}" if len(polling) < len(job.views) else everyone
    stand = f"{who} polls at {assumed.place}, {job.watched}"
    evidence = [stand, f"it polls for {assumed.poll.what}. {assumed.poll.advice}"] if assumed.poll else [stand]
    calling = grouped((view for view in job.waiters if not view.polls), lambda view: view.waiting_in or "")
    evidence += [f"{names(here)} waits in {wait}" for wait, here in calling.items()]
    sure_s = limit.POLL_SURE_S if job.evidence.rhythm_s is None else work_s(job)
    known = assumed.poll is not None and assumed.sleeps
    if not known and (job.known_s < sure_s or len(job.views) == 1):
        return job.unclear(*evidence, "a slow step may look the same: look again in a minute")
    return job.hang(evidence, job.confidence("medium"))


def _nobody_alive(job: JobView) -> Verdict:
    deaths = job.roster.deaths
    if job.roster.silent:
        text = "no watched node that runs this job answered"
    elif job.roster.gone:
        whose = "on the watched nodes" if job.roster.unseen else "of the job"
        text = f"every rank {whose} has ended"
        if deaths.all_finished:
            text += " with exit code 0"
        elif not deaths.firsts:
            text += ": the first one's error file or log says why"
    else:
        text = "no rank of the job was found"
    evidence = [text, *system_facts(job)]
    ended = bool(job.roster.gone) and not job.roster.silent and not job.roster.unseen
    firsts = [absent.culprit() for absent in job.roster.gone if deaths.sure and absent.death in deaths.firsts]
    return Verdict("unclear", firsts, evidence=evidence, confidence="high" if ended else "low", ended=ended)


def _unclear(job: JobView, why: str) -> Verdict:
    return job.unclear(why, *system_facts(job), *outside_lines(job.others))


def _below_python(job: JobView, hints: list[str]) -> Verdict:
    """Step 6: nothing in Python differs between the ranks, so none is named."""
    unseen = bool(job.roster.unseen or job.roster.silent or job.unreadable)
    whom = names(job.waiters) if unseen else "every rank" if len(job.views) > 1 else "the only rank"
    wait = "waits" if len(job.waiters) == 1 or not unseen else "wait"
    stand = f"{whom} {wait} in {job.waiters[0].waiting_in}, {job.watched}"
    cause = "nothing differs between the ranks: it is below Python (fabric or GPU)"
    if unseen:
        cause = "nothing differs between the ranks seen: the cause may be in one that was not"
    return job.hang([stand, cause, *hints], job.confidence("low" if unseen else "medium"))


def _newest_digests(view: RankView) -> list[StackDigest]:
    """Of the last round, with ``samples`` of the main thread: in how many dumps in a row it stood there."""
    if not view.rounds:
        return []
    digests = view.rounds[-1].digests
    main = leading_digest(view.rounds[-1], view.thread)
    if main is None or (len(view.mains) < 2 and main is view.now):
        return digests
    same = (key_of(earlier) == key_of(main) for earlier in reversed(view.mains))
    now = replace(view.now, samples=sum(1 for _ in takewhile(bool, same)))
    return [now if digest is main else digest for digest in digests]


# Steps 0 and 1: facts that need no stack.


def gone_or_stopped(job: JobView) -> Verdict | None:
    """Accuses them when others wait, or when most of the job is stopped."""
    kernel = in_kernel(job)
    waiters = [view for view in job.waiters if view not in kernel]
    if not waiters and not job.mostly_stopped:
        return None
    deaths = job.roster.deaths
    culprits = [absent.culprit() for absent in job.roster.gone if not deaths.is_consequence(absent.rank)]
    culprits += [
        view.culprit(_how_stopped(view), _place(view), how="traced" if view.states[-1] == "t" else "stopped")
        for view in job.stopped
    ]
    culprits += [view.culprit(_how_in_kernel(job, view), _place(view), how="kernel") for view in kernel]
    if not culprits:
        return None
    all_known = all(absent.death is not None and absent.death.report.how != "unknown" for absent in job.roster.gone)
    caps: list[Confidence] = ["medium"] if deaths.firsts and not (deaths.sure and all_known) else []
    confidence = job.confidence(*caps) if waiters else "high"
    return Verdict("hang", culprits, waiting_lines(waiters), [], system_facts(job), confidence)


def in_kernel(job: JobView) -> list[RankView]:
    """State D in each of at least two dumps. Not when most ranks are: then a driver or a disk is slow."""
    stuck = [view for view in job.views if len(view.states) >= limit.KERNEL_ROUNDS and set(view.states) == {"D"}]
    return stuck if 2 * len(stuck) < len(job.views) or len(stuck) < len(job.waiters) else []


def system_facts(job: JobView) -> list[str]:
    """What is known without any stack, one line per fact."""
    facts = []
    unknown = [absent for absent in job.roster.gone if absent.death is None or absent.death.report.how == "unknown"]
    if unknown:
        facts.append(f"{ranks_text(absent.rank for absent in unknown)} {unknown[0].reason}")
    facts += job.roster.deaths.lines()
    traced = [view for view in job.stopped if view.states[-1] == "t"]
    signalled = [view for view in job.stopped if view.states[-1] == "T"]
    for views, how in ((signalled, "stopped by a signal (state T"), (traced, "held by a debugger (state t")):
        if views:
            facts.append(f"{names(views)} {how}{' in every dump' if len(views[0].states) > 1 else ''})")
    kernel = in_kernel(job)
    if kernel:
        facts.append(f"{names(kernel)} in the kernel (state D) in all of {len(kernel[0].states)} dumps")
    return facts + _blocked_lines(job, kernel)


def _blocked_lines(job: JobView, accused: Sequence[RankView]) -> list[str]:
    """What stands behind ranks in the kernel that are not accused, because it is most of them."""
    blocked = (view for view in job.views if view.states[-1] == "D" and view not in accused)
    by_place = grouped(blocked, lambda view: (view.node, _wchan(view), job.kernel_says(view, _wchan(view), pid=0)))
    lines = [
        f"{names(here)} in the kernel on {node} in {wchan}{says}"
        for (node, wchan, says), here in by_place.items()
        if says
    ]
    return lines[: limit.EVIDENCE_PLACES]


def _how_stopped(view: RankView) -> str:
    if view.states[-1] == "t":
        return "held by a debugger (state t): detach it"
    return f"stopped by a signal (state T); to let it run on: kill -CONT {view.pid}"


def _how_in_kernel(job: JobView, view: RankView) -> str:
    wchan = _wchan(view)
    inside = f" in {wchan}" if wchan else ""
    seen = f"uninterruptible in the kernel{inside} (state D in all of {len(view.states)} dumps)"
    return seen + job.kernel_says(view, wchan)


def _wchan(view: RankView) -> str | None:
    digest = view.now if view.readable else view.error
    return (digest.wchan if digest else None) or view.seen.sample.wchan


def _place(view: RankView) -> str:
    return where(view.now) if view.readable else _wchan(view) or "unknown"
