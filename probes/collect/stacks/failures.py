"""Why a dump has no frames, in plain words, and what would help.

py-spy 0.4 exits 1 for every failure; what it prints was collected by running it on each kind of target.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mltop.probes import paths
from mltop.probes.collect.ranks.values import shown_text
from mltop.probes.writable import user_name

from .process import STOPPED, ProcessFacts, has_other_threads, name_of, read_text

_CAP_SYS_PTRACE = 19  # linux/capability.h
_DENIED = ("Permission denied (os error 13)", "Permission Denied", "EPERM", "Operation not permitted")
_NOT_PYTHON = ("Failed to find python version", "Bad address (os error 14)")
_YAMA = "sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class Failure:
    error: str
    fix: str = ""


GONE = Failure("the process is gone")


def hopeless(facts: ProcessFacts) -> Failure | None:
    """What /proc already tells: no dump can work on a process that is gone or dead."""
    if facts.state in ("", "X", "x"):
        return GONE
    if facts.state == "Z" and has_other_threads(facts.pid):
        return Failure("its main thread has exited while other threads still run: it has no stack to read")
    if facts.state == "Z":
        return Failure("zombie: it has exited and its parent has not collected it")
    return None


def classify(stderr: str, facts: ProcessFacts) -> Failure:
    """One failed py-spy run. ``facts`` were read after it failed."""
    dead = hopeless(facts)
    if dead:
        return dead
    if any(sign in stderr for sign in _DENIED) and not facts.tracer_pid:
        return denied(facts.uid)
    if any(sign in stderr for sign in _NOT_PYTHON):
        return Failure("not a Python process (py-spy finds no Python in it)")
    return _unreadable(facts) or Failure(f"py-spy failed: {shown_text(first_cause(stderr))}")


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
        why = "" if _may_trace() else ": this root has no CAP_SYS_PTRACE, as in a container"
        return Failure("permission denied" + why, "start the container with --cap-add SYS_PTRACE")
    if owner_uid != os.geteuid():
        return Failure(f"permission denied: it belongs to {user_name(owner_uid)}", "sudo mltop stacks")
    scope = (read_text(paths.proc(_YAMA)) or "0").strip()
    if scope == "3":
        return Failure("permission denied: kernel.yama.ptrace_scope is 3, which only a reboot can change")
    if scope != "0":
        return Failure(
            f"permission denied: kernel.yama.ptrace_scope is {scope}",
            "sudo mltop stacks, or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope",
        )
    return Failure("permission denied: it does not let itself be traced", "sudo mltop stacks")


def _may_trace() -> bool:
    status = read_text(paths.proc("self/status")) or ""
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
