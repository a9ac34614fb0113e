"""The operations "signal" and "signal_facts": what a user sends to ranks, and what they would do with it.

A pid may be another process by the time that the user has answered. So a process is held by a pidfd before it is
compared with what the user saw (its start), and the signal goes to what is held; kernels before 5.3 have a window of
microseconds. Only ranks and what they have started get one, and only soon after they were seen.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from dataclasses import asdict
from typing import Any

from mltop.probes.agent.programs import Unavailable
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.collect.sysfile import number_after, read_known, read_long_known, read_number
from mltop.probes.model import RankSample
from mltop.probes.model.acts import SIGNALS, Dumpable, SignalFacts, SignalOutcome, SignalResult
from mltop.probes.model.sample import UNLIMITED, is_same_start
from mltop.probes.system import paths

MOST_PROCESSES = 1024
MOST_AGE_S = 30.0  # of the sample that the user looked at, by this node's clock
WATCHED_S = 1.0  # what ends, ends within it; a core takes longer and is told as such
_LOOK_S = 0.02
_MOST_ABOVE = 64  # generations between a rank and what it started
_ANONYMOUS, _SHARED, _HUGE = 0x01, 0x02, 0x20  # bits of coredump_filter, core(5)
_USUAL_FILTER = 0x33


def send_signals(
    args: dict[str, Any], ranks: list[RankSample], cancelled: threading.Event
) -> dict[str, list[dict[str, Any]]]:
    """``args``: signal (of SIGNALS), processes [{pid, started_at (unix s)}], sampled_at (unix s, this node's clock)."""
    name, asked = args.get("signal"), _asked(args)
    if name not in SIGNALS:
        raise Unavailable(f"no such signal: {name!r}")
    if paths.SYSROOT:
        raise Unavailable("what is shown here is a copied tree (MLTOP_SYSROOT): nothing was sent")
    sampled_at = args.get("sampled_at")
    age_s = time.time() - sampled_at if isinstance(sampled_at, (int, float)) else MOST_AGE_S + 1
    if abs(age_s) > MOST_AGE_S or cancelled.is_set():
        raise Unavailable("the request came too late: nothing was sent", "try again")
    number = getattr(signal, f"SIG{name}")
    held: list[tuple[int | None, SignalResult]] = []
    try:
        for pid, started_at in asked:
            held.append(_send(pid, started_at, number, ranks))
        _watch(held, cancelled)
    finally:
        for fd, _ in held:
            if fd is not None:
                os.close(fd)
    return {"results": [asdict(result) for _, result in held]}


def signal_facts(args: dict[str, Any], ranks: list[RankSample]) -> dict[str, list[dict[str, Any]]]:
    """``args``: processes as in ``send_signals``."""
    facts = []
    for pid, started_at in _asked(args):
        outcome = _why_not(pid, started_at, ranks)
        facts.append(asdict(_facts_of(pid) if not outcome else SignalFacts(pid, why=outcome)))
    return {"facts": facts}


def _asked(args: dict[str, Any]) -> list[tuple[int, float]]:
    """The (pid, start) of each process. Raises Unavailable for what is no list of them."""
    processes = args.get("processes")
    if not isinstance(processes, list) or not 0 < len(processes) <= MOST_PROCESSES:
        raise Unavailable(f"a request names 1 to {MOST_PROCESSES} processes")
    asked = []
    for process in processes:
        pid, started_at = (process.get("pid"), process.get("started_at")) if isinstance(process, dict) else (None, None)
        if type(pid) is not int or not isinstance(started_at, (int, float)) or isinstance(started_at, bool):
            raise Unavailable("a process is named by its pid and its start")
        asked.append((pid, float(started_at)))
    return asked


def _send(pid: int, started_at: float, number: int, ranks: list[RankSample]) -> tuple[int | None, SignalResult]:
    """Sends to one process. Returns what holds it (to be closed by the caller) and what came of it."""
    fd: int | None = None
    try:
        fd = _hold(pid)
        outcome = _why_not(pid, started_at, ranks)
        if not outcome:
            if fd is not None:
                signal.pidfd_send_signal(fd, number)  # type: ignore[attr-defined, unused-ignore]
            else:
                os.kill(pid, number)
        return fd, SignalResult(pid, outcome or "sent")
    except ProcessLookupError:
        return fd, SignalResult(pid, "gone")
    except PermissionError:
        return fd, SignalResult(pid, "denied", why=_owner(pid))
    except (OSError, OverflowError) as error:
        return fd, SignalResult(pid, "failed", why=getattr(error, "strerror", None) or str(error))


def _hold(pid: int) -> int | None:
    """A pidfd; None where there are none (before Linux 5.3, or forbidden). Raises ProcessLookupError."""
    if pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, PermissionError):
        return None
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL):
            return None
        raise


def _why_not(pid: int, started_at: float, ranks: list[RankSample]) -> SignalOutcome | None:
    """Why this process gets no signal; None: it does."""
    if pid <= 1 or pid in (os.getpid(), os.getppid()):
        return "ours"
    root = paths.proc()
    try:
        stat = procfs.read_stat(root, pid)
    except procfs.GONE:
        return "gone"
    if stat.kernel_thread or stat.state in "ZX":
        return "kernel" if stat.kernel_thread else "gone"
    began_at = procfs.started_at(root, stat.start_ticks)
    if not is_same_start(began_at, started_at):
        return "another"
    return None if _is_of_a_rank(root, pid, stat.ppid, ranks) else "no_rank"


def _is_of_a_rank(root: str, pid: int, ppid: int, ranks: list[RankSample]) -> bool:
    """Whether it is a rank, or has one above it."""
    pids = {rank.pid for rank in ranks}
    for _ in range(_MOST_ABOVE):
        if pid in pids:
            return True
        if ppid <= 1:
            return False
        try:
            pid, ppid = ppid, procfs.read_stat(root, ppid).ppid
        except OSError:
            return False
    return False


def _owner(pid: int) -> str:
    """Whose it is, "" where that cannot be known either."""
    try:
        return user_name(procfs.read_status(paths.proc(), pid).uid)
    except OSError:
        return ""


def _watch(held: list[tuple[int | None, SignalResult]], cancelled: threading.Event) -> None:
    """Sees for a moment what those do that got the signal."""
    until = time.monotonic() + WATCHED_S
    open_ones = [(fd, result) for fd, result in held if result.outcome == "sent"]
    while open_ones:
        last = time.monotonic() >= until or cancelled.is_set()
        open_ones = [(fd, result) for fd, result in open_ones if not _look(fd, result)]
        if last:
            return
        cancelled.wait(_LOOK_S)


def _look(fd: int | None, result: SignalResult) -> bool:
    """Brings the result up to date; True when there is nothing more to see."""
    state = _state(result.pid)
    if state in ("", "Z", "X") or (fd is not None and _has_ended(fd)):
        result.outcome, result.state = "ended", state
        return True
    result.state = state
    status = read_long_known(paths.proc(result.pid, "status"), 1 << 14)
    result.outcome = "dumping" if number_after(status, b"CoreDumping:") else "sent"
    return False


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _state(pid: int) -> str:
    try:
        return procfs.read_stat(paths.proc(), pid).state
    except OSError:
        return ""


def _facts_of(pid: int) -> SignalFacts:
    root = paths.proc(pid)
    try:
        status = read_long_known(f"{root}/status", 1 << 14)
    except OSError:
        status = b""
    if not status:
        return SignalFacts(pid, why="gone")
    pattern = read_known(paths.proc("sys/kernel/core_pattern"))
    return SignalFacts(
        pid,
        caught=_signals(status, b"SigCgt:"),
        ignored=_signals(status, b"SigIgn:"),
        blocked=_signals(status, b"SigBlk:"),
        core_pattern=None if pattern is None else pattern.decode("utf-8", "replace").strip()[:256],
        core_limit_bytes=_core_limit(read_long_known(f"{root}/limits", 1 << 14)),
        core_bytes=_core_bytes(status, read_known(f"{root}/coredump_filter")),
        dumpable=_dumpable(pid, status),
    )


def _signals(status: bytes, label: bytes) -> list[str]:
    """Which of SIGNALS are in a mask of /proc/PID/status."""
    at = status.find(b"\n" + label)
    words = status[at + 1 + len(label) :].split(None, 1) if at >= 0 else []
    try:
        mask = int(words[0], 16) if words else 0
    except ValueError:
        return []
    return [name for name in SIGNALS if mask >> (getattr(signal, f"SIG{name}") - 1) & 1]


def _core_limit(limits: bytes) -> int | None:
    for line in limits.splitlines():
        if line.startswith(b"Max core file size"):
            soft = line[len(b"Max core file size") :].split()[0]
            return UNLIMITED if soft == b"unlimited" else int(soft)
    return None


def _core_bytes(status: bytes, coredump_filter: bytes | None) -> int | None:
    """What of its memory would be written, as far as it is there (core(5)); the file may have holes."""
    try:
        kinds = int(coredump_filter or b"", 16)
    except ValueError:
        kinds = _USUAL_FILTER
    private, shared = number_after(status, b"RssAnon:"), number_after(status, b"RssShmem:")
    if private is None or shared is None:
        return None
    swapped, huge = number_after(status, b"VmSwap:") or 0, number_after(status, b"HugetlbPages:") or 0
    kib = (private + swapped) * bool(kinds & _ANONYMOUS) + shared * bool(kinds & _SHARED) + huge * bool(kinds & _HUGE)
    return kib * 1024


def _dumpable(pid: int, status: bytes) -> Dumpable:
    """Files in /proc/PID, not the folder, are root's where it is not dumpable (proc(5)): nothing else tells it."""
    uid = number_after(status, b"Uid:")
    try:
        owner = os.stat(paths.proc(pid, "environ")).st_uid  # noqa: PTH116
    except OSError:
        return "unknown"
    if uid is None or uid == 0:
        return "unknown"
    if owner == uid:
        return "yes"
    return "root" if read_number(paths.proc("sys/fs/suid_dumpable")) == 2 else "no"
