"""A real job that hangs and has left flight records: `mltop stacks` reads them, and they say what the stacks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.waiting import wait_until

JOB = Path(__file__).with_name("job.py")
RANKS = 3

pytestmark = pytest.mark.jobs


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[Path]:
    """Of the records of a job that hangs."""
    prefix = tmp_path / "fr_rank_"
    (port,) = free_ports(1)
    of_job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    records = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": str(prefix)}
    environ = {**os.environ, **of_job, **records, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, str(JOB)], env={**environ, "RANK": str(rank)}) for rank in range(RANKS)]
    try:
        wait_until(lambda: all(Path(f"{prefix}{rank}").exists() for rank in range(RANKS)), 120.0)
        yield prefix
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def stacks(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "mltop", "stacks", "--json", *arguments],
                          capture_output=True, text=True, timeout=90, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def of_prefix(report: dict[str, Any], prefix: Path) -> dict[str, Any]:
    """The job whose records these are."""
    (job,) = [
        job
        for job in report["jobs"]
        if any(str(prefix) in each["file"] for told in job["progress"] for each in told["counters"])
    ]
    found: dict[str, Any] = job
    return found


def test_records_and_stacks_agree(prefix: Path, tmp_path: Path) -> None:
    report = stacks("--via", "local")
    job = of_prefix(report, prefix)
    (incident,) = [one for one in report["incidents"] if one["job"] == job["job"]]
    assert [culprit["rank"] for culprit in job["verdict"]["culprits"]] == [RANKS - 1]
    (told,) = job["progress"]
    assert (told["kind"], told["culprits"], told["waiting"], told["sequence"]) == ("never_entered", [2], [0, 1], 4)
    (line, place) = [one for one in incident["evidence"] if one["source"] == "flight_recorder"]
    assert line["text"].startswith(
        "rank 2 has not entered all_reduce 4 of default_pg (the last one launched was 3); ranks 0-1 wait in it "
        "(recorded at "
    )
    assert line["where"] == f"{prefix}2"
    assert "all_reduce 4 of default_pg was launched at <module> (records/job.py:" in place["text"]

    capture = tmp_path / "capture"
    subprocess.run([sys.executable, "-m", "mltop", "capture", "--via", "local", "-o", str(capture)],
                   check=True, capture_output=True, timeout=120)  # fmt: skip
    again = of_prefix(stacks("--recording", str(capture)), prefix)
    assert again["progress"] == job["progress"]


def test_old_ones_are_told_and_not_used(prefix: Path) -> None:
    for rank in range(RANKS):
        os.utime(f"{prefix}{rank}", (1e9, 1e9))
    report = stacks("--via", "local", "--samples", "1")
    gaps = [gap for job in report["jobs"] for gap in job["verdict"]["gaps"] if gap["source"] == "flight_recorder"]
    assert sorted(gap["item"] for gap in gaps if str(prefix) in gap["why"]) == ["0", "1", "2"]
    assert all(job["progress"] == [] for job in report["jobs"])
    assert all("an earlier job wrote it" in gap["why"] for gap in gaps)
