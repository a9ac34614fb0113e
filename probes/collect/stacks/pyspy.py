"""One py-spy run: found, started so that it cannot outlive us, given a deadline, ended on cancel; and why it failed.

py-spy 0.4 exits 1 for every failure; what it prints was collected by running it on each kind of target.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.stacks.process import STOPPED, ProcessFacts, has_other_threads, name_of
from mltop.probes.collect.sysfile import read_link, read_text
from mltop.probes.system import as_root, paths
from mltop.probes.system.spawn import Unfinished, end_child, output_of, start_child
from mltop.probes.system.writable import user_name

_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_CAP_SYS_PTRACE = 19  # linux/capability.h
_DENIED = ("Permission denied (os error 13)", "Permission Denied", "EPERM", "Operation not permitted")
_NOT_PYTHON = ("Failed to find python version", "Bad address (os error 14)")
_TOO_NEW = re.compile(r"Unsupported version of Python: (3\.\d+)")
_FREE_THREADED = re.compile(r"python(3\.\d+)t\b")  # bin/python3.13t, lib/python3.13t/, libpython3.13t.so
_YAMA = "sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class Failure:
    """Why there is no stack, what would help, and whether it is that the process has exited."""

    error: str
    fix: str = ""
    dead: bool = False


GONE = Failure("the process is gone", dead=True)


def find_py_spy() -> str | None:
    """py-spy's path: $MLTOP_PY_SPY alone when set, else beside this Python, in its scripts folders, beside the
    site-packages that we were imported from (another Python's, with --python), on PATH, in the agent's cache. None that
    others could change where we are root.
    """
    return next((path for path in _candidates() if not as_root.why_not(path)), None)


def why_no_py_spy() -> str:
    """Why the one that is there is not run, "" when there is none."""
    return next(
        (f"{path}: {why}" for path, why in ((path, as_root.why_not(path)) for path in _candidates()) if why), ""
    )


def _candidates() -> Iterator[str]:
    """Those that can be executed, the best first."""
    chosen = os.environ.get("MLTOP_PY_SPY")
    if chosen:
        yield from map(os.path.abspath, filter(_is_executable, (chosen,)))
        return
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    folders.append(sysconfig.get_path("scripts", "posix_user"))
    folders += [
        os.path.normpath(os.path.join(entry, "../../../bin")) for entry in sys.path if entry.endswith("-packages")
    ]
    yield from filter(_is_executable, (os.path.join(folder, "py-spy") for folder in folders))
    import shutil

    yield from (os.path.abspath(path) for path in (shutil.which("py-spy"), _newest_in_cache()) if path)


def _newest_in_cache() -> str | None:
    """One that was sent to this node (``agent/programs.py``) and can be executed where it lies."""
    cache = os.environ.get("MLTOP_CACHE")
    if not cache or not os.path.isdir(cache) or os.statvfs(cache).f_flag & os.ST_NOEXEC:
        return None
    programs = [path for path in glob.glob(os.path.join(glob.escape(cache), "py-spy-*")) if _is_executable(path)]
    return max(programs, key=os.path.getmtime, default=None)


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


@dataclass
class Dump:
    """What one run gave: ``threads``, else why not (``stderr``, ``timed_out`` or ``cancelled``)."""

    threads: list[dict[str, Any]] | None = None
    stderr: str = ""
    timed_out: bool = False
    cancelled: bool = False

    @property
    def is_worth_a_retry(self) -> bool:
        """Whether a second look may give more: not where there is no Python, or no permission."""
        passing = ("Failed to get stack traces", "Failed to suspend")
        return not self.cancelled and (self.timed_out or any(sign in self.stderr for sign in passing))

    @property
    def met_another(self) -> bool:
        """Whether somebody else stopped the process at this moment: a second engineer's mltop, for milliseconds."""
        return not self.cancelled and "Failed to suspend" in self.stderr

    def failure(self, facts: ProcessFacts, deadline_s: float) -> Failure:
        """Why there are no threads; ``facts`` were read after it failed."""
        return deadline(facts, deadline_s) if self.timed_out else classify(self.stderr, facts)


def dump(py_spy: str, pid: int, options: list[str], deadline_s: float, cancelled: Callable[[], bool]) -> Dump:
    """Run ``py-spy dump`` once on ``pid``. Returns within ``deadline_s``, and the child has ended then."""
    command = [py_spy, "dump", "--json", "--pid", str(pid), *options]
    try:
        child = start_child(command, stderr=subprocess.PIPE)
    except OSError as error:
        return Dump(stderr=f"Error: cannot start {py_spy}: {error.strerror}")
    try:
        return _collect(child, time.monotonic() + deadline_s, cancelled)
    finally:
        end_child(child)


def _collect(child: subprocess.Popen[bytes], until_s: float, cancelled: Callable[[], bool]) -> Dump:
    """What the child says, by ``until_s`` (monotonic)."""
    try:
        output, errors = output_of(child, until_s, cancelled, _MAX_OUTPUT_BYTES)
    except Unfinished as unfinished:
        too_large = "Error: the dump is larger than 64 MiB" if unfinished.cause == "large" else ""
        return Dump(stderr=too_large, timed_out=unfinished.cause == "late", cancelled=unfinished.cause == "stopped")
    if child.returncode != 0:
        return Dump(stderr=errors.decode(errors="replace") or f"Error: py-spy ended with code {child.returncode}")
    try:
        return Dump(threads=json.loads(output))
    except ValueError:
        return Dump(stderr="Error: py-spy printed no JSON")


def hopeless(facts: ProcessFacts) -> Failure | None:
    """What /proc already tells: no dump can work on a process that is gone or dead."""
    if facts.state in ("", "X", "x"):
        return GONE
    if facts.state == "Z" and has_other_threads(facts.pid):
        return Failure("its main thread has exited while other threads still run: it has no stack to read")
    if facts.state == "Z":
        return Failure("zombie: it has exited and its parent has not collected it", dead=True)
    return None


def classify(stderr: str, facts: ProcessFacts) -> Failure:
    """Why one run of py-spy failed. ``facts`` were read after it failed."""
    dead = hopeless(facts)
    if dead:
        return dead
    if any(sign in stderr for sign in _DENIED) and not facts.tracer_pid:
        return denied(facts.uid)
    beyond = _beyond_py_spy(stderr, facts.pid)
    if beyond:
        return beyond
    if any(sign in stderr for sign in _NOT_PYTHON):
        return Failure("not a Python process (py-spy finds no Python in it)")
    return _unreadable(facts) or Failure(f"py-spy failed: {shown_text(first_cause(stderr))}")


def _beyond_py_spy(stderr: str, pid: int) -> Failure | None:
    too_new, root = _TOO_NEW.search(stderr), read_link(paths.proc(pid, "root")) or "/"
    if too_new:
        return Failure(f"py-spy on this node cannot read Python {too_new[1]}", "pip install --upgrade py-spy")
    if "No such file" in stderr and root != "/":
        return Failure(f"it runs in the chroot {shown_text(root)}, whose files py-spy finds from inside only")
    return free_threaded(pid)


def free_threaded(pid: int) -> Failure | None:
    """A Python without the GIL, recognised by the name of its program or of what it has loaded (py-spy's issue 711)."""
    texts = [procfs.read_exe(paths.proc(), pid) or ""]
    with suppress(OSError):
        texts.append(procfs.read_maps(paths.proc(), pid).decode("utf-8", "replace"))
    found = next(filter(None, map(_FREE_THREADED.search, texts)), None)
    if found is None:
        return None
    now = f"pip install pystack; pystack remote --no-block {pid}"
    fix = f"run the job on Python {found[1]} with the GIL; for now: {now}"
    return Failure(f"py-spy cannot read free-threaded Python {found[1]}t", fix)


def _unreadable(facts: ProcessFacts) -> Failure | None:
    if facts.tracer_pid:
        tracer = f"{facts.tracer_pid} {shown_text(name_of(facts.tracer_pid))}".strip()
        return Failure(f"already traced by {tracer}", f"end the tracer: kill {facts.tracer_pid}")
    if facts.state in STOPPED:
        return Failure("stopped by a signal, and its stack could not be read", f"kill -CONT {facts.pid}")
    if facts.state == "D":
        return uninterruptible(facts)
    return None


def missing(refused: str) -> Failure:
    """There is no py-spy, or one that we do not run: ``refused`` says why."""
    return Failure(refused or "py-spy is not installed on this node", "pip install py-spy")


def deadline(facts: ProcessFacts, deadline_s: float) -> Failure:
    """py-spy was killed after ``deadline_s`` (twice, where a retry made sense)."""
    if facts.state == "D":
        return uninterruptible(facts)
    return hopeless(facts) or Failure(f"py-spy did not finish within {deadline_s:g} s and was ended")


def uninterruptible(facts: ProcessFacts) -> Failure:
    where = f" in {facts.wchan}" if facts.wchan else ""
    return Failure(f"uninterruptible in the kernel{where} (state D), and its stack could not be read")


def denied(owner_uid: int) -> Failure:
    """Who may trace: the same user (unless Yama forbids), or CAP_SYS_PTRACE. Source: ptrace(2)."""
    if os.geteuid() == 0:
        why = "" if may_trace() else ": this root has no CAP_SYS_PTRACE, as in a container"
        return Failure("permission denied" + why, "start the container with --cap-add SYS_PTRACE")
    if owner_uid != os.geteuid():
        return Failure(f"permission denied: it belongs to {user_name(owner_uid)}", "sudo mltop stacks")
    scope = read_text(paths.proc(_YAMA)) or "0"
    if scope == "3":
        return Failure("permission denied: kernel.yama.ptrace_scope is 3, which only a reboot can change")
    if scope != "0":
        return Failure(
            f"permission denied: kernel.yama.ptrace_scope is {scope}",
            "sudo mltop stacks, or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope",
        )
    return Failure("permission denied: it does not let itself be traced", "sudo mltop stacks")


def may_trace() -> bool:
    """Whether this process holds CAP_SYS_PTRACE: then it may trace those of others (capabilities(7))."""
    status = read_text("/proc/self/status") or ""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_SYS_PTRACE & 1)


def first_cause(stderr: str) -> str:
    """py-spy's ``Error:`` line and its last cause, without the Rust backtrace that follows."""
    head = stderr.split("Stack backtrace:", maxsplit=1)[0]
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    error = next((line[len("Error:") :].strip() for line in lines if line.startswith("Error:")), "")
    causes = [line.partition(": ")[2] for line in lines if line[:1].isdigit() and ": " in line]
    text = ": ".join(part for part in (error, causes[-1] if causes else "") if part)
    return text or (lines[0] if lines else "it printed nothing")
