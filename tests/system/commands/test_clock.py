"""A clock that is set while mltop records: no sample is lost, no collector fails, and the file is judged whole."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.libc import FakeLibc, compiled
from tests.waiting import wait_until

HOUR_S = 3600


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_clock_that_is_set_costs_no_sample(step_s: int, tmp_path: Path) -> None:
    libc = FakeLibc(tmp_path / "libc", tmp_path / "root", compiled(tmp_path))
    path = tmp_path / "run.jsonl"
    argv = [sys.executable, "-m", "mltop", "record", "-o", str(path), "--interval", "0.5", "--for", "25"]
    process = subprocess.Popen(argv, env={**os.environ, **libc.env()}, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(samples(path)) >= 3, 60.0, "samples")
    libc.set_clock(step_s)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 0 and "Traceback" not in said
    recorded = samples(path)
    times = [sample["sampled_at"] for sample in recorded]
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert sum(abs(step - step_s) < HOUR_S / 2 for step in steps) == 1
    assert all(0 < step < 10 or abs(step - step_s) < HOUR_S / 2 for step in steps)
    assert [gap for sample in recorded for gap in sample["gaps"] if "failed" in gap["why"]] == []
    judged = subprocess.run(
        [sys.executable, "-m", "mltop", "check", "--recording", str(path), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert judged.returncode in (0, 1, 2, 3) and "nodes" in json.loads(judged.stdout)


def samples(path: Path) -> list[dict]:
    """What is written by now, the last line perhaps in part."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [sample for sample in map(json.loads, lines) if "sampled_at" in sample]
