"""Running `mltop probe` in tests: a state directory of its own, the result as an object, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

MLTOP = (sys.executable, "-m", "mltop")
PROBE_MARK = "mltop.probes.active"  # in the command line of every probe process


@dataclass
class Probed:
    code: int
    report: dict[str, Any]
    stderr: str


def environment(state: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "MLTOP_STATE_DIR": str(state), **more}


def probe(state: Path, *args: str, timeout_s: float = 120.0, force: bool = True, **env: str) -> Probed:
    """`mltop probe ARGS --json`, to its end. ``force``: jobs of other tests run here at the same time."""
    done = subprocess.run(
        [*MLTOP, "probe", *args, "--json", *(["--force"] if force else [])],
        env=environment(state, **env),
        input=f"{platform.node()}\n" if force else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Probed(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)


def probe_processes(mark: str) -> list[int]:
    """Probe processes of ours whose environment has ``mark`` (tests run side by side)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if PROBE_MARK in (entry / "cmdline").read_text(errors="replace") and mark in (
                    entry / "environ"
                ).read_text(errors="replace"):
                    found.append(int(entry.name))
    return found


def wait_gone(mark: str, timeout_s: float = 15.0) -> None:
    wait_until(lambda: not probe_processes(mark), timeout_s, "the end of all probe processes")
