"""Captures among what `mltop explain` is given: alone, packed, beside logs of the same job, broken."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mltop.probes.investigate.capture import begin, finish_capture, pack
from mltop.probes.investigate.explain import explain
from mltop.probes.investigate.explained_records import joined
from mltop.probes.investigate.material import judge
from mltop.probes.model import Evidence, Incident
from mltop.probes.model.evidence.logs import ExplainedJob
from mltop.probes.model.verdict import Culprit
from mltop.probes.record.captures import VERDICT
from tests.builders.hung import hung_material

CRASH = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no\n'


def captured(to: Path, packed: bool = False) -> Path:
    material = hung_material()
    writer = begin(to, 0.0)
    finish_capture(writer, material, judge(material), lambda *_: "words")
    if packed:
        pack(writer, to)
    return to if packed else writer.directory


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", [False, True])
def test_a_capture_is_judged_anew(tmp_path: Path, packed: bool, below: bool) -> None:
    path = captured(tmp_path / ("c.tar.gz" if packed else "c"), packed)
    (job,) = explain([str(tmp_path if below else path)], lambda _: None).jobs
    assert (job.job, job.files, job.world_size, job.is_told) == ("j", [str(path)], 2, True)
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits] == [1]


def test_a_captures_own_files_are_no_logs(tmp_path: Path) -> None:
    captured(tmp_path / "c")
    (tmp_path / "rank_0.log").write_text(CRASH)
    found = explain([str(tmp_path)], lambda _: None)
    assert [file.path for file in found.files] == [str(tmp_path / "rank_0.log")]
    assert sorted(len(job.files) for job in found.jobs) == [1, 1]


def test_a_broken_capture_is_a_gap_and_the_logs_are_told(tmp_path: Path) -> None:
    (captured(tmp_path / "c") / VERDICT).write_text("{")
    (tmp_path / "rank_0.log").write_text(CRASH)
    found = explain([str(tmp_path)], lambda _: None)
    assert [(gap.source, gap.item) for gap in found.gaps] == [("capture", str(tmp_path / "c"))]
    (job,) = found.jobs
    assert job.incident is not None and job.incident.headline.startswith("rank 0 failed")


@pytest.mark.parametrize("inside", ["rank_0.log", "logs/rank_0.log"])
@pytest.mark.parametrize("below", [False, True])
def test_packed_logs_must_be_unpacked_first(inside: str, below: bool, tmp_path: Path) -> None:
    path = tmp_path / "logs.tar.gz"
    (tmp_path / "rank.txt").write_text(CRASH)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "rank.txt", inside)
    found = explain([str(tmp_path if below else path)], lambda _: None)
    assert [(gap.item, gap.why) for gap in found.gaps] == [(str(path), "is an archive: unpack it first")]


def job_of(source: str, *culprits: int, told: bool = True) -> ExplainedJob:
    incident = Incident(source, "hang", "critical", f"{source} says so", "j", since=5.0)
    incident.culprits = [Culprit(rank, "", None, "", "", True) for rank in culprits]
    incident.evidence = [Evidence("log", source)]
    return ExplainedJob("j", 2, incident, files=[source], is_told=told)


@pytest.mark.parametrize(
    ("logs", "capture", "names", "evidence"),
    [
        (job_of("logs", 0), job_of("capture", 1), "logs", ["logs", "capture says so"]),
        (job_of("logs", told=False), job_of("capture", 1), "capture", ["capture"]),
        (job_of("logs", told=False), job_of("capture", told=False), "logs", ["logs", "capture says so"]),
        (ExplainedJob("j", files=["logs"]), job_of("capture", 1), "capture", ["capture"]),
        (job_of("logs", 0), ExplainedJob("j", files=["capture"]), "logs", ["logs"]),
    ],
)
def test_of_one_job_the_answer_that_names_somebody(
    logs: ExplainedJob, capture: ExplainedJob, names: str, evidence: list[str]
) -> None:
    jobs = [logs]
    joined(jobs, [capture])
    (job,) = jobs
    assert job.files == ["logs", "capture"]
    assert job.incident is not None
    assert (job.incident.id, [each.text for each in job.incident.evidence]) == (names, evidence)
