"""Which threads of a process tell something: the main one, and those that are not housekeeping."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from .frames import last_name, python_frames, shorten

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
    ("multiprocessing/queues.py", "_feed"),
    ("multiprocessing/pool.py", "_handle_*"),
    ("multiprocessing/resource_sharer.py", "_serve"),
    ("concurrent/futures/process.py", "wait_result_broken_or_wakeup"),
    ("tqdm/_monitor.py", "run"),
    ("tensorboard/summary/writer/event_file_writer.py", "*"),
    ("tensorboard/compat/*", "*"),
    ("wandb/*", "*"),
    ("torch/_inductor/compile_worker/*", "*"),
    ("prometheus_client/*", "*"),
)

# Functions that are the bottom of an idle pool thread: everything above them is only the wait for work.
_POOL_LOOPS = (("concurrent/futures/thread.py", "_worker"), ("multiprocessing/pool.py", "worker"))
_WAIT_FILES = ("queue.py", "threading.py", "multiprocessing/queues.py", "multiprocessing/connection.py")
_WORKER_LOOP = ("torch/utils/data/_utils/worker.py", "_worker_loop")
# Waiting for the next index, and looking whether the parent is still there.
_WORKER_WAIT_FILES = (*_WAIT_FILES, "multiprocessing/synchronize.py", "selectors.py")


def places(thread: dict[str, Any]) -> list[tuple[str, str]]:
    """(short file, last part of the function's name) of each Python frame, leaf first."""
    return [(shorten(frame["filename"]), last_name(frame["name"])) for frame in python_frames(thread["frames"])]


def is_background(thread: dict[str, Any], name: str) -> bool:
    """True for a thread that keeps house or waits for work, and for one without a Python frame."""
    seen = places(thread)
    if not seen or any(fnmatchcase(name, pattern) for pattern in BACKGROUND_NAMES):
        return True
    if _waits_for_work(seen, _POOL_LOOPS, _WAIT_FILES):
        return True
    return any(
        fnmatchcase(file, pattern) and fnmatchcase(function, wanted)
        for file, function in seen
        for pattern, wanted in BACKGROUND_FRAMES
    )


def is_idle_worker(thread: dict[str, Any]) -> bool:
    """True for a dataloader worker's main thread that waits for the next index."""
    return _waits_for_work(places(thread), (_WORKER_LOOP,), _WORKER_WAIT_FILES)


def _waits_for_work(
    seen: list[tuple[str, str]], loops: tuple[tuple[str, str], ...], wait_files: tuple[str, ...]
) -> bool:
    for place in seen:
        if place in loops:
            return True
        if place[0] not in wait_files:
            return False
    return False


def main_thread(threads: list[dict[str, Any]], inner_pid: int) -> dict[str, Any] | None:
    """The thread whose id is the pid (the innermost namespace's); names are null without ``threading``."""
    for thread in threads:
        if thread.get("os_thread_id") == inner_pid:
            return thread
    return None
