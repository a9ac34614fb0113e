"""Step 2: a job that moves accuses nobody; who is slow in it shows by who waits least."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.assumed import sleeps
from mltop.probes.judge.hang.frames import where
from mltop.probes.judge.hang.job import JobView, names
from mltop.probes.judge.hang.view import RankView
from mltop.probes.judge.stall.activity import COMPUTED, IdlePower, gpu_state
from mltop.probes.judge.values import median_without
from mltop.probes.model import Confidence, Culprit, Verdict, idle_event_loop

MOST_PIDS = 16  # in one command


def moving(job: JobView) -> Verdict | None:
    """The verdict of a job that moves, None for one that does not. May name stragglers, never culprits."""
    why = None if job.mostly_stopped else _why_it_moves(job)
    if why is None:
        return None
    stragglers, shares = find_stragglers(job.running)
    evidence = [*_stopped(job.stopped), why, *shares]
    if job.roster.gone:
        gone = ", ".join(f"rank {absent.rank}: {absent.reason}" for absent in job.roster.gone[:3])
        evidence.append(f"the others move, but {gone}")
    rounds = max((len(view.waits) for view in job.running), default=0)
    confidence: Confidence = "medium" if not stragglers or rounds >= limit.STRAGGLER_ROUNDS_FIRM else "low"
    if not stragglers and job.window_s >= limit.WINDOW_SHORT_S:
        confidence = "high"
    if not stragglers and job.running and not job.unreadable and all(map(_only_sleeps, job.running)):
        confidence = "low"
        evidence.append("between their sleeps they do next to nothing: a poll looks the same; look again in a minute")
    return Verdict("straggler" if stragglers else "moving", [], [], stragglers, evidence, confidence)


def _stopped(views: Sequence[RankView]) -> list[str]:
    """They are no part of what moves: listed first."""
    traced = [view for view in views if view.states[-1] == "t"]
    signalled = [view for view in views if view.states[-1] != "t"]
    lines = []
    if signalled:
        them = "it" if len(signalled) == 1 else "them"
        pids = " ".join(str(view.pid) for view in signalled[:MOST_PIDS])
        how = f"stopped by a signal (state T) while the others move; to let {them} run on: kill -CONT {pids}"
        lines.append(f"{names(signalled)} {how}")
    if traced:
        lines.append(f"{names(traced)} held by a debugger (state t) while the others move")
    return lines


def _why_it_moves(job: JobView) -> str | None:
    everyone = [*job.running, *job.unreadable]
    moved = [view for view in everyone if view.moves]
    passing = [view for view in job.running if view.passes]
    if passing:
        return f"{_of(passing, job)} went in or out of a collective between dumps; {_counters(everyone)}"
    restless = [view for view in job.waiters if view.switches]
    if restless and len(restless) > limit.RESTLESS_SHARE * len(job.waiters):
        return f"{_of(restless, job)} wait in the same place in every dump, but move: {_counters(everyone)}"
    computing = [view for view in job.waiters if _gpu_computes(view, job)]
    if len(computing) > limit.MOVING_SHARE * len(job.waiters):
        return f"{_of(computing, job)} wait for their GPUs, which compute; {_counters(everyone)}"
    if job.waiters:
        # Waiting ranks whose side threads write logs look as if they moved: their main threads decide.
        most_move = len(moved) > limit.MOVING_SHARE * len(everyone) and len(job.waiters) < len(job.others)
    else:
        most_move = 2 * len(moved) >= len(everyone) > 0
    return f"{_of(moved, job)} move: {_counters(everyone)}" if most_move else None


def _gpu_computes(view: RankView, job: JobView) -> bool:
    """It waits for a GPU that does more than a collective's kernel that waits."""
    sample = job.evidence.samples.get(view.node)
    if sample is None or view.waiting_in != "cuda.synchronize":
        return False
    gpus = [gpu for gpu in sample.gpus if gpu.index in view.seen.sample.gpus]
    return any(gpu_state(gpu, IdlePower(), None) == COMPUTED for gpu in gpus)


def _only_sleeps(view: RankView) -> bool:
    """It sleeps in most dumps, reads and writes nothing, and hardly computes; what it counts may be its looks."""
    motion = view.motion
    asleep = sum(sleeps(main) or idle_event_loop(main) for main in view.mains)
    idle = motion.main_cpu_s is not None and motion.main_cpu_s < limit.POLL_CPU * motion.window_s
    calls = motion.process_calls is None or motion.calling() or motion.process_calling()
    still = not view.passes and not any(view.waits) and not calls
    return idle and still and asleep >= limit.POLL_PLACE_SHARE * len(view.mains)


def _of(views: Sequence[RankView], job: JobView) -> str:
    return f"{len(views)} of {len(job.views)} ranks"


def _counters(views: Sequence[RankView]) -> str:
    motions = [view.motion for view in views if view.motion.window_s > 0]
    switches = [motion.switches / motion.window_s for motion in motions if motion.switches is not None]
    calls = [motion.process_calls / motion.window_s for motion in motions if motion.process_calls is not None]
    kinds = ((switches, "voluntary switches/s"), (calls, "read and write calls/s"))
    parts = [f"{statistics.median(rates):.1f} {words}" for rates, words in kinds if rates]
    return (" and ".join(parts) + " per rank (median)") if parts else "no counters to compare"


def find_stragglers(views: Sequence[RankView]) -> tuple[list[Culprit], list[str]]:
    """Ranks for which the others wait: their own share of dumps in a collective is far below the others'.

    Also the evidence line with the shares. Nothing below 8 dumps per rank, when the low share could be luck
    (Fisher's exact test against the other ranks' dumps, times the number of ranks), or when so many are low that
    they are a second kind of rank.
    """
    enough = (view for view in views if len(view.waits) >= limit.STRAGGLER_ROUNDS)
    watched = sorted(enough, key=lambda view: (view.rank is None, view.rank or 0))
    if len(watched) < 2:
        return [], []
    shares = [_hits(view) / len(view.waits) for view in watched]
    ordered = sorted(shares)
    hits, dumps = sum(map(_hits, watched)), sum(len(view.waits) for view in watched)
    low = []
    for view, share in zip(watched, shares, strict=True):
        typical = median_without(ordered, share) or 0.0
        if typical >= limit.STRAGGLER_MEDIAN and share <= limit.STRAGGLER_SHARE * typical:
            luck = chance_of_at_most(_hits(view), len(view.waits), hits, dumps)
            if luck * len(watched) <= limit.STRAGGLER_CHANCE:
                low.append(_straggler(view, share, typical))
    too_many = len(low) > max(1.0, limit.STRAGGLER_MINORITY * len(watched))
    return [] if too_many else low, [_shares_line(watched, shares)]


def _hits(view: RankView) -> int:
    """In how many of its dumps it waits for others."""
    return sum(wait is not None for wait in view.waits)


def chance_of_at_most(hits: int, tries: int, all_hits: int, all_tries: int) -> float:
    """The chance that ``tries`` drawn from ``all_tries``, of which ``all_hits`` are hits, hold at most ``hits``.

    The hypergeometric tail: Fisher's exact test of one rank's dumps against those of all others.
    """
    misses = all_tries - all_hits
    every = _log_choose(all_tries, tries)
    possible = range(max(0, tries - misses), min(hits, all_hits) + 1)
    return sum(math.exp(_log_choose(all_hits, k) + _log_choose(misses, tries - k) - every) for k in possible)


def _log_choose(count: int, chosen: int) -> float:
    """By lgamma: with 4,096 ranks the numbers themselves have ten thousand digits."""
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _shares_line(views: Sequence[RankView], shares: Sequence[float]) -> str:
    if len(views) <= limit.LISTED_RANKS:
        each = ", ".join(f"{view.name} {share:.0%}" for view, share in zip(views, shares, strict=True))
    else:
        lowest = min(zip(shares, (view.name for view in views), strict=True))
        each = f"{lowest[1]} {lowest[0]:.0%}, median {statistics.median(shares):.0%}, most {max(shares):.0%}"
    return f"share of dumps in which a rank waits for others: {each}"


def _straggler(view: RankView, share: float, typical: float) -> Culprit:
    outside = Counter(where(main) for main, wait in zip(view.mains, view.waits, strict=True) if wait is None)
    place = max(outside, key=lambda text: outside[text], default=None)
    return view.culprit(
        f"waits for others in {share:.0%} of {len(view.waits)} dumps, the others in {typical:.0%}", place, how="slow"
    )
