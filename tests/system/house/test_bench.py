"""The benchmarks start and print their tables; their figures are for people (`python -m tests.bench`)."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from tests.bench.__main__ import BENCHES

TABLES = {
    "screen": "first full paint",
    "agent": "NVML calls per GPU and second",
    "stacks": "8 ranks",
    "merge": "merge 4096 digests",
    "reader": "simulated streams",
    "dump": "stack dump over",
    "fleet": "screen over",
    "connect": "mltop, to the last first sample",
    "matmul": "matmul probe on CPUs",
    "all_reduce": "all-reduce with",
    "text": "cleaning text",
    "incidents": "64 nodes, 100 jobs",
    "explain": "explain, cost",
    "who": "looks into processes",
    "stall": "healthy jobs were said to stand",
    "past": "64 nodes of 8 GPUs at 1 Hz",
}


# They need a minute each on a busy machine, and their programs are tested by themselves.
LONG = ("all_reduce", "connect", "fleet", "matmul", "merge", "reader")


@pytest.mark.parametrize("name", LONG)
def test_a_long_benchmark_is_there(name: str) -> None:
    assert "quick" in inspect.signature(BENCHES[name].main).parameters


@pytest.mark.parametrize("name", [name for name in BENCHES if name not in LONG])
def test_a_benchmark_starts(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", name], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert TABLES[name] in done.stdout, done.stdout
