"""Which frame of a stack says something to the person who wrote the training script."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache

from mltop.probes.model import Frame, StackDigest

# Files come shortened: below site-packages or the standard library, a user's own as "directory/file.py".
_INTERNAL_PACKAGES = (
    "torch/", "multiprocessing/", "concurrent/", "asyncio/", "importlib/", "http/", "urllib/", "ctypes/",
    "logging/", "json/", "encodings/", "<frozen ",
)  # fmt: skip
# (start of the file's path, functions or None for any): the process waits for a child of its own.
_CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    ("multiprocessing/", None),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    ("concurrent/futures/", frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})),
)
# A forked worker may keep its parent's frames below these.
_CHILD_ROOTS = frozenset({"_worker_loop", "_process_worker", "_bootstrap"})
_FUTURES = "concurrent/futures/_base.py"
_THREAD_POOL = "concurrent/futures/thread.py"
_FUTURE_WAITS = frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})
_THREAD_JOINS = frozenset({"join", "_wait_for_tstate_lock"})
# Above the user's line these join threads of their own, which serve processes.
_SERVED_BY_THREADS = ("torch/utils/data/", "multiprocessing/", "subprocess.py", "concurrent/futures/process.py")
# What one rank does alone while the others wait for it in a barrier.
_SAVING = re.compile(r"save[sdr]?|saving|checkpoint\w*|ckpt|eval\w*|val|valid\w*|upload\w*|fsync")
_SAVING_FILES = ("torch/serialization.py", "torch/distributed/checkpoint/")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")


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
    return digest.key or "\n".join(
        f"{frame.function}\t{frame.file}:{frame.line}" for frame in python_frames(digest.frames)
    )


def is_internal(frame: Frame) -> bool:
    """True for torch, the standard library and native frames: places nobody edits."""
    return _is_internal_file(frame.file)


@lru_cache(maxsize=4096)  # asked per frame and rank, while jobs share a few hundred files
def _is_internal_file(file: str) -> bool:
    if file.startswith(_INTERNAL_PACKAGES):
        return True
    if not file.endswith(".py") and not file.startswith("<"):
        return True
    return "/" not in file and file[:-3] in sys.stdlib_module_names


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The leaf-most frame of user code, None when there is none."""
    return next((frame for frame in frames if not is_internal(frame)), None)


class UserFrames:
    """Where the user's frames are among a stack's Python frames (all of these, if none is). Remembers equal stacks."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def indexes(self, digest: StackDigest) -> list[int]:
        key = digest.key or key_of(digest)
        user_indexes = self._known.get(key)
        if user_indexes is None:
            frames = python_frames(digest.frames)
            user = [at for at, frame in enumerate(frames) if not is_internal(frame)]
            user_indexes = self._known[key] = user or list(range(len(frames)))
        return user_indexes


def where(digest: StackDigest) -> str:
    """The user's line that the stack stands in, else its leaf, else the kernel function."""
    frame = user_frame(digest.frames) or leaf_of(digest) or (digest.frames[0] if digest.frames else None)
    return place(frame) if frame else digest.wchan or "unknown"


def leaf_of(digest: StackDigest) -> Frame | None:
    """The innermost Python frame, None when there is none."""
    return next(iter(python_frames(digest.frames)), None)


def leaf_note(digest: StackDigest) -> str:
    """`` in wait (threading.py:327)`` when the leaf is not the user's own line, else ""."""
    leaf = leaf_of(digest)
    return f", in {place(leaf)}" if leaf and is_internal(leaf) and user_frame(digest.frames) else ""


def waits_for_child(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a worker process."""
    for frame in digest.frames:
        function = last_name(frame)
        for start, functions in _CHILD_WAITS:
            if frame.file.startswith(start) and (functions is None or function in functions):
                return True
        if not is_internal(frame):
            return False
    return False


def waits_for_thread(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a future or join a thread."""
    waits = False
    for frame in digest.frames:
        if frame.file.startswith(_SERVED_BY_THREADS):
            return False
        function = last_name(frame)
        waits = waits or (frame.file == _FUTURES and function in _FUTURE_WAITS)
        waits = waits or (frame.file == "threading.py" and function in _THREAD_JOINS)
        if not is_internal(frame):
            break
    return waits


def waits_for_program(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a process that may be any program."""
    for frame in digest.frames:
        if frame.file == "subprocess.py":
            return True
        if not is_internal(frame):
            return False
    return False


def in_thread_pool(digest: StackDigest) -> bool:
    return any(frame.file == _THREAD_POOL for frame in digest.frames)


def saves_or_evaluates(digest: StackDigest) -> bool:
    """True when a user's function is named after it, or torch writes a checkpoint."""
    return any(_saves(frame.function, frame.file) for frame in digest.frames)


@lru_cache(maxsize=4096)  # as above
def _saves(function: str, file: str) -> bool:
    if _is_internal_file(file):
        return file.startswith(_SAVING_FILES)
    return any(_SAVING.fullmatch(word.lower()) for word in _WORDS.findall(function))


def is_idle_worker(digest: StackDigest) -> bool:
    """True for a worker process that only waits for work: no user code above its entry function."""
    for frame in digest.frames:
        if last_name(frame) in _CHILD_ROOTS:
            return True
        if not is_internal(frame):
            return False
    return True


def in_backward(digest: StackDigest) -> bool:
    """True when the leaf is autograd's engine: computing, or waiting for gradients of other ranks."""
    leaf = leaf_of(digest)
    return leaf is not None and leaf.function == _BACKWARD[1] and leaf.file.startswith("torch/")
