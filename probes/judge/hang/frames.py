"""Which frame of a stack says something to the person who wrote the training script."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mltop.probes.model import Frame, StackDigest

# Files come shortened: below site-packages or the standard library, a user's own as "directory/file.py".
_INTERNAL_PACKAGES = (
    "torch/", "multiprocessing/", "concurrent/", "asyncio/", "importlib/", "http/", "urllib/", "ctypes/",
    "logging/", "json/", "encodings/", "<frozen ",
)  # fmt: skip
_FUTURE_WAITS = frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})
# (start of the file's path, functions or None for any): the process waits for a child of its own.
_CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    ("multiprocessing/", None),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    ("concurrent/futures/", _FUTURE_WAITS),
)
# A forked worker may keep its parent's frames below these.
_CHILD_ROOTS = frozenset({"_worker_loop", "_process_worker", "_bootstrap"})
_THREAD_POOL = "concurrent/futures/thread.py"
_THREAD_WAITS = {
    "concurrent/futures/_base.py": _FUTURE_WAITS,
    "threading.py": frozenset({"join", "_wait_for_tstate_lock"}),
}
# Above the user's line these join threads of their own, which serve processes.
_SERVED_BY_THREADS = ("torch/utils/data/", "multiprocessing/", "subprocess.py", "concurrent/futures/process.py")
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
        self._by_key: dict[str, list[int]] = {}

    def indexes(self, digest: StackDigest) -> list[int]:
        key = key_of(digest)
        if key not in self._by_key:
            frames = python_frames(digest.frames)
            user = [at for at, frame in enumerate(frames) if not is_internal(frame)]
            self._by_key[key] = user or list(range(len(frames)))
        return self._by_key[key]


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


def _down_to_user(digest: StackDigest) -> Iterator[Frame]:
    """The frames from the leaf to the user's line, with it; all, when there is none."""
    for frame in digest.frames:
        yield frame
        if not is_internal(frame):
            return


def waits_for_child(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a worker process."""
    return any(
        frame.file.startswith(start) and (functions is None or last_name(frame) in functions)
        for frame in _down_to_user(digest)
        for start, functions in _CHILD_WAITS
    )


def waits_for_thread(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a future or join a thread."""
    frames = list(_down_to_user(digest))
    waits = any(last_name(frame) in _THREAD_WAITS.get(frame.file, ()) for frame in frames)
    return waits and not any(frame.file.startswith(_SERVED_BY_THREADS) for frame in frames)


def waits_for_program(digest: StackDigest) -> bool:
    """True when the frames above the user's line wait for a process that may be any program."""
    return any(frame.file == "subprocess.py" for frame in _down_to_user(digest))


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
    frames = list(_down_to_user(digest))
    return any(last_name(frame) in _CHILD_ROOTS for frame in frames) or all(map(is_internal, frames))


def in_backward(digest: StackDigest) -> bool:
    """True when the leaf is autograd's engine: computing, or waiting for gradients of other ranks."""
    leaf = leaf_of(digest)
    return leaf is not None and leaf.function == _BACKWARD and leaf.file.startswith("torch/")
