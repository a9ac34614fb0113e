"""Programs of this machine that are asked before anything connects: ssh for its options, squeue for jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def run_program(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The end of ``command``, which gets no input; its output is text, whatever bytes it writes.

    Raises OSError when it cannot be started and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
