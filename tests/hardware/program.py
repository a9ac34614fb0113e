"""The commands of the mltop that is tested, started as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context


@dataclass
class Said:
    """``began_s`` and ``ended_s``: of CLOCK_MONOTONIC."""

    data: Any
    began_s: float
    ended_s: float


def environment() -> dict[str, str]:
    """Ours, without the Slurm job that this may run in: mltop would look at all of its nodes."""
    return {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}


def start(context: Context, *words: str, timeout_s: float, **env: str) -> subprocess.CompletedProcess[str]:
    """`mltop WORDS`. Raises TimeoutExpired; NotTriedError when there is no mltop."""
    if not context.pythons.program:
        raise NotTriedError(context.pythons.no_program)
    return subprocess.run(
        [context.pythons.program, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        env={**environment(), **env},
    )


def say_json(context: Context, *words: str, timeout_s: float) -> Said:
    """What `mltop WORDS` prints as JSON. NotTriedError when it prints none."""
    began_s = time.monotonic()
    try:
        done = start(context, *words, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        raise NotTriedError(f"mltop {words[0]} did not end within {timeout_s:.0f} s") from None
    ended_s = time.monotonic()
    try:
        return Said(json.loads(done.stdout), began_s, ended_s)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and no word"]
        raise NotTriedError(f"mltop {words[0]}: {said[-1]}") from None
