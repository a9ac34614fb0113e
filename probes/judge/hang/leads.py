"""Ranks whose training runs in a thread of theirs (Ray Train, servers): that thread is judged, not the main one.

The main thread then waits in an event loop or polls for the thread's end, so its stack and its switches say nothing of
the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.frames import UserFrames, in_backward, key_of, python_frames
from mltop.probes.judge.hang.view import MAIN, RankView
from mltop.probes.judge.values import grouped
from mltop.probes.model import StackDigest

# What starts a thread: the frames below the function that it was started with.
_STARTERS = ("threading.py", "concurrent/futures/thread.py")

Entry = tuple[str, str]  # a thread's first function of its own, and its file


def follow_training_threads(views: Sequence[RankView]) -> None:
    """Turn to the thread that trains, where at least two thirds of the ranks have one that was started with the same
    function and stands in a collective in one of them, and where no main thread does more than wait.
    """
    running = [view for view in views if view.readable and not view.stopped]
    if not running or any(_trains(main) for view in running for main in view.mains):
        return
    threads = {id(view): _threads_by_entry(view) for view in running}
    training = {
        entry
        for view in running
        for entry, name in threads[id(view)].items()
        if any(_trains(digest) for digest in view.digests_of(name))
    }
    counts = Counter(entry for view in running for entry in threads[id(view)] if entry in training)
    (entry, count), *others = counts.most_common(2) or [(("", ""), 0)]
    alone = not others or others[0][1] < count
    if not alone or count < limit.ALIKE_SHARE * len(running):
        return
    led = [view for view in running if entry in threads[id(view)]]
    if all(_only_waits(view) for view in led):
        users = UserFrames()
        for view in led:
            view.follow(threads[id(view)][entry], users)


def _trains(digest: StackDigest) -> bool:
    return digest.waiting_in is not None or in_backward(digest)


def _threads_by_entry(view: RankView) -> dict[Entry, str]:
    """The names of its newest other threads; not of those that are there twice."""
    newest = view.rounds[-1].digests
    others = [digest for digest in newest if digest.child_of is None and digest.thread != MAIN and digest.frames]
    by_entry = grouped(others, _entry)
    names = Counter(digest.thread for digest in others)
    return {
        entry: alike[0].thread
        for entry, alike in by_entry.items()
        if entry is not None and len(alike) == 1 and names[alike[0].thread] == 1
    }


def _entry(digest: StackDigest) -> Entry | None:
    outermost = (frame for frame in reversed(python_frames(digest.frames)) if not frame.file.startswith(_STARTERS))
    first = next(outermost, None)
    return None if first is None else (first.function, first.file)


def _only_waits(view: RankView) -> bool:
    """Its main thread is in one place in most dumps, and next to no time on a CPU."""
    places = Counter(map(key_of, view.mains))
    motion = view.motion
    idle = motion.main_cpu_s is None or motion.main_cpu_s < limit.POLL_CPU * motion.window_s
    return idle and max(places.values()) >= limit.POLL_PLACE_SHARE * len(view.mains)
