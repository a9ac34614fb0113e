"""mltop's own commands, run as a user does: from this checkout, whatever is installed beside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hardware import machine
from tests.hardware.checks import NotTriedError

DEV = Path(__file__).resolve().parents[2] / ".dev"
NEEDS = ("click", "msgspec", "rich", "ClusterShell", "psutil")
START = f"""
import sys, types
sys.path.insert(0, {str(DEV)!r})
package = types.ModuleType("mltop")
package.__path__ = [{str(DEV / "mltop")!r}]
sys.modules["mltop"] = package
sys.argv[0] = "mltop"
from mltop.tui.cli import main
main()
"""


@dataclass
class Said:
    """``began_s`` and ``ended_s``: of CLOCK_MONOTONIC."""

    data: Any
    began_s: float
    ended_s: float


def python() -> str:
    """A Python that has what mltop's commands need. NotTriedError when there is none."""
    for path in machine.candidates():
        has = machine.has(path, *NEEDS)
        if has and all(has):
            return path
    needed = ", ".join(NEEDS)
    fix = f"{sys.executable} -m pip install {DEV.parent}"
    raise NotTriedError(f"no Python here has {needed}, which mltop's commands need: {fix}")


def start(path: str, *words: str, timeout_s: float, **env: str) -> subprocess.CompletedProcess[str]:
    """`mltop WORDS` in the Python ``path``. Raises TimeoutExpired."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [path, "-c", START, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        env={**kept, **env},
    )


def say_json(path: str, *words: str, timeout_s: float) -> Said:
    """What `mltop WORDS` prints as JSON, in the Python ``path``. NotTriedError when it prints none."""
    began_s = time.monotonic()
    try:
        done = start(path, *words, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        raise NotTriedError(f"mltop {words[0]} did not end within {timeout_s:.0f} s") from None
    ended_s = time.monotonic()
    try:
        return Said(json.loads(done.stdout), began_s, ended_s)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and no word"]
        raise NotTriedError(f"mltop {words[0]}: {said[-1]}") from None
