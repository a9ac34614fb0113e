"""Limits of processes, threads, open files and memory: what an error of the operating system says of them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import PurePosixPath

from mltop.probes.system import paths

_STACK_BYTES = 16 << 20  # more than the stack of a new thread takes


class LimitReached(Exception):
    """A limit of the system, named in the words of ``limit_words``, lets nothing be read."""


def limit_words(error: BaseException | None) -> str:
    """Which limit has made this error, or what it came from, and what to do; "" where none has."""
    while error is not None:
        if isinstance(error, LimitReached):
            return str(error)
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM if isinstance(error, MemoryError) else 0
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            number = errno.EAGAIN
        if number == errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"this process may open no more files (ulimit -n {most}): raise it"
        if number == errno.ENFILE:
            return "this machine can open no more files (sysctl fs.file-max): raise it or end something"
        if number == errno.ENOMEM or (number == errno.EAGAIN and _lacks_memory()):
            most = resource.getrlimit(resource.RLIMIT_AS)[0]
            limit = "" if most == resource.RLIM_INFINITY else f" (ulimit -v {most >> 10}): raise it or"
            return f"this process gets no more memory{limit or ':'} end something"
        if number == errno.EAGAIN:
            return _no_more_tasks()
        error = error.__cause__ or error.__context__
    return ""


def _lacks_memory() -> bool:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = int((read_text(paths.proc("self", "statm")) or "0").split()[0])
    return most != resource.RLIM_INFINITY and most - pages * resource.getpagesize() < _STACK_BYTES


def _no_more_tasks() -> str:
    """The limit of processes and threads, which the kernel counts alike, that leaves the least room."""
    limits = []
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and os.getuid() != 0:
        used = _tasks_of(os.getuid())
        limits.append((most - used, "this user", f"ulimit -u {most}, {used} in use"))
    for _, folder in cgroups("pids"):
        with contextlib.suppress(ValueError):  # "max", or nothing
            most, used = int(read_text(f"{folder}/pids.max")), int(read_text(f"{folder}/pids.current"))
            limits.append((most - used, "this cgroup", f"{folder}/pids.max {most}, {used} in use"))
    most = int(read_text(paths.proc("sys", "kernel", "threads-max")) or 0)
    _, who, limit = min(limits, default=(0, "this machine", f"sysctl kernel.threads-max {most}"))
    return f"{who} may not start another process or thread ({limit}): raise it or end something"


def _tasks_of(uid: int) -> int:
    count = 0
    for pid in filter(str.isdigit, os.listdir(paths.proc())):  # noqa: PTH208 - as all that reads /proc
        status = dict(line.split(":", 1) for line in read_text(paths.proc(pid, "status")).splitlines() if ":" in line)
        if status.get("Uid", "").split()[:1] == [str(uid)]:
            count += int(status.get("Threads", 1))
    return count


def cgroups(controller: str) -> Iterator[tuple[int, str]]:
    """(version, folder) of this process's cgroups that can limit this, each before those above it (cgroups(7)).

    In a container the path is often the host's: what is mounted is its own cgroup, and so the last one.
    """
    for line in read_text(paths.proc("self", "cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots = []
        if number == "0" and not controllers:
            roots = [(2, paths.sys("fs", "cgroup"))]
        elif controller in controllers.split(","):
            roots = [(1, paths.sys("fs", "cgroup", mount)) for mount in (controllers, controller)]
        own = PurePosixPath(path)
        for version, root in roots:
            for folder in (own, *own.parents):
                yield version, f"{root}{str(folder).rstrip('/')}"


def cpu_quota(version: int, folder: str) -> float | None:
    """Of one cgroup: cores, None without a quota."""
    if version == 2:
        words = read_text(f"{folder}/cpu.max").split()
    else:
        words = [read_text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def read_text(path: str) -> str:
    """Without the white space around it, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
