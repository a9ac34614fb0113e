"""Waits that no rule knows: ranks that poll in one place, and a place where nearly all ranks of a job stand.

Whoever sleeps, looks and sleeps again moves its switch counter and gets nowhere. What tells it from a slow healthy step
is all of this together, in every dump of at least two thirds of the ranks: one place whose leaf sleeps (or is a poll
that is known by name), the same integer locals of the script, no read or write call, and next to no CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.frames import UserFrames, key_of, python_frames, where
from mltop.probes.judge.hang.polls import Poll, known_poll
from mltop.probes.judge.hang.view import RankView
from mltop.probes.judge.values import grouped
from mltop.probes.model import Confidence, StackDigest, idle_event_loop

# Kernel functions of a sleep with an end: clock_nanosleep, and select without descriptors (Python before 3.11). Some
# kernels show poll_schedule_timeout instead of do_select, and in poll() as well.
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_select")
_MAY_SLEEP = "poll_schedule_timeout"
_MPI_LAUNCHERS = ("mpirun",)


@dataclass(frozen=True)
class Assumed:
    """What is taken for a wait: all that stand at ``place`` poll there, ``poll`` is what is known of it; ``sleeps``:
    the kernel shows the sleep between two looks.

    ``polls`` False: nearly all ranks stand there, and why is not known; ``cap``: then not surer than this;
    ``computes``: as far as it shows.
    """

    place: str
    polls: bool
    poll: Poll | None = None
    cap: Confidence = "medium"
    sleeps: bool = False
    computes: bool = False

    @property
    def waiting_in(self) -> str:
        if not self.polls:
            return "a call that is no known wait"
        return f"a poll for {self.poll.what}" if self.poll else "a poll"


def assume_waits(running: Sequence[RankView]) -> Assumed | None:
    """Marks the ranks that wait as far as shows from all of them together; None: no more than rules know."""
    if not running or any(view.waiting_in and not view.steady for view in running):
        return None
    return _polling(running) or _standing(running)


Answer = TypeVar("Answer")


def once_per_stack(ask: Callable[[StackDigest], Answer]) -> Callable[[StackDigest], Answer]:
    """``ask``, whose answers for equal stacks that sleep in one function of the kernel are remembered."""
    answers: dict[tuple[str, str | None], Answer] = {}

    def asked(digest: StackDigest) -> Answer:
        key = (key_of(digest), digest.wchan)
        if key not in answers:
            answers[key] = ask(digest)
        return answers[key]

    return asked


# Polls.


def sleeps(main: StackDigest) -> bool:
    """Whether the kernel shows a sleep. One that libraries' polls of files look like counts in the user's code only."""
    wchan = main.wchan or ""
    leaf = next(iter(python_frames(main.frames)), None)
    return wchan.startswith(_SLEEPS) or (wchan.startswith(_MAY_SLEEP) and leaf is not None and leaf.user)


def _polling(running: Sequence[RankView]) -> Assumed | None:
    known = once_per_stack(known_poll)
    candidates = [view for view in running if view.waiting_in is None]
    if len(candidates) >= limit.ALIKE_SHARE * len(running):
        candidates = [view for view in candidates if _may_poll(view, known)]
    if len(candidates) < limit.ALIKE_SHARE * len(running):
        return None
    asleep = {id(view): sleep for view in candidates if (sleep := _sleep_of(view, known)) is not None}
    found = [view for view in candidates if id(view) in asleep]
    groups = grouped(found, lambda view: key_of(asleep[id(view)]))
    here = max(groups.values(), key=len, default=[])
    if not here or len(here) < limit.ALIKE_SHARE * len(running):
        return None
    sleep = asleep[id(here[0])]
    assumed = Assumed(where(sleep), True, known_poll(sleep), sleeps=sleeps(sleep))
    for view in here:
        view.polls, view.same_stack = True, True
        view.waits = [assumed.waiting_in] * len(view.mains)
        view.mains = [replace(main, waiting_in=assumed.waiting_in) for main in view.mains]
    return assumed


_Known = Callable[[StackDigest], Poll | None]


def _may_poll(view: RankView, known_poll: _Known) -> bool:
    motion = view.motion
    if view.stopped or motion.calling() or motion.process_calling() or not view.readable or _has_work_done(view):
        return False
    if len(view.mains) == 1:
        return known_poll(view.now) is not None
    known = motion.main_cpu_s is not None and motion.switches is not None and motion.process_calls is not None
    return known and motion.window_s > 0 and (motion.main_cpu_s or 0.0) < limit.POLL_CPU * motion.window_s


def _has_work_done(view: RankView) -> bool:
    """Its children compute: a compiler, a program that it started."""
    dumped = view.rounds[-1].after if view.rounds else None
    sample = view.seen.sample if dumped is None or dumped.children_cpu_fraction is None else dumped
    return (sample.children_cpu_fraction or 0.0) >= limit.BUSY_MAIN_CPU


def _sleep_of(view: RankView, known_poll: _Known) -> StackDigest | None:
    """The dump that shows the poll's sleep, when all of the rank's dumps are of one and the same poll."""
    newest = next((main for main in reversed(view.mains) if sleeps(main)), None)
    newest = newest or next((main for main in reversed(view.mains) if known_poll(main)), None)
    if newest is None:
        return None
    at_sleep = [main for main in view.mains if key_of(main) == key_of(newest)]
    known = known_poll(newest) is not None
    if not known and (len(view.mains) < limit.POLL_ROUNDS or len(at_sleep) < limit.POLL_PLACE_SHARE * len(view.mains)):
        return None
    # The first frame from the leaf on that tells a known poll: below it, its look and its sleep take turns.
    frames = list(python_frames(newest.frames))
    ends = range(len(frames) if known else 0)
    anchor = next((at for at in ends if known_poll(replace(newest, frames=frames[: at + 1])) is not None), 0)
    outer, function, ints = _ways(newest, anchor, known=known)
    for main in view.mains:
        # From the poll's own function on it may be at another line, and in what this line calls.
        begin = len(python_frames(main.frames)) - len(outer) - 1
        if begin < 0 or _ways(main, begin, known=known) != (outer, function, ints):
            return None
    return newest


Way = tuple[tuple[tuple[str, str, int], ...], tuple[str, str], tuple[tuple[tuple[str, int], ...], ...]]


def _ways(digest: StackDigest, begin: int, *, known: bool) -> Way:
    """From frame ``begin`` to the script: the callers' lines, the function itself, and the locals of user code.

    A known poll counts its turns in locals of its own; those of the script must stand still.
    """
    frames = python_frames(digest.frames)
    outer = tuple((frame.function, frame.file, frame.line) for frame in frames[begin + 1 :])
    users = {at for at in UserFrames().indexes(digest) if at >= begin + known}
    ints = tuple(tuple(sorted(frames[at].ints.items())) for at in sorted(users))
    return outer, (frames[begin].function, frames[begin].file), ints


# A place where nearly all stand.


def _standing(running: Sequence[RankView]) -> Assumed | None:
    """One place where at least two thirds of the ranks do not get on, and no rule says why, while others are elsewhere.

    Those that compute there are taken for waiting only where MPI is known to wait so. Pipelines have code of their own
    for each stage: there a place says nothing.
    """
    if any(view.waiting_in or view.seen.sample.parallel.get("pp_size", 1) > 1 for view in running):
        return None
    is_idle = once_per_stack(idle_event_loop)
    still = [view for view in running if _stands(view) and not is_idle(view.now)]
    groups = grouped(still, lambda view: key_of(view.now))
    here = max(groups.values(), key=len, default=[])
    known = set(map(id, here))
    elsewhere = [view for view in running if id(view) not in known and not is_idle(view.now)]
    if len(here) < 2 or len(here) < limit.ALIKE_SHARE * len(running) or not elsewhere:
        return None
    busy = any(view.runs for view in here)
    if busy and not all(view.seen.sample.launcher in _MPI_LAUNCHERS for view in here):
        return None
    # In the same function of the kernel, or an unknown one, they may wait for others as these do.
    apart = all(
        None not in (view.now.wchan, here[0].now.wchan) and view.now.wchan != here[0].now.wchan for view in elsewhere
    )
    assumed = Assumed(where(here[0].now), False, None, "medium" if apart else "low", computes=busy)
    for view in here:
        view.waits = [assumed.waiting_in] * len(view.mains)
    return assumed


def _stands(view: RankView) -> bool:
    """It was watched, and neither its counters nor its stack and locals changed."""
    watched = len(view.mains) >= limit.POLL_ROUNDS and view.motion.switches is not None
    return watched and not view.stopped and not view.calls and view.same_stack
