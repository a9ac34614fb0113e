"""Ranks of a job that differ from the others as seen from outside: facts of each, and clear minorities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mltop.probes.judge.deaths import Death, kind_of_end
from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import IDLE, RESIDENT, SPUN, STILL, WORKED
from mltop.probes.judge.stall.job import Job, has_ended_well
from mltop.probes.model import Culprit, RankDeath
from mltop.probes.model.news.judged import Gone, RankMotion
from mltop.probes.model.vocabulary import CulpritKind

_Tracks = Sequence[tuple[str, RankMotion]]


def odd_ranks(job: Job) -> list[Culprit]:
    """The gone ones first, then the stopped ones, those in the kernel, and who is the only one to do something."""
    stands = job.phase in ("quiet", "stalled")
    found = [_gone(gone, job.deaths.get(key)) for key, gone in job.gone.items() if stands and not _is_fine(job, key)]
    if stands or job.still_s >= limit.BLOCKED_S or any(part.numbers.facts for part in job.parts.values()):
        tracks = list(job.tracks())
        found += _facts(tracks, job.at)
        # Two ranks are no majority and minority, and what moves differs from moment to moment.
        if len(tracks) >= limit.LEAST_COMPARED and job.stepped and job.still_s >= limit.BLOCKED_S:
            named = {(culprit.node, culprit.pid) for culprit in found}
            found += [odd for odd in _minorities(tracks) if (odd.node, odd.pid) not in named]
    return found[: limit.MOST_ODD]


def _is_fine(job: Job, key: tuple[str, int]) -> bool:
    """That a rank has ended well is odd only where the others have waited for longer than they ever do; one that has
    waited in vain itself held up nobody.
    """
    death = job.deaths.get(key)
    if death is not None and Death(key[0], death).is_in_vain:
        return True
    return has_ended_well(death) and job.phase != "stalled"


def _gone(gone: Gone, death: RankDeath | None) -> Culprit:
    how: CulpritKind = "dead" if death is None else kind_of_end(death)
    return Culprit(gone.rank, gone.node, gone.pid, _end(gone, death), "", gpu=gone.gpu, how=how)


def _end(gone: Gone, death: RankDeath | None) -> str:
    if death is None or death.how == "unknown":
        return "its process has exited, nobody has collected it (zombie)" if gone.zombie else "its process is gone"
    return Death(gone.node, death).words()


def _facts(tracks: _Tracks, at: float) -> list[Culprit]:
    # Whoever looks at a stack, this program too, holds the process for a moment.
    stopped = [
        (node, track)
        for node, track in tracks
        if track.state in ("T", "t") and at - track.state_since >= limit.STOPPED_S
    ]
    in_kernel = [(node, track) for node, track in tracks if track.state == "D" and track.level == STILL]
    blocked = [(node, track) for node, track in in_kernel if at - track.state_since >= limit.BLOCKED_S]
    found = [
        _culprit(node, track, "held by a debugger (t)", "traced")
        if track.state == "t"
        else _culprit(node, track, "stopped (T)", "stopped")
        for node, track in stopped
    ]
    if len(blocked) <= max(1, len(tracks) // 4):
        found += [_culprit(node, track, "in the kernel, uninterruptible (D)", "kernel") for node, track in blocked]
    return found


def _minorities(tracks: _Tracks) -> list[Culprit]:
    few = max(1, int(limit.ODD_SHARE * len(tracks)))
    found: list[Culprit] = []
    resident = sum(track.gpu_state == RESIDENT for _, track in tracks)
    idle = [entry for entry in tracks if entry[1].gpu_state == IDLE]
    if 0 < len(idle) <= few and resident >= limit.RESIDENT_SHARE * len(tracks):
        found += _named(idle, f"its GPU is idle, the other {resident} spin in a collective")
    awake = [entry for entry in tracks if entry[1].level in (SPUN, WORKED)]
    if 0 < len(awake) <= few:
        spun = [entry for entry in awake if entry[1].level == SPUN]
        worked = [entry for entry in awake if entry[1].level == WORKED]
        found += _named(spun, "computes on a core while the others make no progress")
        found += _named(worked, "works while the others make no progress")
    # A rank is named once, by what was found first.
    return list({(culprit.node, culprit.pid): culprit for culprit in reversed(found)}.values())[::-1]


def _named(entries: Iterable[tuple[str, RankMotion]], reason: str) -> list[Culprit]:
    return [_culprit(node, track, reason) for node, track in entries]


def _culprit(node: str, track: RankMotion, reason: str, how: CulpritKind = "") -> Culprit:
    return Culprit(track.rank, node, track.pid, reason, track.wchan or "", gpu=track.gpu, how=how)
