"""asyncio's tasks of a process whose event loop is idle: what awaits what, which no thread's stack shows.

Python 3.14 and newer read them out of another process's memory without stopping it or running anything in it:
``python -m asyncio pstree PID``, by a Python of the process's own version. So it is the process's own interpreter, of
our own processes only, confined (``spawn.confined``): root runs nobody else's, also not with that user's rights, since
he may do to such a process what he likes before and after it has begun. Not in containers and other roots, whose paths
mean other files here; nor, by root, where another user could have changed it.
Source: Lib/asyncio/tools.py; PEP 768; the documentation of asyncio, "Call graph introspection".
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.collect.redaction.shapes import without_tokens
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.stacks import pyspy
from mltop.probes.collect.stacks.ownership import is_users, short_file
from mltop.probes.collect.stacks.process import read_facts
from mltop.probes.collect.sysfile import read_text
from mltop.probes.model import OLDEST_WITH_TASKS, Frame, StackDigest, TaskChain, Tasks, idle_event_loop
from mltop.probes.model.text import clean, plain_text
from mltop.probes.system import as_root, owner, paths
from mltop.probes.system.spawn import Unfinished, confined, end_child, output_of, start_child
from mltop.probes.system.writable import in_time, user_name, writer_of

MOST_ASKED = 4  # processes, of one dump
MOST_CHAINS = 64
MOST_RAW_LINES = 2000
_MOST_BYTES, _MOST_LINES, _MOST_LINE_CHARS = 4 << 20, 20_000, 2000
_MOST_LIBRARIES = 64  # folders of LD_LIBRARY_PATH
_MOST_FRAMES = 64  # of a chain, the leaf's end
_MOST_NAMES, _MOST_NAME_CHARS = 3, 100
_TOO_SLOW = "its Python could not be looked at in time (a slow file system?)"
_WITH_ASYNCIO = ("asyncio/", "uvloop/")
_VERSION = re.compile(r".*/(?:lib(?:64)?/python(\d)\.(\d{1,3})t?/|python(\d)(\d{1,3})\.zip/)")

_LINE = re.compile(r"((?:│   |    )*)(?:├── |└── )(.*)")
_TASK = "(T) "
_COROUTINE = re.compile(r"(\S+)(?: (.*?))?(?::(\d{1,9}))?")
_UNNAMED = re.compile(r"Task-\d+")  # by asyncio itself: there is no other of this name
_CYCLE = re.compile(r"^cycle: (.+)$", re.MULTILINE)
_UNTOLD = re.compile(r"^Error retrieving tasks: (.*)", re.MULTILINE)


# What it prints.


@dataclass
class _Node:
    """A task (``again``: the same stood further up), or a coroutine (then with its frame)."""

    name: str
    again: bool = False
    frame: Frame | None = None


def parse(text: str) -> Tasks | None:
    """The tree that ``pstree`` prints; None for what is none. A task that several await stands below each of them, and
    counts once where its name tells that it is the same.
    """
    ways = list(_ways(text, set()))
    if not ways and text.strip():
        return None
    chains: dict[tuple[tuple[str, str, int], ...], TaskChain] = {}
    for way in ways:
        task = next((node for node in reversed(way) if node.frame is None), _Node(""))
        if task.again:
            continue
        frames = [node.frame for node in reversed(way) if node.frame is not None][:_MOST_FRAMES]
        key = tuple((frame.function, frame.file, frame.line) for frame in frames)
        chain = chains.setdefault(key, TaskChain(0, frames))
        chain.count += 1
        if len(chain.names) < _MOST_NAMES:
            chain.names.append(_shown(task.name))
    tasks = {id(node) for way in ways for node in way if node.frame is None and not node.again}
    ordered = sorted(chains.values(), key=lambda chain: -chain.count)  # of equal ones the first
    left_out = sum(chain.count for chain in ordered[MOST_CHAINS:])
    return Tasks(len(tasks), ordered[:MOST_CHAINS], left_out)


def _ways(text: str, unnamed: set[str]) -> Iterator[list[_Node]]:
    """From the root to each line that has none below it. ``unnamed``: tasks that were seen, by asyncio's name."""
    way: list[_Node] = []
    for line in text.split("\n")[:_MOST_LINES]:
        match = _LINE.fullmatch(line[:_MOST_LINE_CHARS])
        if match is None:  # the rest of a name with line breaks
            continue
        depth = len(match[1]) // 4
        if depth < len(way):
            yield way
        way = [*way[:depth], _node(match[2], unnamed)]
    if way:
        yield way


def _node(entry: str, unnamed: set[str]) -> _Node:
    if entry.startswith(_TASK):
        name = entry[len(_TASK) :]
        again = name in unnamed
        if _UNNAMED.fullmatch(name):
            unnamed.add(name)
        return _Node(name, again)
    match = _COROUTINE.fullmatch(entry.strip())
    function, file, line = match.groups() if match else (entry.strip(), None, None)
    raw = {"filename": file or "<unknown>"}
    return _Node(
        function,
        frame=Frame(without_tokens(function), without_tokens(short_file(raw)), int(line or 0), user=is_users(raw)),
    )


def _shown(name: str) -> str:
    return plain_text(shown_text(name), _MOST_NAME_CHARS)  # Python 3.14 misreads names that are not ASCII


def answer_of(code: int, output: str, errors: str) -> Tasks:
    """What one run of ``pstree`` says."""
    tasks = parse(output) if code == 0 else None
    if tasks is not None:
        return tasks
    cycles = [found.split(" → ")[:MOST_CHAINS] for found in _CYCLE.findall(errors)[:MOST_CHAINS]]
    if cycles:
        return Tasks(cycles=[[*map(_shown, cycle)] for cycle in cycles[:MOST_CHAINS]])
    if "insufficient permissions" in output:
        return _denied()
    untold = _UNTOLD.search(output)
    if untold:
        return Tasks(error=f"they could not be read: {shown_text(untold[1])}")
    lines = (errors.strip() or output.strip()).splitlines()
    said = shown_text(lines[-1]) if lines else f"exit code {code}"
    return Tasks(error=f"python -m asyncio pstree failed: {said}")


def _denied() -> Tasks:
    scope = read_text(paths.proc("sys/kernel/yama/ptrace_scope")) or "0"
    if scope != "0":
        fix = "echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope" if scope in ("1", "2") else ""
        return Tasks(error=f"permission denied: kernel.yama.ptrace_scope is {scope}", fix=fix)
    return Tasks(error="permission denied: it does not let itself be read by its own user")


# Whom to ask, and how.


class _NotAsked(Exception):
    """Why not, in plain words; ``fix``: what would help."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


def _not_ours(uid: int) -> _NotAsked:
    return _NotAsked(f"it belongs to {user_name(uid)}", f"mltop stacks, run by {user_name(uid)}")


class TaskReader:
    """Of one dump: asks one process of those with equal stacks, and few in all. From any thread.

    ``deadline_s``: for one question; a process of 20,000 tasks takes 5 s. ``stopped``: whether nobody waits any more.
    """

    def __init__(self, deadline_s: float, stopped: Callable[[], bool]) -> None:
        self._deadline_s = deadline_s
        self._stopped = stopped
        self._lock = threading.Lock()
        self._asked: dict[object, int] = {}

    def add_to(self, digests: list[StackDigest], threads: list[dict[str, Any]]) -> list[str]:
        """Puts the tasks of a process that is an idle event loop to its thread's digest. Returns the tree as it was
        printed, without secrets, and [] where there is none. ``digests``: the main thread's first.

        A loop beside a main thread that runs the user's code, or beside one in a collective, is a helper's.
        """
        loop = next(filter(idle_event_loop, digests), None)
        if loop is None or any(digest.waiting_in for digest in digests):
            return []
        if loop is not digests[0] and any(frame.user for frame in digests[0].frames):
            return []
        files = _files_of_asyncio(threads)
        if not files:
            return []  # another library's loop
        tree = ""
        try:
            version = _version(files)
            if version < OLDEST_WITH_TASKS:
                loop.tasks = Tasks(python=".".join(map(str, version)))
            else:
                self._claim(loop)
                loop.tasks, tree = _ask(loop.pid, self._deadline_s, self._stopped)
        except _NotAsked as no:
            loop.tasks = Tasks(error=str(no), fix=no.fix)
        lines = tree.split("\n")[:MOST_RAW_LINES]
        return [clean(shown_text(line[:_MOST_LINE_CHARS])) for line in lines if line]

    def _claim(self, loop: StackDigest) -> None:
        """Raises _NotAsked. Another user's process takes nobody's place."""
        uid = read_facts(loop.pid).uid
        if uid is not None and uid != os.geteuid():
            raise _not_ours(uid)
        alone = f"mltop stacks --pid {loop.pid}"
        key = (loop.job, loop.key)
        with self._lock:
            if key in self._asked:
                raise _NotAsked(f"not asked for: pid {self._asked[key]} has the same stack", alone)
            if len(self._asked) >= MOST_ASKED:
                raise _NotAsked(f"not asked for: those of {MOST_ASKED} other processes of this node were", alone)
            self._asked[key] = loop.pid


def _files_of_asyncio(threads: list[dict[str, Any]]) -> list[str]:
    """As far as stacks show them."""
    files = (frame["filename"] for thread in threads for frame in thread["frames"])
    return [file for file in files if short_file({"filename": file}).startswith(_WITH_ASYNCIO)]


def _version(files: list[str]) -> tuple[int, int]:
    """Of the process's Python, told by where its asyncio lies. Raises _NotAsked."""
    match = next(filter(None, map(_VERSION.match, files)), None)
    if match is None:
        raise _NotAsked("which Python it runs could not be told")
    major, minor = filter(None, match.groups())
    return int(major), int(minor)


def _ask(pid: int, deadline_s: float, stopped: Callable[[], bool]) -> tuple[Tasks, str]:
    """The process's tasks, and what was printed. Raises _NotAsked."""
    until_s = time.monotonic() + deadline_s
    program, libraries = _interpreter(pid, until_s)
    try:
        code, output, errors = _run(program, libraries, pid, until_s, stopped)
        if _UNTOLD.search(output):  # read while something ran
            code, output, errors = _run(program, libraries, pid, until_s, stopped)
    except Unfinished as unfinished:
        told = {
            "late": f"its Python did not tell them within {deadline_s:g} s",
            "large": f"they are more than {_MOST_BYTES >> 20} MiB of text",
            "stopped": "cancelled",
        }
        raise _NotAsked(told[unfinished.cause]) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _NotAsked(f"its Python cannot be started: {shown_text(str(error))}") from None
    gone = pyspy.hopeless(read_facts(pid)) if code else None
    return (Tasks(error=gone.error) if gone else answer_of(code, output, errors)), output


def _interpreter(pid: int, until_s: float) -> tuple[str, list[str]]:
    """The process's program, and the folders of its libraries. Raises _NotAsked."""
    try:
        folder = owner.open_process(pid)
        try:
            return _of_process(folder, until_s)
        finally:
            os.close(folder)
    except (FileNotFoundError, ProcessLookupError):
        raise _NotAsked(pyspy.GONE.error) from None
    except OSError as error:
        raise _NotAsked(f"it cannot be looked at: {error.strerror}") from None


def _of_process(folder: int, until_s: float) -> tuple[str, list[str]]:
    """``folder``: a descriptor of /proc/PID. The program that was looked at is the one to run, whatever the process
    has become since. Raises _NotAsked and OSError.
    """
    uids, gids = set(owner.ids(folder, "Uid")), set(owner.ids(folder, "Gid"))
    if len(uids) != 1 or len(gids) != 1:
        raise _NotAsked("it runs with the rights of more than one user or group")
    uid = uids.pop()
    if os.geteuid() != uid:
        raise _not_ours(uid)
    why = owner.why_no_python_of_ours(folder)
    if why:
        raise _NotAsked(f"it {why}")
    program, libraries = os.readlink("exe", dir_fd=folder), _libraries(folder)
    left_s = max(0.0, until_s - time.monotonic())
    why_not, libraries = in_time(lambda: _looked_at(program, libraries, left_s), left_s) or (_TOO_SLOW, [])
    if why_not:
        raise _NotAsked(why_not)
    return program, libraries


def _libraries(folder: int) -> list[str]:
    """Its LD_LIBRARY_PATH: some Pythons do not start without."""
    variables = (item.partition(b"=") for item in owner.read(folder, "environ").split(b"\0"))
    value = next((os.fsdecode(value) for name, _, value in variables if name == b"LD_LIBRARY_PATH"), "")
    return [path for path in value.split(":") if path.startswith("/")][:_MOST_LIBRARIES]


def _looked_at(program: str, libraries: list[str], limit_s: float) -> tuple[str, list[str]]:
    """Why root does not run this Python ("": it does), and those of its ``libraries`` that nobody else can change."""
    if not as_root.is_root():
        return "", libraries
    why = as_root.Look(lambda: False, limit_s).why_not_python(program)
    return why, [] if why else [path for path in libraries if writer_of(path) is None]


def _run(
    program: str, libraries: list[str], pid: int, until_s: float, stopped: Callable[[], bool]
) -> tuple[int, str, str]:
    """A shell becomes the Python: on a file server that is gone this hangs a child of ours, which has a deadline. The
    libraries are the Python's and not the shell's, which may not start with them.
    """
    become = 'if [ "$0" ]; then export LD_LIBRARY_PATH="$0"; fi; exec "$@"'
    asyncio = ["-I", "-S", "-m", "asyncio", "pstree", str(pid)]
    words = ["/bin/sh", "-c", become, ":".join(libraries), program, *asyncio]
    child = start_child(words, stderr=subprocess.PIPE, **confined())
    try:
        output, errors = output_of(child, until_s, stopped, _MOST_BYTES)
    finally:
        end_child(child)
    return child.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
