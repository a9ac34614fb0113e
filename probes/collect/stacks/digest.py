"""From one process's py-spy threads to stack digests: pure, leaf first, nothing but integers as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from mltop.probes.collect.ranks.values import shown_text
from mltop.probes.model import Frame, StackDigest

from . import threads as kinds
from .frames import cut_at_child_root, is_user_code, normalise, python_frames, without_depth
from .process import TaskFacts
from .waiting import waiting_in


@dataclass
class Origin:
    """Whose threads these are. ``inner_pid``: the pid in its own namespace; ``uses_gpu``: reads may wait for
    it; ``tasks``: kernel thread id → its facts, read when there is more than the main thread.
    """

    pid: int
    rank: int | None = None
    job: str = ""
    node: str = ""
    state: str = ""
    wchan: str | None = None
    inner_pid: int = 0
    child_of: int | None = None
    uses_gpu: bool = False
    taken_at: float | None = None
    tasks: dict[int, TaskFacts] = field(default_factory=dict)


MAIN = "MainThread"

# (file as py-spy names it, line) → the source text, or None.
ReadLine = Callable[[str, int], Optional[str]]


def digest_threads(threads: list[dict[str, Any]], origin: Origin, ints: bool, read_line: ReadLine) -> list[StackDigest]:
    """Digests of one process, the main thread first; background threads are left out."""
    main = kinds.main_thread(threads, origin.inner_pid or origin.pid)
    others = [thread for thread in threads if thread is not main]
    named = [(thread, thread_label(thread, origin)) for thread in others]
    kept = [(thread, name) for thread, name in named if not kinds.is_background(thread, name)]
    if main is not None and main["frames"]:
        kept.insert(0, (main, MAIN))
    return [_digest(thread, name, origin, ints, read_line) for thread, name in kept]


def thread_label(thread: dict[str, Any], origin: Origin) -> str:
    """Python's name, else the kernel's, else the id."""
    return str(thread.get("thread_name") or _task(thread, origin).name or f"thread {thread.get('os_thread_id')}")


def _task(thread: dict[str, Any], origin: Origin) -> TaskFacts:
    return origin.tasks.get(thread.get("os_thread_id") or 0, TaskFacts())


def _digest(thread: dict[str, Any], name: str, origin: Origin, ints: bool, read_line: ReadLine) -> StackDigest:
    raw = cut_at_child_root(thread["frames"]) if origin.child_of is not None else thread["frames"]
    frames = normalise(raw, ints)
    waiting = waiting_in(frames, lambda: _leaf_text(raw, read_line), origin.uses_gpu)
    kind = "thread" if name != MAIN else "main" if origin.child_of is None else "child"
    # The process's state is its main thread's; another thread has its own.
    task = TaskFacts(state=origin.state, wchan=origin.wchan) if name == MAIN else _task(thread, origin)
    return StackDigest(
        rank=origin.rank,
        pid=origin.pid,
        thread=shown_text(name),
        state=task.state,
        frames=without_depth(frames),
        waiting_in=waiting,
        key=stack_key(kind, frames),
        node=origin.node,
        job=origin.job,
        child_of=origin.child_of,
        wchan=task.wchan,
        taken_at=origin.taken_at,
    )


def stack_key(kind: str, frames: list[Frame]) -> str:
    """12 hex digits, equal for equal kind of thread and Python frames.

    Integer locals do not count, nor do native frames: they differ between equal processes, and where py-spy must not
    stop a process there are none. Nor does the wait, which may be told from them alone.
    """
    parts = [kind]
    parts += [f"{frame.function}\x1f{frame.file}\x1f{frame.line}" for frame in frames if not frame.native]
    import hashlib  # loads OpenSSL

    return hashlib.blake2b("\x1e".join(parts).encode(errors="replace"), digest_size=6).hexdigest()


def _leaf_text(raw: list[dict[str, Any]], read_line: ReadLine) -> str | None:
    leaf = next(iter(python_frames(raw)), None)
    if leaf is None or not is_user_code(leaf["filename"]):
        return None
    return read_line(leaf["filename"], leaf["line"])
