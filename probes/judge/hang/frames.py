"""Which frame of a stack says something to the person who wrote the training script."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

from mltop.probes.model import Frame, StackDigest

# Files come shortened: below site-packages or the standard library, a user's own as "directory/file.py".
_INTERNAL_PACKAGES = (
    "torch/", "multiprocessing/", "concurrent/", "asyncio/", "importlib/", "http/", "urllib/", "ctypes/",
    "logging/", "json/", "encodings/", "<frozen ", "multiprocess/", "billiard/", "joblib/externals/", "loky/",
)  # fmt: skip
# What libraries wait in and read through: the library that called it says more.
_PLUMBING = (
    "threading.py", "queue.py", "selectors.py", "socket.py", "ssl.py", "contextlib.py", "subprocess.py", "importlib/",
    "multiprocessing/", "multiprocess/", "billiard/", "joblib/externals/", "loky/", "concurrent/", "asyncio/",
    "http/", "urllib/", "<",
)  # fmt: skip
# multiprocessing by other names (of pathos and datasets, celery, joblib): what is said of it holds for them.
_FORKS = ("multiprocess/", "billiard/", "joblib/externals/loky/", "loky/")
_FUTURE_WAITS = frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})
# (start of the file's path, functions or None for any): the process waits for a child of its own.
_CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    ("multiprocessing/", None),
    *((fork, None) for fork in _FORKS),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    ("concurrent/futures/", _FUTURE_WAITS),
)
# A forked worker may keep its parent's frames below these.
_CHILD_ROOTS = frozenset({"_worker_loop", "_process_worker", "_bootstrap", "workloop"})
_THREAD_POOL = "concurrent/futures/thread.py"
_THREAD_WAITS = {
    "concurrent/futures/_base.py": _FUTURE_WAITS,
    "threading.py": frozenset({"join", "_wait_for_tstate_lock"}),
}
# Above the user's line these join threads of their own, which serve processes.
_SERVED_BY_THREADS = (
    *("torch/utils/data/", "multiprocessing/", "subprocess.py", "concurrent/futures/process.py"),
    *_FORKS,
)
# What one rank does alone while the others wait for it in a barrier.
_SAVING = re.compile(r"save[sdr]?|saving|checkpoint\w*|ckpt|eval\w*|val|valid\w*|upload\w*|fsync")
_SAVING_FILES = ("torch/serialization.py", "torch/distributed/checkpoint/")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BACKWARD = "_engine_run_backward"  # of torch/autograd/graph.py


def place(frame: Frame) -> str:
    """``function (file:line)``; of a native frame the line may not be known."""
    return f"{frame.function} ({frame.file}:{frame.line})" if frame.line else f"{frame.function} ({frame.file})"


def python_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Without the native ones in front: every step judges what it would see without ``--native``."""
    if not frames or not frames[0].native:
        return frames
    return [frame for frame in frames if not frame.native]


def last_name(frame: Frame) -> str:
    """``DS.__getitem__`` → ``__getitem__``."""
    return frame.function.rpartition(".")[2]


def key_of(digest: StackDigest) -> str:
    """What equal stacks have in common; the digest's own key when the node made one."""
    frames = () if digest.key else python_frames(digest.frames)
    return digest.key or "\n".join(f"{frame.function}\t{frame.file}:{frame.line}" for frame in frames)


def is_internal(frame: Frame) -> bool:
    """True for torch, the standard library and native frames: places nobody edits. Told by the file's short name, which
    other libraries share with the user's own files, and by the node's mark.
    """
    return not frame.user and _is_internal_file(frame.file)


@lru_cache(maxsize=4096)  # asked per frame and rank, while jobs share a few hundred files
def _is_internal_file(file: str) -> bool:
    if file.startswith(_INTERNAL_PACKAGES):
        return True
    if not file.endswith(".py") and not file.startswith("<"):
        return True
    return "/" not in file and file[:-3] in sys.stdlib_module_names


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The leaf-most frame of the user's code, None when there is none.

    Where the node has marked none, it is the leaf-most one that is not torch's nor the standard library's: a training
    program that is installed like a library, and captures from before there were marks.
    """
    others = None
    for frame in frames:
        if frame.user:
            return frame
        if others is None and not is_internal(frame):
            others = frame
    return others


class UserFrames:
    """Where those frames are among a stack's Python frames whose locals count: the user's and those of libraries that
    run the training loop (all, if there are none). Remembers equal stacks.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, list[int]] = {}

    def indexes(self, digest: StackDigest) -> list[int]:
        key = key_of(digest)
        if key not in self._by_key:
            frames = python_frames(digest.frames)
            user = [at for at, frame in enumerate(frames) if not is_internal(frame)]
            self._by_key[key] = user or list(range(len(frames)))
        return self._by_key[key]


def where(digest: StackDigest) -> str:
    """The user's line that the stack stands in and, in brackets, what it called: the collective that it waits in, or
    the library's function: ``train (train.py:60) [all_reduce]``, ``load (data.py:53) [open, gzip.py:57]``.

    Without a user's line its leaf, else the kernel function.
    """
    return line_of(digest.frames, digest.waiting_in) or digest.wchan or "unknown"


def called_from(digest: StackDigest) -> str:
    """As ``where``, behind a text that has the collective's name."""
    frame = user_frame(digest.frames)
    return place(frame) if frame else where(digest)


def line_of(frames: Sequence[Frame], waiting_in: str | None = None) -> str:
    """What ``where`` says of these frames; "" of none."""
    user = user_frame(frames)
    if user is None:
        first = next(iter(python_frames(frames) or frames), None)
        return place(first) if first else ""
    called = waiting_in or called_by(frames, user)
    return f"{place(user)} [{called}]" if called else place(user)


def called_by(frames: Sequence[Frame], user: Frame) -> str:
    """The library that the user's line got to, by the function through which it was entered: ``open, gzip.py:57``."""
    entered = _entered(frames, user)
    return f"{last_name(entered)}, {entered.file}:{entered.line}" if entered else ""


def _entered(frames: Sequence[Frame], user: Frame) -> Frame | None:
    above = [frame for frame in takewhile(lambda frame: frame is not user, frames) if not frame.native]
    telling = next((at for at, frame in enumerate(above) if not frame.file.startswith(_PLUMBING)), 0)
    entered = None
    for frame in above[telling:]:
        if entered is not None and _library(frame) != _library(entered):
            break
        entered = frame
    return entered


def _library(frame: Frame) -> str:
    return frame.file.partition("/")[0]


def leaf_of(digest: StackDigest) -> Frame | None:
    """The innermost Python frame, None when there is none."""
    return next(iter(python_frames(digest.frames)), None)


def leaf_note(digest: StackDigest) -> str:
    """``, in wait (threading.py:327)`` when the leaf is neither the user's line nor what ``where`` says, else ""."""
    leaf, user = leaf_of(digest), user_frame(digest.frames)
    if leaf is None or user is None or leaf is user or leaf is _entered(digest.frames, user):
        return ""
    return f", in {place(leaf)}"


def down_to_user(digest: StackDigest) -> Iterator[Frame]:
    """The frames from the leaf to the user's line, with it; all, when there is none."""
    user = user_frame(digest.frames)
    for frame in digest.frames:
        yield frame
        if frame is user:
            return


def waits_for_child(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a worker process."""
    return any(
        frame.file.startswith(start) and (functions is None or last_name(frame) in functions)
        for frame in down_to_user(digest)
        for start, functions in _CHILD_WAITS
    )


def waits_for_thread(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a future or join a thread."""
    frames = list(down_to_user(digest))
    waits = any(last_name(frame) in _THREAD_WAITS.get(frame.file, ()) for frame in frames)
    return waits and not any(frame.file.startswith(_SERVED_BY_THREADS) for frame in frames)


def waits_at_queue(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for another thread at a queue."""
    return any(
        frame.file == "queue.py" and last_name(frame) in ("get", "put", "join") for frame in down_to_user(digest)
    )


def waits_for_program(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a process that may be any program."""
    return any(frame.file == "subprocess.py" for frame in down_to_user(digest))


def in_thread_pool(digest: StackDigest) -> bool:
    return any(frame.file == _THREAD_POOL for frame in digest.frames)


def saves_or_evaluates(digest: StackDigest) -> bool:
    """True when a function of the user's or of a library but torch is named after it, or torch writes a checkpoint."""
    return any(_saves(frame.function, frame.file) for frame in digest.frames)


@lru_cache(maxsize=4096)  # as above
def _saves(function: str, file: str) -> bool:
    if _is_internal_file(file):
        return file.startswith(_SAVING_FILES)
    return any(_SAVING.fullmatch(word.lower()) for word in _WORDS.findall(function))


def is_idle_worker(digest: StackDigest) -> bool:
    """True for a worker process that only waits for work: no user code above its entry function."""
    frames = list(down_to_user(digest))
    return any(last_name(frame) in _CHILD_ROOTS for frame in frames) or all(map(is_internal, frames))


def in_backward(digest: StackDigest) -> bool:
    """True when the leaf is autograd's engine: computing, or waiting for gradients of other ranks."""
    leaf = leaf_of(digest)
    return leaf is not None and leaf.function == _BACKWARD and leaf.file.startswith("torch/")
