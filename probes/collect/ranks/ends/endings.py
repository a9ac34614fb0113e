"""How a rank ended, from all that is known of it: its own fault, or others'. Pure.

A launcher whose first rank fails sends SIGTERM to the others (torchrun, DeepSpeed, mpirun, srun -K), and SIGKILL half
a minute later; a time limit, a cancel, a Ctrl-C reach launcher and ranks alike. Both kinds are "stopped": it was not
their own doing.
"""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.model import DeathKind, KernelEvent, RankDeath

# By which programs are asked to end, and what shells and handlers make of it.
_ASKED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ASKED_CODES = tuple(128 + number for number in _ASKED)
_LAUNCHER_BEFORE_S, _LAUNCHER_AFTER_S = 5.0, 60.0  # torchrun gives its ranks 30 s to end, and ends itself then
_TOGETHER_S = 2.0  # what is killed with one blow
_CLEARED_AFTER_S = 5.0  # no launcher kills those that do not obey sooner
_FOLLOWS_S = 120.0
_SAME_END_S = 10.0  # between a kernel line and the end that it tells of: a large core may be written in between


@dataclass(frozen=True)
class LauncherEnd:
    """``status``: as of wait(2), None: unknown. ``at``: unix s."""

    at: float
    status: int | None = None


@dataclass
class Ended:
    """All that is known of one end. ``status``: as of wait(2); ``at``: unix s, when the kernel says it was,
    ``alive_at`` and ``seen_at``: when it was last seen alive, and when its end was noticed. ``said_by``: who told the
    status. ``raised_at``: of the exception in its error file. ``threads``: those of its that crashed.
    """

    pid: int
    rank: int | None
    job: str
    uid: int | None
    launcher: int
    seen_at: float
    alive_at: float = 0.0
    started_at: float | None = None
    status: int | None = None
    at: float | None = None
    said_by: str = ""
    kernel: KernelEvent | None = None  # its OOM kill or its crash
    cgroup_killed: bool = False
    error: str = ""
    raised_at: float | None = None
    threads: set[int] = field(default_factory=set)

    @property
    def signal(self) -> int | None:
        """That killed it."""
        if self.status is not None:
            return self.status & 0x7F or None
        return self.kernel.code if self.kernel is not None and self.kernel.kind == "segfault" else None

    @property
    def code(self) -> int | None:
        """That it gave itself."""
        return self.status >> 8 if self.status is not None and not self.status & 0x7F else None

    @property
    def is_oom(self) -> bool:
        """Out of memory; a kernel line about a process that ended otherwise is about another one."""
        kills = self.cgroup_killed or (self.kernel is not None and self.kernel.kind == "oom")
        return kills and (self.status is None or self.signal == signal.SIGKILL)

    @property
    def when(self) -> float:
        """Unix s, as exact as it is known."""
        if self.at is not None:
            return self.at
        if self.kernel is not None:
            return min(self.kernel.at, self.seen_at)
        # After an exception much may go on before the process ends.
        return self.seen_at if self.raised_at is None else min(max(self.raised_at, self.alive_at), self.seen_at)

    @property
    def was_asked(self) -> bool:
        """To end, by a signal that others send."""
        return self.signal in _ASKED or self.code in _ASKED_CODES

    @property
    def is_own_fault(self) -> bool:
        if self.is_oom or self.error:
            return not self.was_asked
        return not self.was_asked and (self.signal is not None or self.code not in (None, 0))

    def takes(self, event: KernelEvent) -> bool:
        """Whether a kernel line is about this end; then it is kept."""
        is_its = event.pid == self.pid or event.pid in self.threads
        if not is_its or abs(event.at - (self.at or self.seen_at)) > _SAME_END_S:
            return False
        self.kernel = event
        return True


def death_of(ended: Ended, faults: Sequence[float], launcher: LauncherEnd | None) -> RankDeath:
    """``faults``: when ranks of its launcher ended by their own fault, itself perhaps among them; unix s, ascending."""
    how = _how(ended, faults, launcher)
    sources = [
        (ended.status is not None, ended.said_by),
        (ended.kernel is not None and (ended.is_oom or ended.status is None), "kernel log"),
        (ended.is_oom and ended.kernel is None, "cgroup"),
        (bool(ended.error), "error file"),
        (how == "stopped", "launcher"),
    ]
    number = ended.signal if ended.code is None else ended.code
    return RankDeath(
        pid=ended.pid,
        rank=ended.rank,
        job=ended.job,
        uid=ended.uid,
        how=how,
        code=signal.SIGKILL.value if how == "oom" else number,
        at=round(ended.when, 6),
        told_by=", ".join(name for is_told, name in sources if is_told) or "gone",
        error=ended.error,
        dumped_core=None if ended.status is None else bool(ended.status & 0x80 and ended.signal),
        started_at=ended.started_at,
    )


def _how(ended: Ended, faults: Sequence[float], launcher: LauncherEnd | None) -> DeathKind:
    if ended.is_oom:
        return "oom"
    if _is_stopped(ended, faults, launcher):
        return "stopped"
    if ended.signal is not None:
        return "signal"
    return "exit" if ended.code is not None or ended.error else "unknown"


def _is_stopped(ended: Ended, faults: Sequence[float], launcher: LauncherEnd | None) -> bool:
    at = ended.when
    # Not those of an earlier attempt, which the launcher has outlived.
    oldest = bisect_left(faults, max(at - _FOLLOWS_S, ended.started_at or 0.0))
    if ended.was_asked:
        if launcher is not None and -_LAUNCHER_BEFORE_S <= launcher.at - at <= _LAUNCHER_AFTER_S:
            return True
        return oldest < bisect_left(faults, at)
    if ended.signal != signal.SIGKILL:
        return False
    if launcher is not None and (launcher.status or 0) & 0x7F and abs(launcher.at - at) <= _TOGETHER_S:
        return True
    return oldest < bisect_left(faults, at - _CLEARED_AFTER_S)
