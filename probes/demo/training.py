"""What the demo's training scripts share: what the job tells them, and how their lives are tied to its own.

Two independent mechanisms, both in the kernel, end a rank however its parent ends (exit, SIGKILL, a dead terminal), so
that one stuck in C code dies as well: PR_SET_PDEATHSIG (prctl(2)), and SIGIO at the end of stdin, a pipe whose other
end only the parent holds (fcntl(2), F_SETOWN): its default action ends the process, and it goes to the rank's whole
process group.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass

from mltop.probes.demo.dataset import ShardDataset
from mltop.probes.system.spawn import die_with_parent

PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)

_forking_pid = 0


def tie_to_parent(parent_pid: int) -> None:
    """Die with ``parent_pid``; what this process forks from now on (dataloader workers) dies with it.

    Call it first thing in a process that leads its own session and whose stdin is a pipe from the parent.
    """
    _die_with(parent_pid)
    os.register_at_fork(before=_before_fork, after_in_child=lambda: _die_with(_forking_pid))
    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # readable: the end came before SIGIO was armed
        os.kill(os.getpid(), signal.SIGKILL)


def _die_with(parent_pid: int) -> None:
    try:
        die_with_parent()
    except OSError as error:  # The pipe on stdin still holds; a sandbox may refuse this call.
        print(error, file=sys.stderr)  # noqa: T201
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _before_fork() -> None:
    global _forking_pid  # noqa: PLW0603 - os.register_at_fork passes no arguments
    _forking_pid = os.getpid()


VARIABLE = "MLTOP_DEMO_RANK"
BATCH = 2
STEPS = 100_000
HEALTHY_STEPS = 4  # at least


@dataclass
class RankSetup:
    """``stuck_after_s``: seconds from its first step after which this rank's dataset is stuck, None for never."""

    rank: int
    world_size: int
    parent_pid: int
    step_s: float
    hung_fd: int
    store_fd: int
    inbox_fd: int
    outbox_fds: list[int]
    stuck_after_s: float | None = None
    may_fall_back: bool = False

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def dataset(self) -> ShardDataset:
        began_at: list[float] = []  # monotonic s of the first step: before it torch may be imported for a minute

        def is_stuck_at(index: int) -> bool:
            now = time.monotonic()
            began_at[:] = began_at or [now]
            is_due = self.stuck_after_s is not None and now >= began_at[0] + self.stuck_after_s
            return is_due and index >= HEALTHY_STEPS * BATCH

        return ShardDataset(STEPS * BATCH, is_stuck_at, self.report_hang)

    def report_hang(self) -> None:
        os.write(self.hung_fd, f"{time.time():.6f}\n".encode())


def begin() -> RankSetup:
    """The first call of a training script: from here on the process dies with its parent."""
    setup = RankSetup(**json.loads(os.environ[VARIABLE]))
    tie_to_parent(setup.parent_pid)
    # Any process of this user may read our stack, where Yama restricts that to ancestors (ptrace_scope 1). A kernel
    # without Yama answers EINVAL and restricts nothing.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
    return setup
