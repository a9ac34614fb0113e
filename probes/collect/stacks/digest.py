"""From one process's py-spy threads to stack digests: pure, leaf first, nothing but integers as values.

Of the threads those are kept that tell something: the main one, and what is not housekeeping.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Callable, Optional

from mltop.probes.collect.redaction.values import shown_text, without_tokens
from mltop.probes.collect.stacks.frames import (
    FORKS,
    LOKY,
    cut_at_child_root,
    is_users,
    last_name,
    normalise,
    python_frames,
    short_file,
    without_depth,
)
from mltop.probes.collect.stacks.process import TaskFacts
from mltop.probes.collect.stacks.waiting import code_of, transfer, waiting_in
from mltop.probes.model import Frame, StackDigest

# Which lock a thread asks for and which it holds, by the source of its user's lines: ``with self.lock:``. Python tells
# of a lock neither its name nor its owner: where one thread stands in front of a block and another inside of one of
# the same name, the reader knows both.

ReadLine = Callable[[str, int], Optional[str]]  # (file as py-spy names it, line) → its text

_NAME = r"([A-Za-z_][\w.]*)(?:\[[^\]]*\])?"
_WITH = re.compile(rf"\s*(?:async )?with {_NAME}\s*(?:as \w+\s*)?[:,]")
_ACQUIRE = re.compile(rf"{_NAME}\.acquire\(")
_RELEASE = re.compile(rf"{_NAME}\.release\(")
_OF_FILES = re.compile(r"\b(flock|lockf)\(")
_DEFINES = re.compile(r"\s*(?:async )?def |\s*class ")
_MOST_LINES = 400  # of a function, above the line that a frame stands in
_MOST_FRAMES = 12  # of the user's
# What stands between the user's line and the wait, where a lock is made of others.
_LOCKS_OWN = ("threading.py", "multiprocessing/synchronize.py", "multiprocess/synchronize.py")


def asked_lock(raw: list[dict[str, Any]], read_line: ReadLine) -> str:
    """The lock that the leaf's line of these frames (leaf first, as py-spy has them) asks for: "self.lock", or "".
    Of a lock on a file it is the call: "flock", "lockf".
    """
    for frame in python_frames(raw):
        if is_users(frame):
            code = code_of(read_line(frame["filename"], frame["line"]) or "")
            found = _WITH.match(code) or _ACQUIRE.search(code) or _OF_FILES.search(code)
            return without_tokens(found.group(1)) if found else ""
        if short_file(frame) not in _LOCKS_OWN:
            return ""
    return ""


def held_locks(raw: list[dict[str, Any]], read_line: ReadLine) -> list[str]:
    """The locks in whose blocks the user's frames stand, the innermost first. What is asked for is not held yet."""
    held: list[str] = []
    asked = asked_lock(raw, read_line)
    users = [frame for frame in python_frames(raw) if is_users(frame)]
    for frame in users[:_MOST_FRAMES]:
        held += _held_at(frame["filename"], frame["line"], read_line)
    return [without_tokens(name) for name in dict.fromkeys(held) if name != asked]


def _held_at(file: str, line: int, read_line: ReadLine) -> list[str]:
    """By the blocks that the line is indented into, and by what was acquired above it in its function."""
    text = read_line(file, line)
    if text is None:
        return []
    held: list[str] = []
    released: set[str] = set()
    depth = _indent(text)
    for number in range(line - 1, max(0, line - _MOST_LINES), -1):
        text = read_line(file, number)
        if text is None or not text.strip() or text.lstrip().startswith("#"):
            continue
        code, here = code_of(text), _indent(text)
        if here < depth:
            depth = here
            block = _WITH.match(code)
            held += [block.group(1)] if block else []
            if _DEFINES.match(code):
                break
        released.update(found.group(1) for found in _RELEASE.finditer(code))
        acquired = _ACQUIRE.search(code) if here <= depth else None
        if acquired and acquired.group(1) not in released:
            held.append(acquired.group(1))
    return held


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


# Names of housekeeping threads: Python's (threading.Thread.name) and native ones (/proc/PID/task/TID/comm).
# Not pt_autograd_*: FSDP's and DDP's Python hooks run there; without Python frames they are dropped anyway.
BACKGROUND_NAMES = (
    "QueueFeederThread*",
    "pin*memory*",
    "pt_nccl_*",
    "pt_tcpstore_uv",
    "pt_gloo_runloop",
    "gloo_tcp_loop",
    "wandb*",
    "SockSrvRdThr",
    "NetStatThr",
    "IntMsgThr",
    "ChkStopThr",
)

# (start of the file's path, last part of the function's name or "*") of any frame of a housekeeping thread.
BACKGROUND_FRAMES = (
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    *((f"{name}/queues.py", "_feed") for name in FORKS),
    *((f"{name}/pool.py", "_handle_*") for name in FORKS),
    *((f"{name}/resource_sharer.py", "_serve") for name in FORKS),
    ("billiard/pool.py", "body"),
    ("concurrent/futures/process.py", "wait_result_broken_or_wakeup"),
    *((f"{name}/process_executor.py", "wait_result_broken_or_wakeup") for name in LOKY),
    ("tqdm/_monitor.py", "run"),
    ("tensorboard/summary/writer/event_file_writer.py", "*"),
    ("tensorboard/compat/*", "*"),
    ("wandb/*", "*"),
    ("torch/_inductor/compile_worker/*", "*"),
    ("prometheus_client/*", "*"),
)

# Functions that are the bottom of an idle pool thread: everything above them is only the wait for work.
_POOL_LOOPS = (("concurrent/futures/thread.py", "_worker"), *((f"{name}/pool.py", "worker") for name in FORKS))
_WAIT_FILES = (
    *("queue.py", "threading.py"),
    *(f"{name}/{file}.py" for name in FORKS for file in ("queues", "connection")),
)
# The same in processes.
_WORKER_LOOPS = (
    ("torch/utils/data/_utils/worker.py", "_worker_loop"),
    ("concurrent/futures/process.py", "_process_worker"),
    *((f"{name}/process_executor.py", "_process_worker") for name in LOKY),
    ("billiard/pool.py", "workloop"),
    *_POOL_LOOPS,
)
# Waiting for the next index, and looking whether the parent is still there.
_WORKER_WAIT_FILES = (*_WAIT_FILES, *(f"{name}/synchronize.py" for name in FORKS), "selectors.py")


def places(thread: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns (short file, last part of the function's name) of each Python frame, leaf first."""
    return [(short_file(frame), last_name(frame["name"])) for frame in python_frames(thread["frames"])]


def is_background(thread: dict[str, Any], name: str) -> bool:
    """True for a thread that keeps house or waits for work, and for one without a Python frame."""
    frame_places = places(thread)
    if not frame_places or any(fnmatchcase(name, pattern) for pattern in BACKGROUND_NAMES):
        return True
    if _waits_for_work(frame_places, _POOL_LOOPS, _WAIT_FILES):
        return True
    return any(
        fnmatchcase(file, pattern) and fnmatchcase(function, function_pattern)
        for file, function in frame_places
        for pattern, function_pattern in BACKGROUND_FRAMES
    )


def is_idle_worker(thread: dict[str, Any]) -> bool:
    """True for the main thread of a dataloader's or a pool's worker that waits for the next index or task."""
    return _waits_for_work(places(thread), _WORKER_LOOPS, _WORKER_WAIT_FILES)


def _waits_for_work(
    frame_places: list[tuple[str, str]], loops: tuple[tuple[str, str], ...], wait_files: tuple[str, ...]
) -> bool:
    for place in frame_places:
        if place in loops:
            return True
        if place[0] not in wait_files:
            return False
    return False


def main_thread(threads: list[dict[str, Any]], inner_pid: int) -> dict[str, Any] | None:
    """The thread whose id is the pid (the innermost namespace's); names are null without ``threading``."""
    return next((thread for thread in threads if thread.get("os_thread_id") == inner_pid), None)


@dataclass
class Origin:
    """Whose threads these are. ``digest``: what all digests of this process have in common, its main thread's state
    among it; ``inner_pid``: the pid in its own namespace; ``uses_gpu``: reads may wait for it; ``tasks``: kernel thread
    id → its facts, read when there is more than the main thread.
    """

    digest: StackDigest
    inner_pid: int
    uses_gpu: bool = False
    tasks: dict[int, TaskFacts] = field(default_factory=dict)


MAIN = "MainThread"


def digest_threads(threads: list[dict[str, Any]], origin: Origin, ints: bool, read_line: ReadLine) -> list[StackDigest]:
    """Digests of one process, the main thread first; background threads are left out."""
    main = main_thread(threads, origin.inner_pid)
    digests, of_threads = [], []
    if main is not None and main["frames"]:
        digests.append(_digest(main, MAIN, origin.digest, origin, ints=ints, read_line=read_line))
        of_threads.append(main)
    for thread in threads:
        task = origin.tasks.get(thread.get("os_thread_id") or 0, TaskFacts())
        # Python's name, else the kernel's, else the id.
        name = str(thread.get("thread_name") or task.name or f"thread {thread.get('os_thread_id')}")
        if thread is not main and not is_background(thread, name):
            digests.append(_digest(thread, name, task, origin, ints=ints, read_line=read_line))
            of_threads.append(thread)
    if any(digest.acquires for digest in digests):
        for digest, thread in zip(digests, of_threads):
            digest.holds = held_locks(thread["frames"], read_line)
    return digests


def _digest(
    thread: dict[str, Any], name: str, task: StackDigest | TaskFacts, origin: Origin, *, ints: bool, read_line: ReadLine
) -> StackDigest:
    is_child = origin.digest.child_of is not None
    raw = cut_at_child_root(thread["frames"]) if is_child else thread["frames"]
    frames = normalise(raw, ints)
    wait = waiting_in(frames, lambda: _leaf_text(raw, read_line), origin.uses_gpu)
    if wait == "work.wait":
        wait = transfer(lambda above: _leaf_text(raw, read_line, above)) or wait
    counts = {}
    if isinstance(task, TaskFacts):
        counts = {"switches": task.switches, "cpu_s": task.cpu_s, "syscalls": task.syscalls}
    return replace(
        origin.digest,
        thread=shown_text(name),
        state=task.state,
        wchan=task.wchan,
        frames=without_depth(frames),
        waiting_in=wait,
        acquires="" if wait else asked_lock(raw, read_line),
        key=stack_key("thread" if name != MAIN else "child" if is_child else "main", frames),
        **counts,  # type: ignore[arg-type]
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


def _leaf_text(raw: list[dict[str, Any]], read_line: ReadLine, above: int = 0) -> str | None:
    leaf = next(iter(python_frames(raw)), None)
    if leaf is None or not is_users(leaf):
        return None
    return read_line(leaf["filename"], leaf["line"] - above)
