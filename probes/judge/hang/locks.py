"""Who holds the lock that a rank's main thread waits for: another thread of the rank that stands inside of it.

A lock has no name. The source lines give one ("self.lock": what the leaf's line asks for, what blocks stand around the
frames of others); where they could not be read, logging's handlers and the script's own file tell who may hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.judge.hang.frames import key_of, last_name, leaf_of, python_frames, user_frame
from mltop.probes.judge.hang.polls import lock_wait
from mltop.probes.judge.hang.view import RankView
from mltop.probes.model import StackDigest

_LOGGING = "logging/__init__.py"
_HANDLE = (_LOGGING, "handle")
_LOGGING_WAITS = ("acquire", "handle", "_acquireLock")  # where logging asks for a handler's lock, by Python's version
_FUTEX = "futex"  # how the kernel's functions are called that a wait for a lock sleeps in
_EVENT_WAIT = ("threading.py", "wait")  # a thread that waits for an event or for work holds nothing, as a rule


@dataclass(frozen=True)
class Holder:
    """``rounds``: the thread's digests, oldest first. ``sure``: by the lock's name, or by logging's own lock."""

    rounds: list[StackDigest]
    sure: bool


def lock_holder(view: RankView) -> Holder | None:
    """The thread that holds what ``view``'s main thread waits for; None when it waits for no lock, or nobody has it."""
    main = view.now
    leaf, own = leaf_of(main), user_frame(main.frames)
    logs = leaf is not None and leaf.file == _LOGGING and last_name(leaf) in _LOGGING_WAITS
    # In user code and on a futex: ``with lock:`` has no frame of its own.
    if not (main.acquires or logs or (leaf is own and leaf is not None and (main.wchan or "").startswith(_FUTEX))):
        return None
    threads = [rounds for rounds in view.threads() if rounds[-1].frames and not _asks_alike(rounds[-1], main)]
    told = lock_wait(main, (rounds[-1] for rounds in threads))
    if told is not None and told.holders:
        return Holder(next(rounds for rounds in threads if rounds[-1] is told.holders[0]), True)
    if logs:
        # It is inside of a handler: its stack goes on above ``handle``.
        above = ((rounds, list(python_frames(rounds[-1].frames))[1:]) for rounds in threads)
        writes = (rounds for rounds, frames in above if any((f.file, last_name(f)) == _HANDLE for f in frames))
        writing = next(writes, None)
        return None if writing is None else Holder(writing, True)
    near = [
        rounds
        for rounds in threads
        if own is not None and any(frame.file == own.file for frame in python_frames(rounds[-1].frames))
        if (its := leaf_of(rounds[-1])) is None or (its.file, last_name(its)) != _EVENT_WAIT
    ]
    return Holder(near[0], False) if len(near) == 1 else None


def _asks_alike(thread: StackDigest, main: StackDigest) -> bool:
    """It waits at the same line, or for the same lock."""
    mine, its = leaf_of(main), leaf_of(thread)
    same_line = mine is not None and its is not None and (mine.file, mine.line) == (its.file, its.line)
    return key_of(thread) == key_of(main) or same_line or (bool(main.acquires) and thread.acquires == main.acquires)
