"""A rank's own children, two levels down: dataloader, multiprocessing and subprocess workers, other programs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from mltop.probes.collect.stacks.digest import places
from mltop.probes.collect.stacks.frames import is_user_code, python_frames
from mltop.probes.collect.stacks.process import name_of, read_facts, read_text
from mltop.probes.system import paths

_PYTHON = re.compile(r"(^|/)(python|pypy)[\d.]*t?$")
# multiprocessing's helpers: they never run user code, only their own children may.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch._inductor.compile_worker",
)

# (start of the file's path, functions or None for any): the parent waits for a child.
CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    ("multiprocessing/", None),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    (
        "concurrent/futures/_base.py",
        frozenset({"result", "exception", "wait", "as_completed", "result_iterator"}),
    ),
    ("concurrent/futures/process.py", None),
)


def waits_for_child(thread: dict[str, Any]) -> bool:
    """True when the library code above the user's leaf line waits for a child process."""
    for frame, (file, function) in zip(python_frames(thread["frames"]), places(thread)):
        if is_user_code(frame["filename"]):
            return False
        if any(file.startswith(start) and (names is None or function in names) for start, names in CHILD_WAITS):
            return True
    return False


@dataclass
class Children:
    """Pids, a rank's own before those of its children. ``others`` are programs that are not Python and have no
    child of their own: a shell waits for what it started.
    """

    python: list[int]
    others: list[int]


def children_of(pid: int, known: list[int]) -> Children:
    """Children and grandchildren of a rank, without multiprocessing's helper processes, oldest first.

    ``known``: children seen earlier; those that have another parent now (a reused pid) are left out.
    """
    below = {child: _alive_below(child, []) for child in _alive_below(pid, known)}
    nested = [grandchild for grandchildren in below.values() for grandchild in grandchildren]
    found = Children([], [])
    for child in [*below, *nested]:
        if _is_helper(child):
            continue
        if _is_python(child, pid):
            found.python.append(child)
        elif name_of(child) and not below.get(child) and not _kernel_children(child):
            found.others.append(child)
    return found


def _alive_below(pid: int, known: list[int]) -> list[int]:
    found = set(_kernel_children(pid))
    found.update(child for child in known if read_facts(child).parent_pid == pid)
    return sorted(found)


def _kernel_children(pid: int) -> list[int]:
    """From task/TID/children of every thread: a child belongs to the thread that forked it."""
    try:
        tids = os.listdir(paths.proc(pid, "task"))
    except OSError:
        return []
    texts = (read_text(paths.proc(pid, "task", tid, "children")) or "" for tid in tids)
    return [int(child) for text in texts for child in text.split()]


def _executable(pid: int) -> str | None:
    try:
        return os.readlink(paths.proc(pid, "exe"))
    except OSError:
        return None


def _is_python(pid: int, rank_pid: int) -> bool:
    """By executable: the rank's own, or one called python. A zombie has none left: by its name."""
    executable = _executable(pid)
    if executable is None:
        return bool(_PYTHON.search(name_of(pid))) or name_of(pid) == name_of(rank_pid) or _is_data_worker(pid)
    return executable == _executable(rank_pid) or bool(_PYTHON.search(executable.replace(" (deleted)", "")))


def _is_data_worker(pid: int) -> bool:
    return name_of(pid).startswith("pt_data_worker")


def _is_helper(pid: int) -> bool:
    command = read_text(paths.proc(pid, "cmdline")) or ""
    return any(helper in command for helper in _HELPERS)
