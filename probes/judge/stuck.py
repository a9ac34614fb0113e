"""Steps 0 and 1: ranks that are gone, stopped, or stuck in the kernel: facts that need no stack."""

from __future__ import annotations

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.fold import ranks_text
from mltop.probes.judge.frames import where
from mltop.probes.judge.job import JobView, names, waiting_lines
from mltop.probes.judge.view import RankView
from mltop.probes.model import Culprit, Verdict


def gone_or_stopped(job: JobView) -> Verdict | None:
    """Accuses them when others wait, or when most of the job is stopped."""
    kernel = in_kernel(job)
    waiters = [view for view in job.waiters if view not in kernel]
    if not waiters and not job.mostly_stopped:
        return None
    culprits = [
        Culprit(absent.rank, absent.node, absent.pid, absent.reason, "no process") for absent in job.roster.gone
    ]
    culprits += [_stopped(view) for view in job.stopped]
    culprits += [_kernel(view) for view in kernel]
    if not culprits:
        return None
    confidence = job.confidence() if waiters else "high"
    return Verdict("hang", culprits, waiting_lines(waiters), [], system_facts(job), confidence)


def in_kernel(job: JobView) -> list[RankView]:
    """State D in each of at least two dumps. Not when most ranks are: then a driver or a disk is slow."""
    found = [
        view
        for view in job.views
        if len(view.states) >= limit.KERNEL_ROUNDS and all(state == "D" for state in view.states)
    ]
    return found if 2 * len(found) < len(job.views) or len(found) < len(job.waiters) else []


def system_facts(job: JobView) -> list[str]:
    """What is known without any stack, one line per fact."""
    facts = []
    if job.roster.gone:
        facts.append(f"{ranks_text(absent.rank for absent in job.roster.gone)} {job.roster.gone[0].reason}")
    traced = [view for view in job.stopped if view.states[-1] == "t"]
    signalled = [view for view in job.stopped if view.states[-1] == "T"]
    for views, how in ((signalled, "stopped by a signal (state T"), (traced, "held by a debugger (state t")):
        if views:
            facts.append(f"{names(views)} {how}{' in every dump' if len(views[0].states) > 1 else ''})")
    kernel = in_kernel(job)
    if kernel:
        facts.append(f"{names(kernel)} in the kernel (state D) in all of {len(kernel[0].states)} dumps")
    return facts


def _stopped(view: RankView) -> Culprit:
    if view.states[-1] == "t":
        reason = "held by a debugger (state t): detach it"
    else:
        reason = f"stopped by a signal (state T); to let it run on: kill -CONT {view.pid}"
    return Culprit(view.rank, view.node, view.pid, reason, _place(view))


def _kernel(view: RankView) -> Culprit:
    wchan = _wchan(view)
    inside = f" in {wchan}" if wchan else ""
    reason = f"uninterruptible in the kernel{inside} (state D in all of {len(view.states)} dumps)"
    return Culprit(view.rank, view.node, view.pid, reason, _place(view))


def _wchan(view: RankView) -> str | None:
    digest = view.now if view.readable else view.error
    return (digest.wchan if digest else None) or view.seen.sample.wchan


def _place(view: RankView) -> str:
    return where(view.now) if view.readable else _wchan(view) or "unknown"
