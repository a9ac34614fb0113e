"""Step 3: some ranks wait in a collective, others do not. Those who do not are waited for."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.classes import by_place
from mltop.probes.judge.fold import ranks_text
from mltop.probes.judge.frames import is_idle_worker, key_of, leaf_note, waits_for_child, where
from mltop.probes.judge.job import JobView, waiting_lines
from mltop.probes.judge.view import RankView, is_dead
from mltop.probes.model import Culprit, StackDigest, Verdict

_DATALOADER = "torch/utils/data/dataloader.py"
_CHILD_STATES = {"T": "which is stopped (state T) in", "t": "which a debugger holds in"}


def non_waiters(job: JobView) -> Verdict | None:
    """Accuses the ranks outside collectives, first of all those that stand still or only spin."""
    if not job.waiters or not job.others:
        return None
    inert = [view for view in job.others if not view.calls]
    accused = inert or job.others
    minority_waits = len(job.others) > len(job.waiters)
    if minority_waits and any(view.calls or view.spins for view in job.others):
        return _few_wait(job)
    found = [_accuse(view) for view in accused]
    caps = [one.cap for one in found]
    if minority_waits:
        caps.append("low")
    if not inert:  # it may be slow work, such as a checkpoint that the others wait for
        caps.append("medium" if (job.quiet_s or 0.0) >= limit.QUIET_LONG_S else "low")
    evidence = [_waiting_evidence(job), *outside_lines(accused)]
    if len(accused) < len(job.others):
        evidence.append(f"{len(job.others) - len(accused)} more outside collectives still move")
    culprits = [one.culprit for one in found]
    return Verdict("hang", culprits, waiting_lines(job.waiters), [], evidence, job.confidence(*caps))


def _few_wait(job: JobView) -> Verdict:
    evidence = [
        _waiting_evidence(job),
        f"{len(job.others)} ranks are outside collectives and busy: a slow step looks the same",
        *outside_lines(job.others),
    ]
    return Verdict("unclear", [], waiting_lines(job.waiters), [], evidence, "low")


def _waiting_evidence(job: JobView) -> str:
    verb = "waits" if len(job.waiters) == 1 else "wait"
    return f"{len(job.waiters)} of {len(job.views)} ranks {verb} and did not move for {job.watched}"


def outside_lines(views: list[RankView]) -> list[str]:
    """Where the ranks outside collectives are, one line per place, the rarest places first."""
    places = by_place((-1 if view.rank is None else view.rank, _now(view)) for view in views)
    ordered = sorted(places.items(), key=lambda item: len(item[1]))
    lines = [f"{_who(ranks)} not in a collective: {text}" for text, ranks in ordered[: limit.EVIDENCE_PLACES]]
    left = len(ordered) - len(lines)
    return lines + ([f"and {left} more places outside collectives"] if left else [])


def _who(ranks: list[int]) -> str:
    numbers = [rank for rank in ranks if rank >= 0]
    return ranks_text(numbers) if numbers else f"{len(ranks)} processes without a rank"


def _now(view: RankView) -> str:
    return f"{where(view.now)}{leaf_note(view.now)}, {_behaviour(view)}"


def _behaviour(view: RankView) -> str:
    dumps = len(view.mains)
    if view.calls:
        return "its counters move: a loop that sleeps or polls, or slow work"
    if not view.same_stack:
        return f"stack or integer locals change over {dumps} dumps without system calls: it loops or computes"
    if view.spins:
        return f"one stack in {dumps} dumps at {view.cpu_fraction or 0.0:.0%} CPU: it loops or computes"
    return f"one stack in {dumps} dumps" if dumps > 1 else "seen in one dump"


@dataclass(frozen=True)
class _Accusation:
    culprit: Culprit
    cap: str = "high"


def _accuse(view: RankView) -> _Accusation:
    if waits_for_child(view.now):
        return _descend(view)
    if view.calls:
        reason = "busy outside any collective while the others wait for it"
    elif view.spins:
        reason = "loops or computes outside any collective while the others wait for it"
    else:
        reason = "stands still outside any collective while the others wait for it"
    return _Accusation(Culprit(view.rank, view.node, view.pid, reason + leaf_note(view.now), where(view.now)))


def _descend(view: RankView) -> _Accusation:
    """The rank waits for a process of its own: name that one, when one of them is dead or at work."""
    inside = any(frame.file == _DATALOADER for frame in view.now.frames)
    kind = "dataloader worker" if inside else "child process"
    children = [digests for digests in view.children() if digests]
    suspects = sorted(
        (digests for digests in children if _suspicious(digests[-1])),
        key=_surest_first,
    )
    if suspects:
        child = suspects[0][-1]
        more = f" (and {len(suspects) - 1} more)" if len(suspects) > 1 else ""
        reason = f"waits for its {kind} {child.pid}, {_child_text(suspects[0])}{more}"
        place = where(child) if child.frames else where(view.now)
        return _Accusation(Culprit(view.rank, view.node, child.pid, reason, place))
    why = "none of which could be read" if any(digests[-1].error for digests in children) else "all idle"
    reason = f"waits for its {kind}s, {why if children else 'none of which was found'}"
    return _Accusation(Culprit(view.rank, view.node, view.pid, reason, where(view.now)), "medium")


def _suspicious(child: StackDigest) -> bool:
    return is_dead(child) or child.state == "D" or (bool(child.frames) and not is_idle_worker(child))


def _surest_first(digests: list[StackDigest]) -> tuple[bool, bool, int]:
    """Dead ones first, then those whose stack does not change, then by pid."""
    return (not is_dead(digests[-1]), not _stable(digests), digests[-1].pid)


def _stable(digests: list[StackDigest]) -> bool:
    return len({key_of(digest) for digest in digests if digest.frames}) <= 1


def _child_text(digests: list[StackDigest]) -> str:
    child = digests[-1]
    if is_dead(child):
        return "which has died"
    if child.state == "D":
        wchan = f" ({child.wchan})" if child.wchan else ""
        return f"which is in the kernel{wchan}, state D, below {where(child)}"
    what = _CHILD_STATES.get(child.state) or ("which is stuck in" if _stable(digests) else "which is busy in")
    return f"{what} {where(child)}"
