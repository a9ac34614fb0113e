"""What a user has done to ranks: a signal, and what a node says of it before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

# The gentlest first; ABRT and KILL end a process that does not want to.
SignalName = Literal["USR1", "USR2", "CONT", "TERM", "ABRT", "KILL"]
SIGNALS: tuple[SignalName, ...] = get_args(SignalName)

# ended: within the moment that was waited; dumping: its core is being written; sent: it goes on, in ``state``.
_Sent = Literal["sent", "ended", "dumping"]
# gone: it ended before; another: this pid is another process now; no_rank: neither a rank nor started by one; kernel: a
# kernel thread; ours: init or mltop itself; denied: no permission; failed: ``why``.
_NotSent = Literal["gone", "another", "no_rank", "kernel", "ours", "denied", "failed"]
# unknown: the node did not answer in time.
SignalOutcome = Literal[_Sent, _NotSent, "unknown"]
SENT: tuple[SignalOutcome, ...] = get_args(_Sent)

# no: the kernel writes none for it; root: at most one that only root may read (suid_dumpable); unknown: root's own
# processes look the same in both cases.
Dumpable = Literal["yes", "no", "root", "unknown"]


@dataclass
class SignalResult:
    """What became of a signal to one process. ``state``: the process's after it (R S D T Z)."""

    pid: int
    outcome: SignalOutcome
    state: str = ""
    why: str = ""


@dataclass
class SignalFacts:
    """What a process would do with signals, and what would become of its core.

    ``caught``, ``ignored``, ``blocked``: of SIGNALS, by name. ``core_limit_bytes``: its soft RLIMIT_CORE, UNLIMITED
    where there is none; ``core_bytes``: about as much would be written; ``core_pattern``: the node's. Source:
    /proc/PID/{status,limits,coredump_filter}, its owner, and /proc/sys/{kernel/core_pattern,fs/suid_dumpable}.
    """

    pid: int
    caught: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    core_pattern: str | None = None
    core_limit_bytes: int | None = None
    core_bytes: int | None = None
    dumpable: Dumpable = "unknown"
    why: str = ""  # nothing is known of it: it is gone, or may not be looked at


@dataclass
class LogTail:
    """The end of one file that a process writes to. ``written_at``: its last change, unix s, by its node's clock.

    ``why``: there is none that can be read, and ``file`` is "".
    """

    file: str
    size_bytes: int = 0
    written_at: float = 0.0
    lines: list[str] = field(default_factory=list)
    why: str = ""


DiagStatus = Literal["pass", "warn", "fail", "skip", "unknown"]


@dataclass
class DiagResult:
    """One test of `dcgmi diag`. ``gpus``: by DCGM's ids, none: of the machine; ``text``: what it says of it."""

    test: str
    status: DiagStatus = "unknown"
    gpus: list[int] = field(default_factory=list)
    text: str = ""
