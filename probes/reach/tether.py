"""How a process is started that the kernel kills when we die (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import functools
import shutil
import subprocess

_DEADLINE_S = 5.0


@functools.cache
def tether() -> tuple[str, ...]:
    """What to write before a command for that: setpriv(1) of util-linux 2.33 or newer; empty where there is none.

    The other way, Python's preexec_fn, costs a fork(2), which copies our page tables: 9 ms of a process with 150 MB,
    where this takes 1 ms. The signal comes when the thread that started the process ends.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    try:
        told = subprocess.run(
            [program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (program, "--pdeathsig", "KILL", "--") if b"--pdeathsig" in told.stdout else ()
