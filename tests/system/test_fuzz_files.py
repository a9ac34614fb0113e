"""The readers of files, given everything for a little while; `python -m tests.fuzz SECONDS` does so for longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import READERS

SECONDS = 6


@pytest.mark.parametrize("reader", READERS)
def test_no_file_makes_a_reader_crash_or_hang_or_grow(reader: str) -> None:
    """The same files in every run; in a process of its own, whose memory it measures itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", str(SECONDS), reader],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "FUZZ_SEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    count = int(done.stdout.split()[1])
    assert count >= 60, "a batch at least"
