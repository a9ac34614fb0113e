"""A rank's own children, two levels down: dataloader, multiprocessing and subprocess workers, other programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.roles import is_python_name
from mltop.probes.collect.stacks.digest import places
from mltop.probes.collect.stacks.frames import FORKS, LOKY, python_frames
from mltop.probes.collect.stacks.ownership import is_users
from mltop.probes.collect.stacks.process import name_of, read_facts
from mltop.probes.system import paths

# multiprocessing's helpers: they never run user code, only their own children may.
_HELPERS = (
    *(f"{name}.{helper}" for name in (*FORKS, "loky.backend") for helper in ("resource_tracker", "forkserver")),
    "torch._inductor.compile_worker",
)

# (start of the file's path, functions or None for any): the parent waits for a child.
CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    *((f"{name}/", None) for name in FORKS),
    *((f"{name}/", None) for name in LOKY),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    ("concurrent/futures/_base.py", frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})),
    ("concurrent/futures/process.py", None),
)


def waits_for_child(thread: dict[str, Any]) -> bool:
    """True when the library code above the user's leaf line waits for a child process."""
    for frame, (file, function) in zip(python_frames(thread["frames"]), places(thread)):
        if is_users(frame):
            return False
        if any(file.startswith(start) and (names is None or function in names) for start, names in CHILD_WAITS):
            return True
    return False


@dataclass
class Children:
    """Pids, a rank's own before those of its children. ``others`` are programs that are not Python and have no
    child of their own: a shell waits for what it started.
    """

    python: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)


def children_of(pid: int, seen: list[int]) -> Children:
    """Children and grandchildren of a rank, without multiprocessing's helper processes, oldest first.

    ``seen``: children of earlier; those that have another parent now (a reused pid) are left out.
    """
    own = {*_kernel_children(pid), *(child for child in seen if read_facts(child).parent_pid == pid)}
    below = {child: _kernel_children(child) for child in sorted(own)}
    nested = [grandchild for grandchildren in below.values() for grandchild in grandchildren]
    children = Children()
    for child in [*below, *nested]:
        command = " ".join(procfs.read_argv(paths.proc(), child))
        if any(helper in command for helper in _HELPERS):
            continue
        if _is_python(child, pid):
            children.python.append(child)
        elif name_of(child) and not below.get(child) and not _kernel_children(child):
            children.others.append(child)
    return children


def _kernel_children(pid: int) -> list[int]:
    try:
        return sorted(procfs.read_children(paths.proc(), pid) or [])
    except (*procfs.GONE, PermissionError):
        return []


def _is_python(pid: int, rank_pid: int) -> bool:
    """Told by the executable: the rank's own, or one called python. A zombie has none left: it is told by its name."""
    executable, name = procfs.read_exe(paths.proc(), pid), name_of(pid)
    if executable is None:
        return is_python_name(name) or name == name_of(rank_pid) or name.startswith("pt_data_worker")
    return executable == procfs.read_exe(paths.proc(), rank_pid) or is_python_name(executable)
