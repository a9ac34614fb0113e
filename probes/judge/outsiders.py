"""Step 3: some ranks wait in a collective, others do not. Those who do not are waited for."""

from __future__ import annotations

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.classes import by_place
from mltop.probes.judge.fold import ranks_text
from mltop.probes.judge.frames import leaf_note, saves_or_evaluates, where
from mltop.probes.judge.helpers import Accusation, accuse_helper
from mltop.probes.judge.job import JobView, waiting_lines
from mltop.probes.judge.view import RankView
from mltop.probes.model import Confidence, Culprit, Verdict

_LOOKS_LIKE_WORK = "a checkpoint or an evaluation on this rank alone looks the same: look again in a minute"


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
    may_be_work = [_cap_of_work(job, view, one) for view, one in zip(accused, found, strict=True)]
    caps = [one.cap for one in found] + may_be_work
    if minority_waits:
        caps.append("low")
    evidence = [_waiting_evidence(job), *outside_lines(accused)]
    if any(cap != "high" for cap in may_be_work):
        evidence.append(_LOOKS_LIKE_WORK)
    if len(accused) < len(job.others):
        evidence.append(f"{len(job.others) - len(accused)} more outside collectives still move")
    culprits = [one.culprit for one in found]
    return Verdict("hang", culprits, waiting_lines(job.waiters), [], evidence, job.confidence(*caps))


def _accuse(view: RankView) -> Accusation:
    helper = accuse_helper(view)
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
    culprit = Culprit(view.rank, view.node, view.pid, reason + leaf_note(view.now), where(view.now))
    return Accusation(culprit, computes=view.spins, stacks=(view.now,))


def _cap_of_work(job: JobView, view: RankView, accusation: Accusation) -> Confidence:
    """How sure one may be that this is no checkpoint or evaluation that the others wait for."""
    if view.calls:
        return "medium" if job.known_s >= limit.WORK_MEDIUM_S else "low"
    if accusation.computes:
        if job.known_s >= limit.WORK_HIGH_S:
            return "high"
        return "medium" if job.known_s >= limit.WORK_MEDIUM_S else "low"
    if job.known_s < limit.SAVING_HIGH_S and any(map(saves_or_evaluates, accusation.stacks)):
        return "medium"
    return "high"


def _few_wait(job: JobView) -> Verdict:
    evidence = [
        _waiting_evidence(job),
        f"{len(job.others)} ranks are outside collectives and busy: a slow step looks the same",
        *outside_lines(job.others),
    ]
    return Verdict("unclear", [], waiting_lines(job.waiters), [], evidence, "low")


def _waiting_evidence(job: JobView) -> str:
    verb = "waits" if len(job.waiters) == 1 else "wait"
    return f"{len(job.waiters)} of {len(job.views)} ranks {verb} and did not move {job.watched}"


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
    seen = f"one stack in {dumps} dumps" if dumps > 1 else "seen in one dump"
    if not view.spins:
        return seen
    cpu = "" if view.cpu_fraction is None else f" at {view.cpu_fraction:.0%} CPU"
    return f"{seen}{cpu}: it loops or computes"
