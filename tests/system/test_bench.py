"""The benchmarks start and print their tables; their figures are for people (`python -m tests.bench`)."""

from __future__ import annotations

import subprocess
import sys


def test_every_benchmark_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    tables = ("first full paint", "NVML calls per GPU and second", "8 ranks", "merge 4096 digests", "simulated streams")
    for words in (*tables, "stack dump over", "screen over", "matmul probe on CPUs", "all-reduce with"):
        assert words in done.stdout, done.stdout
