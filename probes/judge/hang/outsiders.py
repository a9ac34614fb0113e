"""Step 3: some ranks wait in a collective, others do not. Those who do not are waited for, or what they wait for is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.assumed import once_per_stack
from mltop.probes.judge.hang.frames import (
    in_thread_pool,
    is_idle_worker,
    key_of,
    leaf_note,
    place,
    python_frames,
    saves_or_evaluates,
    user_frame,
    waits_at_queue,
    waits_for_child,
    waits_for_program,
    waits_for_thread,
    where,
)
from mltop.probes.judge.hang.groups import narrowed
from mltop.probes.judge.hang.job import JobView
from mltop.probes.judge.hang.polls import Holder, collects_garbage, held_by_others, known_poll, lock_holder
from mltop.probes.judge.hang.view import STOPPED, RankView, is_dead, leading_digest, runs_mostly
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import EVENT_LOOPS, Confidence, Culprit, Frame, StackDigest, Verdict, idle_event_loop
from mltop.probes.model.local_names import meaning_of
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.vocabulary import WAITS_FOR_CHILD, CulpritKind

_DATALOADER = "torch/utils/data/dataloader.py"
_CHILD_STATES = {"T": "which is stopped (state T) in", "t": "which a debugger holds in"}
_GC_ADVICE = "let all ranks do it at the same steps: gc.disable(), and gc.collect() every so many steps"
_LOOKS_LIKE_WORK = "a checkpoint or an evaluation on this rank alone looks the same: look again in a minute"
# Where all others are kept while the first one does something for all: prepares data, loads a model, writes a file.
_KEPT_BY_THE_FIRST = (
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "scatter", "scatter_object_list"),
)
# Where servers wait for the one that has the requests.
_KEPT_BY_A_SERVER = {*_KEPT_BY_THE_FIRST[2:], "recv", "recv_object_list"}
_ROOTED = {*_KEPT_BY_THE_FIRST[2:], "reduce", "gather", "gather_object"}  # some may go on before all have come


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
    doubt = _doubt(job)
    if doubt:
        return job.unclear(_waiting_evidence(job), doubt, *outside_lines(job.others))
    others, maybe = _without_servers(job)
    if not others:
        idle = "the others are event loops without work: nothing shows that somebody waits for them"
        return job.unclear(_waiting_evidence(job), idle, *outside_lines(job.others))
    inert = [view for view in others if not view.calls]
    standing = inert or others
    # Who has nothing to do may wait for those who stand elsewhere, as a driver does.
    away = [view for view in inert if not waits_at_queue(view.now)]
    accused = narrowed(away or standing, job.waiters)
    minority_waits = len(job.others) > len(job.waiters)
    if minority_waits and any(view.calls or view.spins for view in job.others):
        busy = f"{len(job.others)} ranks are outside collectives and busy: a slow step looks the same"
        return job.unclear(_waiting_evidence(job), busy, *outside_lines(job.others))
    accusations = [_accuse(job, view) for view in accused]
    works = all(view.calls or accusation.computes for view, accusation in zip(accused, accusations, strict=True))
    if job.assumed and works and job.known_s < work_s(job) and not _may_wait_busily(job):
        busy = f"{_who(accused)} may do what the others wait for: look again in a minute"
        return job.unclear(_waiting_evidence(job), busy, *outside_lines(accused))
    # Rank 0, or each node's first, while all others are where scripts keep them until it has done its part.
    samples = (view.seen.sample for view in accused)
    leads = all(one.rank == 0 or (one.local_rank == 0 and one.local_world_size != 1) for one in samples)
    first = leads and all(view.waiting_in in _KEPT_BY_THE_FIRST for view in job.waiters)
    may_be_work = [
        _cap_of_work(job, view, accusation, first=first) for view, accusation in zip(accused, accusations, strict=True)
    ]
    caps = [accusation.cap for accusation in accusations] + may_be_work
    if minority_waits or maybe:
        caps.append("low")
    if job.assumed:
        caps.append("low" if job.assumed.computes and job.known_s < work_s(job) else job.assumed.cap)
    evidence = [_waiting_evidence(job), *outside_lines(accused), *_what_for(accused)]
    if len(accused) < len(standing):
        aside = [view for view in standing if view not in accused]
        why = "nobody is known to wait for" if len(away) < len(standing) else "nobody waits for"
        evidence += [f"{line}; {why} {'it' if len(aside) == 1 else 'them'}" for line in outside_lines(aside)]
    if any(cap != "high" for cap in may_be_work):
        evidence.append(_LOOKS_LIKE_WORK)
    if len(standing) < len(others):
        evidence.append(f"{len(others) - len(standing)} more outside collectives still move")
    return job.hang(evidence, job.confidence(*caps), [accusation.culprit for accusation in accusations])


def _without_servers(job: JobView) -> tuple[list[RankView], bool]:
    """Those outside collectives, but event loops without work: servers that no request has come to. And whether they
    are loops that may be servers, too.

    A loop is no server that was begun below the function from which the others went into the collective, nor one below
    which the others run it in a thread: such a rank has not got there. Where nobody else is outside, one that has taken
    part in what the others do may be who has not come.
    """
    is_idle = once_per_stack(idle_event_loop)
    loops = [view for view in job.others if is_idle(view.now)]
    waits = {view.waiting_in for view in job.waiters}
    leaves = known(next(iter(python_frames(view.now.frames)), None) for view in job.waiters)
    sources = {leaf.ints["src"] for leaf in leaves if "src" in leaf.ints}
    servers = set(map(id, loops))
    if loops and not (waits <= _KEPT_BY_A_SERVER and (not sources or any(view.rank in sources for view in loops))):
        frames = known(user_frame(view.now.frames) for view in job.waiters)
        callers = {(frame.function, frame.file) for frame in frames if frame.function != "<module>"}
        mains = set(map(key_of, known(leading_digest(view.rounds[-1]) for view in job.waiters if view.is_led)))
        for view in loops:
            if key_of(view.now) in mains or any((frame.function, frame.file) in callers for frame in view.now.frames):
                servers.discard(id(view))
        if len(servers) == len(job.others) and len(waits - _ROOTED) < 2:
            stacks = {key_of(view.now): view.now.frames for view in job.waiters}
            return [view for view in loops if any(_takes_part(view.now, each) for each in stacks.values())], True
    return [view for view in job.others if id(view) not in servers], False


def _takes_part(idle: StackDigest, collective: Sequence[Frame]) -> bool:
    """Whether the loop was begun at the line below which another rank's loop runs the collective, or in the turn of the
    training from which another called it.
    """
    frames = python_frames(idle.frames)
    begun = list(dropwhile(lambda frame: frame.file.startswith((*EVENT_LOOPS, "selectors.py")), frames))
    inner, outer = collective[: -len(begun)], collective[-len(begun) :]
    if begun and inner and inner[-1].file.startswith(EVENT_LOOPS) and [*map(place, begun)] == [*map(place, outer)]:
        return True
    return not _turns(begun).isdisjoint(_turns(collective))


def _turns(frames: Sequence[Frame]) -> set[tuple[str, str, str, int]]:
    """The step counters that have counted. Who coordinates may do so epoch by epoch."""
    return {
        (frame.function, frame.file, name, value)
        for frame in frames
        for name, value in frame.ints.items()
        if value > 0 and meaning_of(name) == "step" and "epoch" not in name.lower()
    }


def _what_for(accused: Sequence[RankView]) -> list[str]:
    """What those that stand still are known to wait for there, and what to do about it."""
    asked = once_per_stack(known_poll)
    standing = [view for view in accused if not (view.calls or view.spins) or held_by_others(view.mains) is not None]
    polling = (view for view in standing if not waits_for_child(view.now) and asked(view.now) is not None)
    by_poll = grouped(polling, lambda view: asked(view.now))
    return [
        f"{_who(here)} {'waits' if len(here) == 1 else 'wait'} for {poll.what}. {poll.advice}"
        for poll, here in by_poll.items()
        if poll is not None
    ]


def _doubt(job: JobView) -> str | None:
    """Why nobody is accused where only the number of those who stand in one place says that they wait."""
    if job.assumed is None or job.assumed.polls:
        return None
    if len({key_of(view.now) for view in job.others}) > 1:
        return "no rule says whether they wait, and the others are in more than one place"
    if any(view.calls for view in job.others):
        return f"no rule says whether they wait, and {_who(job.others)} may work for all: look again in a minute"
    if any(view.spins for view in job.others) and job.known_s < work_s(job) and not _may_wait_busily(job):
        return f"no rule says whether they wait, and {_who(job.others)} may compute: look again in a minute"
    return None


def _may_wait_busily(job: JobView) -> bool:
    """Whether the others stand in one line of their own as the many stand in theirs, and it is MPI, whose waits look
    like work: nothing but the line tells them apart, which is enough for a suspicion.
    """
    if job.assumed is None or not job.assumed.computes or job.standstill != "high":
        return False
    return all(view.same_stack and not view.calls and not saves_or_evaluates(view.now) for view in job.others)


def _accuse(job: JobView, view: RankView) -> Accusation:
    helper = _accuse_helper(job, view)
    if helper is not None:
        return helper
    how: CulpritKind = "stands"
    collects = view.now.frames[0].native and collects_garbage(view.now)
    if collects:
        reason, how = f"collects garbage while the others wait for it; {_GC_ADVICE}", "computes"
    elif view.calls and (held := held_by_others(view.mains)) is not None:
        reason, how = f"polls for {held.what} while the others wait for it", "polls"
    elif idle_event_loop(view.now):
        reason = "its event loop is idle while the others wait for it: what it awaits has not come"
    elif view.calls:
        reason, how = "busy outside any collective while the others wait for it", "computes"
    elif view.spins and _may_wait_busily(job):
        reason, how = "is at another line than the others; it waits there, as MPI does, or computes", "elsewhere"
    elif view.spins:
        reason, how = "loops or computes outside any collective while the others wait for it", "computes"
    elif len(view.mains) > 1 or (view.quiet_s or 0.0) >= limit.QUIET_SHORT_S:
        reason = "is stuck outside any collective while the others wait for it"
    else:
        reason = "is outside any collective while the others wait for it (seen once)"
    culprit = view.culprit(reason + leaf_note(view.now), how=how)
    return Accusation(culprit, computes=view.spins or collects, stacks=(view.now,))


def _cap_of_work(job: JobView, view: RankView, accusation: Accusation, *, first: bool) -> Confidence:
    """How sure one may be that this is no checkpoint or evaluation that the others wait for; ``first``: it may be one
    by who waits where.

    Where it is known how long a step takes, all that looks like work has the time of ten.
    """
    saves = first or any(map(saves_or_evaluates, accusation.stacks))
    if job.evidence.rhythm_s is not None and (saves or view.calls or accusation.computes):
        sure: Confidence = "medium" if view.calls else "high"
        return sure if job.known_s >= work_s(job) else "low"
    if view.calls or accusation.computes:
        if job.assumed:
            return "low"
        if not view.calls and job.known_s >= limit.WORK_HIGH_S:
            return "high"
        return "medium" if job.known_s >= limit.WORK_MEDIUM_S else "low"
    return "low" if saves and job.known_s < limit.SAVING_HIGH_S else "high"


def work_s(job: JobView) -> float:
    """For how long one rank may do something of its own while the others wait."""
    rhythm_s = job.evidence.rhythm_s
    return limit.WORK_MEDIUM_S if rhythm_s is None else max(limit.WORK_LEAST_S, limit.WORK_STEPS * rhythm_s)


def _waiting_evidence(job: JobView) -> str:
    if job.assumed:
        poll = job.assumed.poll
        does = "polls" if len(job.waiters) == 1 else "poll"
        does = does if job.assumed.polls else "are"
        stand = f"{len(job.waiters)} of {len(job.views)} ranks {does} at {job.assumed.place}, {job.watched}"
        return f"{stand} (for {poll.what})" if poll else stand
    verb = "waits" if len(job.waiters) == 1 else "wait"
    return f"{len(job.waiters)} of {len(job.views)} ranks {verb}, {job.watched}"


def outside_lines(views: list[RankView]) -> list[str]:
    """Where the ranks outside collectives are, one line per place, the rarest places first."""
    is_loop = once_per_stack(idle_event_loop)
    stand = once_per_stack(lambda digest: f"{where(digest)}{leaf_note(digest)}")

    def text(view: RankView) -> str:
        return f"{stand(view.now)}, {'an event loop without work' if is_loop(view.now) else _behaviour(view)}"

    places = grouped(views, text)
    ordered = sorted(places.items(), key=lambda item: len(item[1]))
    lines = [f"{_who(here)} not in a collective: {text}" for text, here in ordered[: limit.EVIDENCE_PLACES]]
    left = len(ordered) - len(lines)
    return lines + ([f"and {left} more places outside collectives"] if left else [])


def _who(views: list[RankView]) -> str:
    numbers = known(view.rank for view in views)
    if numbers:
        return ranks_text(numbers)
    return "1 process without a rank" if len(views) == 1 else f"{len(views)} processes without a rank"


def _behaviour(view: RankView) -> str:
    dumps = len(view.mains)
    if view.calls:
        return "its counters move: a loop that sleeps or polls, or slow work"
    if not view.same_stack:
        return f"stack or integer locals change over {dumps} dumps without system calls: it loops or computes"
    seen = f"same stack in all {dumps} dumps" if dumps > 1 else "1 dump only"
    if not view.spins:
        return seen
    cpu = "" if view.cpu_fraction is None else f" at {view.cpu_fraction:.0%} CPU"
    return f"{seen}{cpu}: it loops or computes"


# A rank that waits for a thread or a process of its own: which one, and what that one does.


def _accuse_helper(job: JobView, view: RankView) -> Accusation | None:
    """The thread or child that the rank waits for, when one is dead, stuck or at work; None: it waits for none."""
    holder = lock_holder(view)
    if holder is not None:
        return _locked_out(view, holder)
    loop = idle_event_loop(view.now)
    threaded = waits_for_thread(view.now)
    forked = waits_for_child(view.now) or view.now.wchan == WAITS_FOR_CHILD
    if not (threaded or forked or loop):
        return _filler(view) if waits_at_queue(view.now) else None
    in_user_code = (digests for digests in view.threads() if (threaded or loop) and user_frame(digests[-1].frames))
    threads = sorted(in_user_code, key=lambda digests: not _stable(digests))
    pooled = [digests for digests in threads if in_thread_pool(digests[-1])]
    threads = pooled if loop else threads
    if pooled or (threads and not forked):
        return _thread(view, pooled or threads)
    children = view.children() if forked else []
    suspects = sorted((digests for digests in children if _suspicious(digests[-1])), key=_surest_first)
    if suspects:
        return _child(job, view, suspects)
    if threads:
        return _thread(view, threads)
    any_program = waits_for_program(view.now) or view.now.wchan == WAITS_FOR_CHILD
    programs = [digests for digests in children if digests[-1].program] if any_program else []
    is_known = bool(children) or threaded or waits_for_child(view.now)  # else the kernel's word is all there is
    none = _none_found(view, children, threaded, forked) if is_known else None
    return _program(view, programs) if programs else none


def _thread(view: RankView, threads: list[list[StackDigest]]) -> Accusation:
    thread = threads[0][-1]
    what = "which is stuck in" if _stable(threads[0]) else "which is busy in"
    reason = f"waits for its thread {thread.thread}, {what} {where(thread)}{_more(threads)}"
    culprit = view.culprit(reason, where(thread), how=_how(threads[0]))
    return Accusation(culprit, computes=_computes(threads[0]), stacks=(view.now, thread))


def _filler(view: RankView) -> Accusation | None:
    """A thread of the script that stands elsewhere than at a queue, as it may have to fill or empty this one."""
    threads = [
        digests
        for digests in view.threads()
        if user_frame(digests[-1].frames) and not waits_at_queue(digests[-1]) and not in_thread_pool(digests[-1])
    ]
    if not threads:
        return None
    threads.sort(key=lambda digests: not _stable(digests))
    thread = threads[0][-1]
    doing = "is stuck in" if _stable(threads[0]) else "is busy in"
    reason = f"waits at a queue; its thread {thread.thread} {doing} {where(thread)} and may have to serve it"
    culprit = view.culprit(reason + _more(threads), where(thread), how=_how(threads[0]))
    return Accusation(culprit, "medium", _computes(threads[0]), (view.now, thread))


def _locked_out(view: RankView, holder: Holder) -> Accusation:
    thread = holder.rounds[-1]
    doing = "is stuck in" if _stable(holder.rounds) else "is busy in"
    if holder.sure:
        reason = f"waits for a lock that its thread {thread.thread} holds, which {doing} {where(thread)}"
    else:
        reason = f"waits for a lock, as it seems; its thread {thread.thread} {doing} {where(thread)} and may hold it"
    culprit = view.culprit(reason, where(thread), how=_how(holder.rounds))
    cap: Confidence = "high" if holder.sure else "medium"
    return Accusation(culprit, cap, _computes(holder.rounds), (view.now, thread))


def _child(job: JobView, view: RankView, suspects: list[list[StackDigest]]) -> Accusation:
    child = suspects[0][-1]
    says = job.kernel_says(view, child.wchan, child.pid) if child.state == "D" else ""
    reason = f"waits for its {_kind(view)[0]} {child.pid}, {_child_text(suspects[0])}{_more(suspects)}{says}"
    stack = child if child.frames else view.now
    culprit = view.culprit(reason, where(stack), child.pid, _how(suspects[0]))
    return Accusation(culprit, computes=_computes(suspects[0]), stacks=(view.now, child))


def _program(view: RankView, programs: list[list[StackDigest]]) -> Accusation:
    """The newest one that lives: what was started before it may run beside the job."""
    ordered = sorted(programs, key=lambda digests: (is_dead(digests[-1]), -digests[-1].pid))
    program = ordered[0][-1]
    kernel = f" in {program.wchan}" if program.wchan and program.state == "D" else ""
    state = "which has died" if is_dead(program) else f"state {program.state}{kernel}"
    reason = f"waits for its child process {program.pid} ({program.program}, {state}){_more(programs)}"
    return Accusation(
        view.culprit(reason, child_pid=program.pid, how="stands"), computes=_computes(ordered[0]), stacks=(view.now,)
    )


def _none_found(view: RankView, children: list[list[StackDigest]], threaded: bool, forked: bool) -> Accusation:
    python = [digests for digests in children if not digests[-1].program]
    if threaded:
        whom = "a thread or a worker process" if forked else "a thread"
        reason = f"waits for {whom} of its own, and none is in code of the script"
    elif not python:
        reason = f"waits for one of its {_kind(view)[1]}, and none was found"
    else:
        unread = any(digests[-1].error for digests in python)
        reason = f"waits for its {_kind(view)[1]}, {'none of which could be read' if unread else 'all idle'}"
    return Accusation(view.culprit(reason, how="stands"), "medium", view.spins, (view.now,))


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


def _how(digests: list[StackDigest]) -> CulpritKind:
    return "computes" if _computes(digests) else "stands"


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
    return f"{'which is busy in' if _computes(digests) else 'which is stuck in'} {where(child)}"
