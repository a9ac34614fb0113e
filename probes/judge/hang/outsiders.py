"""Step 3: some ranks wait in a collective, others do not. Those who do not are waited for, or what they wait for is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.frames import (
    in_thread_pool,
    is_idle_worker,
    key_of,
    leaf_note,
    saves_or_evaluates,
    user_frame,
    waits_for_child,
    waits_for_program,
    waits_for_thread,
    where,
)
from mltop.probes.judge.hang.job import JobView
from mltop.probes.judge.hang.view import STOPPED, RankView, is_dead, runs_mostly
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Confidence, Culprit, StackDigest, Verdict
from mltop.probes.model.ranks import ranks_text

_DATALOADER = "torch/utils/data/dataloader.py"
_CHILD_STATES = {"T": "which is stopped (state T) in", "t": "which a debugger holds in"}
_LOOKS_LIKE_WORK = "a checkpoint or an evaluation on this rank alone looks the same: look again in a minute"


@dataclass(frozen=True)
class Accusation:
    """``cap``: not surer than this. ``computes``: what is accused has work to do, as far as can be seen.

    ``stacks``: those that tell what it is about.
    """

    culprit: Culprit
    cap: Confidence = "high"
    computes: bool = False
    stacks: tuple[StackDigest, ...] = ()


def non_waiters(job: JobView) -> Verdict | None:
    """Accuses the ranks outside collectives, first of all those that stand still or only spin."""
    if not job.waiters or not job.others:
        return None
    inert = [view for view in job.others if not view.calls]
    accused = inert or job.others
    minority_waits = len(job.others) > len(job.waiters)
    if minority_waits and any(view.calls or view.spins for view in job.others):
        busy = f"{len(job.others)} ranks are outside collectives and busy: a slow step looks the same"
        return job.unclear(_waiting_evidence(job), busy, *outside_lines(job.others))
    accusations = [_accuse(view) for view in accused]
    may_be_work = [_cap_of_work(job, view, accusation) for view, accusation in zip(accused, accusations, strict=True)]
    caps = [accusation.cap for accusation in accusations] + may_be_work
    if minority_waits:
        caps.append("low")
    evidence = [_waiting_evidence(job), *outside_lines(accused)]
    if any(cap != "high" for cap in may_be_work):
        evidence.append(_LOOKS_LIKE_WORK)
    if len(accused) < len(job.others):
        evidence.append(f"{len(job.others) - len(accused)} more outside collectives still move")
    return job.hang(evidence, job.confidence(*caps), [accusation.culprit for accusation in accusations])


def _accuse(view: RankView) -> Accusation:
    helper = _accuse_helper(view)
    if helper is not None:
        return helper
    if view.calls:
        reason = "busy outside any collective while the others wait for it"
    elif view.spins:
        reason = "loops or computes outside any collective while the others wait for it"
    elif view.seen_to_stand:
        reason = "stands still outside any collective while the others wait for it"
    else:
        reason = "is outside any collective while the others wait for it (seen once)"
    return Accusation(view.culprit(reason + leaf_note(view.now)), computes=view.spins, stacks=(view.now,))


def _cap_of_work(job: JobView, view: RankView, accusation: Accusation) -> Confidence:
    """How sure one may be that this is no checkpoint or evaluation that the others wait for."""
    if view.calls or accusation.computes:
        if not view.calls and job.known_s >= limit.WORK_HIGH_S:
            return "high"
        return "medium" if job.known_s >= limit.WORK_MEDIUM_S else "low"
    saves = job.known_s < limit.SAVING_HIGH_S and any(map(saves_or_evaluates, accusation.stacks))
    return "medium" if saves else "high"


def _waiting_evidence(job: JobView) -> str:
    verb = "waits" if len(job.waiters) == 1 else "wait"
    return f"{len(job.waiters)} of {len(job.views)} ranks {verb} and did not move {job.watched}"


def outside_lines(views: list[RankView]) -> list[str]:
    """Where the ranks outside collectives are, one line per place, the rarest places first."""
    places = grouped(views, lambda view: f"{where(view.now)}{leaf_note(view.now)}, {_behaviour(view)}")
    ordered = sorted(places.items(), key=lambda item: len(item[1]))
    lines = [f"{_who(here)} not in a collective: {text}" for text, here in ordered[: limit.EVIDENCE_PLACES]]
    left = len(ordered) - len(lines)
    return lines + ([f"and {left} more places outside collectives"] if left else [])


def _who(views: list[RankView]) -> str:
    numbers = known(view.rank for view in views)
    return ranks_text(numbers) if numbers else f"{len(views)} processes without a rank"


def _behaviour(view: RankView) -> str:
    dumps = len(view.mains)
    if view.calls:
        return "its counters move: a loop that sleeps or polls, or slow work"
    if not view.same_stack:
        return f"stack or integer locals change over {dumps} dumps without system calls: it loops or computes"
    seen = f"one stack in {dumps} dumps" if dumps > 1 else "seen in one dump"
    if not view.spins:
        return seen
    cpu = "" if view.cpu_fraction is None else f" at {view.cpu_fraction:.0%} CPU"
    return f"{seen}{cpu}: it loops or computes"


# A rank that waits for a thread or a process of its own: which one, and what that one does.


def _accuse_helper(view: RankView) -> Accusation | None:
    """The thread or child that the rank waits for, when one is dead, stuck or at work; None: it waits for none."""
    threaded, forked = waits_for_thread(view.now), waits_for_child(view.now)
    if not threaded and not forked:
        return None
    in_user_code = [digests for digests in view.threads() if threaded and user_frame(digests[-1].frames)]
    threads = sorted(in_user_code, key=lambda digests: not _stable(digests))
    pooled = [digests for digests in threads if in_thread_pool(digests[-1])]
    if pooled or (threads and not forked):
        return _thread(view, pooled or threads)
    children = view.children() if forked else []
    suspects = sorted((digests for digests in children if _suspicious(digests[-1])), key=_surest_first)
    if suspects:
        return _child(view, suspects)
    if threads:
        return _thread(view, threads)
    programs = [digests for digests in children if digests[-1].program] if waits_for_program(view.now) else []
    return _program(view, programs) if programs else _none_found(view, children, threaded, forked)


def _thread(view: RankView, threads: list[list[StackDigest]]) -> Accusation:
    thread = threads[0][-1]
    what = "which stands in" if _stable(threads[0]) else "which is busy in"
    reason = f"waits for its thread {thread.thread}, {what} {where(thread)}{_more(threads)}"
    culprit = view.culprit(reason, where(thread))
    return Accusation(culprit, computes=_computes(threads[0]), stacks=(view.now, thread))


def _child(view: RankView, suspects: list[list[StackDigest]]) -> Accusation:
    child = suspects[0][-1]
    reason = f"waits for its {_kind(view)[0]} {child.pid}, {_child_text(suspects[0])}{_more(suspects)}"
    stack = child if child.frames else view.now
    culprit = view.culprit(reason, where(stack), child.pid)
    return Accusation(culprit, computes=_computes(suspects[0]), stacks=(view.now, child))


def _program(view: RankView, programs: list[list[StackDigest]]) -> Accusation:
    """The newest one that lives: what was started before it may run beside the job."""
    ordered = sorted(programs, key=lambda digests: (is_dead(digests[-1]), -digests[-1].pid))
    program = ordered[0][-1]
    kernel = f" in {program.wchan}" if program.wchan and program.state == "D" else ""
    state = "which has died" if is_dead(program) else f"state {program.state}{kernel}"
    reason = f"waits for its child process {program.pid} ({program.program}, {state}){_more(programs)}"
    return Accusation(view.culprit(reason, pid=program.pid), computes=_computes(ordered[0]), stacks=(view.now,))


def _none_found(view: RankView, children: list[list[StackDigest]], threaded: bool, forked: bool) -> Accusation:
    python = [digests for digests in children if not digests[-1].program]
    if threaded:
        whom = "a thread or a worker process" if forked else "a thread"
        reason = f"waits for {whom} of its own, and none stands in code of the script"
    elif not python:
        reason = f"waits for one of its {_kind(view)[1]}, and none was found"
    else:
        unread = any(digests[-1].error for digests in python)
        reason = f"waits for its {_kind(view)[1]}, {'none of which could be read' if unread else 'all idle'}"
    return Accusation(view.culprit(reason), "medium", view.spins, (view.now,))


def _kind(view: RankView) -> tuple[str, str]:
    """One of them, and many."""
    if any(frame.file == _DATALOADER for frame in view.now.frames):
        return "dataloader worker", "dataloader workers"
    return "child process", "child processes"


def _more(alike: Sequence[object]) -> str:
    return f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""


def _suspicious(child: StackDigest) -> bool:
    if child.program:
        return False
    return is_dead(child) or child.state == "D" or (bool(child.frames) and not is_idle_worker(child))


def _surest_first(digests: list[StackDigest]) -> tuple[bool, bool, int]:
    """Dead ones first, then those whose stack does not change, then by pid."""
    return (not is_dead(digests[-1]), not _stable(digests), digests[-1].pid)


def _stable(digests: list[StackDigest]) -> bool:
    """One stack in all rounds; of a program without stacks the key tells whether it ran."""
    return len({key_of(digest) for digest in digests if digest.frames or digest.key}) <= 1


def _computes(digests: list[StackDigest]) -> bool:
    if is_dead(digests[-1]) or digests[-1].state in STOPPED:
        return False
    return not _stable(digests) or runs_mostly([digest.state for digest in digests])


def _child_text(digests: list[StackDigest]) -> str:
    child = digests[-1]
    if is_dead(child):
        return "which has died"
    if child.state == "D":
        wchan = f" ({child.wchan})" if child.wchan else ""
        return f"which is in the kernel{wchan}, state D, below {where(child)}"
    if child.state in _CHILD_STATES:
        return f"{_CHILD_STATES[child.state]} {where(child)}"
    if len(digests) == 1:
        return f"which was seen once, in {where(child)}"
    return f"{'which is stuck in' if _stable(digests) else 'which is busy in'} {where(child)}"
