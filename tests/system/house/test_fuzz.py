"""Frames, samples and files, bent for a little while; `python -m tests.fuzz SECONDS` does so for longer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.fuzz.__main__ import ATTACKS

SECONDS = 3


@pytest.mark.parametrize("what", ATTACKS)
def test_nothing_crashes_or_hangs_or_grows(what: str) -> None:
    """The same seed in every run; in a process of its own, whose memory it measures itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", str(SECONDS), what],
        cwd=ROOT,
        env={**os.environ, "FUZZ_SEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert int(done.stdout.split()[1]) >= 2, "healthy, then bent"
