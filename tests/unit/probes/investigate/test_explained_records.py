"""Flight records among what `mltop explain` is given: alone, and beside logs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import ExplainedJob
from tests.documents import ROOT

GLOO = ROOT / "tests/fixtures/records/gloo"
TIMEOUT = (
    "[rank{rank}]:[E1103 10:10:05.123456789 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\n"
)


def told(*paths: Path) -> list[ExplainedJob]:
    return explain([str(path) for path in paths], lambda _: None).jobs


def records(folder: Path, case: str) -> Path:
    """What a real job left."""
    folder.mkdir(exist_ok=True)
    for path in GLOO.glob(f"{case}_*"):
        shutil.copy(path, folder / path.name)
    return folder


def test_records_alone_name_who_is_in_another_operation(tmp_path: Path) -> None:
    (job,) = told(records(tmp_path / "fr", "mismatch.end.json"))
    assert job.incident is not None and job.is_told
    assert [culprit.rank for culprit in job.incident.culprits] == [1]
    assert {line.source for line in job.incident.evidence} == {"flight_recorder"}


def test_records_of_some_ranks_alone_cannot_tell(tmp_path: Path) -> None:
    (job,) = told(records(tmp_path / "fr", "missing.end.pickle"))
    assert job.incident is not None and not job.is_told and job.incident.culprits == []


def test_beside_logs_that_name_nobody_the_records_do(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in range(3):
        (logs / f"rank{rank}.log").write_text(f"step 3 of rank {rank}\n" + TIMEOUT.format(rank=rank))
    (alone,) = told(logs)
    assert alone.incident is not None and alone.incident.culprits == []
    (job,) = told(logs, records(tmp_path / "fr", "mismatch.end.json"))
    assert job.incident is not None and [culprit.rank for culprit in job.incident.culprits] == [1]
    assert job.job == alone.job == job.incident.job and len(job.files) == 6
    assert {line.source for line in job.incident.evidence} == {"flight_recorder", "log"}


@pytest.mark.parametrize("case", ["mismatch.end.json", "missing.end.pickle"])
def test_logs_that_name_somebody_are_not_overruled(case: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in range(3):
        (logs / f"rank{rank}.log").write_text(f"step 3 of rank {rank}\n")
    (logs / "rank2.log").write_text(
        'Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad\n'
    )
    (job,) = told(logs, records(tmp_path / "fr", case))
    assert job.incident is not None and [culprit.rank for culprit in job.incident.culprits] == [2]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_record_of_last_week_accuses_nobody(tmp_path: Path, is_done: bool) -> None:
    """Beside a job that ended well, or that began after it was written."""
    logs = tmp_path / "logs"
    logs.mkdir()
    end = "{'train_runtime': 331.7}" if is_done else TIMEOUT.format(rank=0)
    for rank in range(3):
        (logs / f"rank{rank}.log").write_text(f"2026-11-03 10:00:00 step 3 of rank {rank}\n{end}\n")
    folder = records(tmp_path / "fr", "mismatch.end.json")
    for path in folder.iterdir():
        os.utime(path, (0, 1_700_000_000))
    found = explain([str(logs), str(folder)], lambda _: None)
    assert all(job.incident is None or not job.incident.culprits for job in found.jobs)
    assert sum(gap.source == "flight_recorder" for gap in found.gaps) == 3


def test_a_hostile_record_is_a_gap(tmp_path: Path) -> None:
    folder = records(tmp_path / "fr", "mismatch.end.json")
    (folder / "nccl_trace_rank_7").write_bytes(b"\x80\x02cos\nsystem\n(S'touch owned'\ntR.")
    found = explain([str(folder)], lambda _: None)
    assert len(found.gaps) == 1 and not Path("owned").exists()
