"""A real job that hangs and has left flight records: `mltop stacks` reads them, and they say what the stacks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.records.of_ranks import RecordReading
from mltop.probes.model import RankSample
from mltop.probes.model.evidence.records import RankRecords
from tests.builders.flight_records import as_pickle, operation, record
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
        wait_until(lambda: all(Path(f"{prefix}{rank}").exists() for rank in range(RANKS)), 240.0)
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
    def judged() -> tuple[dict[str, Any], dict[str, Any]] | None:
        report = stacks("--via", "local")
        job = of_prefix(report, prefix)
        found = [one for one in report["incidents"] if one["job"] == job["job"]]
        assert len(found) <= 1
        return (job, found[0]) if found else None

    # On a busy machine the ranks may still move in the first dump: they have only just written their records.
    job, incident = wait_until(judged, 60.0, "an incident")
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


def test_only_what_was_written_since_is_read_again(tmp_path: Path) -> None:
    """A watchdog tells of a timeout first, and writes what it knows seconds later."""
    prefix = tmp_path / "fr_rank_"
    environ = {**os.environ, "TORCH_FR_DUMP_TEMP_FILE": str(prefix)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as process:
        rank = RankSample(process.pid, 0, job="j", uid=os.getuid(), started_at=time.time() - 3600.0)

        def read(newer_s: float | None = None) -> list[RankRecords]:
            return list(RecordReading([rank], threading.Event(), newer_s).finished())

        assert read() == [] and read(10.0) == []
        Path(f"{prefix}0").write_bytes(as_pickle(record([operation(1, state="scheduled")])))
        (first,), (again,) = read(), read(10.0)
        assert first == again and [each["enqueued"] for each in again.progress] == [1]  # type: ignore[index]
        os.utime(f"{prefix}0", (time.time() - 60.0,) * 2)
        assert read() and read(10.0) == []
        process.communicate(b"\n")
