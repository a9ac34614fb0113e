"""Captures among what a dead job left: judged anew, and joined with what its logs tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mltop.probes.investigate.capture import is_packed, rejudge
from mltop.probes.investigate.diagnosis import diagnosed
from mltop.probes.model import Evidence, JobReport
from mltop.probes.model.evidence.logs import ExplainedJob
from mltop.probes.model.gap import Gap
from mltop.probes.model.incident import Incident
from mltop.probes.record import BadRecording
from mltop.probes.record.captures import MANIFEST, VERDICT

_PACKED = (".tar.gz", ".tgz")


def is_capture(path: Path) -> bool:
    """A folder or an archive that `mltop capture` made."""
    if path.is_dir():
        return (path / MANIFEST).is_file() and (path / VERDICT).is_file()
    try:
        return path.name.endswith(_PACKED) and path.is_file() and is_packed(path)
    except BadRecording:
        return False


def jobs_in(captures: Sequence[Path], gaps: list[Gap]) -> Iterator[ExplainedJob]:
    for path in captures:
        try:
            material, reports = rejudge(path)
        except BadRecording as problem:
            gaps.append(Gap.about("capture", item=str(path), why=str(problem)))
            continue
        incidents = diagnosed(material.newest).incidents(reports)
        for report in reports:
            yield _job(path, report, incidents)


def _job(path: Path, report: JobReport, incidents: Sequence[Incident]) -> ExplainedJob:
    own = next((incident for incident in incidents if incident.job == report.job), None)
    job = ExplainedJob(report.job, report.world_size, own, files=[str(path)])
    job.is_told = own is None or bool(own.culprits)
    return job


def joined(jobs: list[ExplainedJob], captured: Sequence[ExplainedJob]) -> None:
    """Of one job the answer that names somebody, with the other's as evidence; the logs' where both do."""
    by_name = {job.job: job for job in jobs}
    for capture in captured:
        job = by_name.get(capture.job)
        if job is None:
            jobs.append(capture)
            continue
        job.files += capture.files
        if capture.incident is None:
            continue
        if job.incident is None or (not job.is_told and capture.is_told):
            job.incident, job.is_told = capture.incident, capture.is_told
        else:
            said = Evidence("stacks", capture.incident.headline, capture.incident.since, capture.files[0])
            job.incident.evidence.append(said)
