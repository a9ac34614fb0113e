"""Flight records and captures among what a dead job left: judged, and joined with what its logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mltop.probes.collect.records.files import MOST_BYTES
from mltop.probes.collect.records.flight_recorder import FlightRecord, MemberLists, read_flight_record
from mltop.probes.investigate.capture import is_packed, rejudge
from mltop.probes.investigate.diagnosis import diagnosed
from mltop.probes.judge.evidence.progress import judge_progress
from mltop.probes.judge.evidence.progress_words import progress_evidence
from mltop.probes.judge.values import grouped
from mltop.probes.model import Culprit, Evidence, Incident, JobReport, Suffers
from mltop.probes.model.evidence.collectives import GroupProgress, ProgressVerdict
from mltop.probes.model.evidence.logs import ExplainedJob
from mltop.probes.model.gap import Gap
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.text import plain_text
from mltop.probes.record import BadRecording
from mltop.probes.record.captures import MANIFEST, VERDICT
from mltop.probes.record.decoding import NoCapture

BEFORE_S = 3600.0  # clocks of nodes differ; a copy of a file is as new as it likes
OTHER_TIME = "is older than the job whose logs lie beside it, or that job ended well: it is not used"
MOST_BESIDE = 4  # lines of evidence beside those of the logs


# Of all records together: what is read (at 10 MB/s), and what is kept: groups, their members, and operations.
MOST_READ, MOST_KEPT = 1 << 30, 1_000_000
TOO_MUCH = "is not read: with the records before it, it is more than mltop keeps"


def read_records(paths: Sequence[str], gaps: list[Gap]) -> Iterator[tuple[str, FlightRecord]]:
    """Each with its path, as far as all of them can be kept."""
    members, seen, left, room = MemberLists(), set[tuple[str, str]](), MOST_READ, MOST_KEPT
    for path in paths:
        size = 0
        with suppress(OSError):  # what cannot be read is a gap of its record
            size = Path(path).stat().st_size
        if left < size <= MOST_BYTES:
            gaps.append(Gap.about("flight_recorder", item=path, why=TOO_MUCH))
            continue
        record = read_flight_record(path, shown=plain_text(path), members=members)
        left -= min(size, MOST_BYTES)
        groups = {(each.group.name, each.group.description): each.group for each in record.progress}
        kept = sum(1 + len(each.operations) for each in record.progress)
        kept += sum(len(group.ranks or ()) for name, group in groups.items() if name not in seen)
        if kept > room:
            gaps.append(Gap.about("flight_recorder", item=path, why=TOO_MUCH))
            continue
        room -= kept
        seen.update(groups)
        yield path, record


def join_records(jobs: list[ExplainedJob], records: Mapping[str, FlightRecord], gaps: list[Gap]) -> None:
    """The records of each folder are of the job whose logs lie nearest, or a job of their own. Of one job the answer
    that names somebody, with the other's as evidence; the logs' where both do: they have the order of what failed, and
    a record may be of an earlier hour.
    """
    of_logs = list(jobs)
    for folder, files in grouped(records, lambda path: Path(path).absolute().parent).items():
        read = [records[path] for path in files]
        gaps += [record.gap for record in read if record.gap is not None]
        job = _nearest(of_logs, folder)
        strange = [record for record in read if job is not None and not _is_of(record, job)]
        known = [record for record in read if job is None or _is_of(record, job)]
        gaps += [Gap.about("flight_recorder", item=record.file, why=OTHER_TIME) for record in strange]
        progress = [each for record in known for each in record.progress]
        if not progress:
            continue
        verdicts = judge_progress(progress, job.world_size if job is not None else _world_size(progress))
        if job is None:
            jobs.append(_of_records(plain_text(str(folder)), files, progress, verdicts))
            continue
        job.files += files
        if verdicts:
            _add(job, verdicts)


def _is_of(record: FlightRecord, job: ExplainedJob) -> bool:
    """Whether it may be of this job: one that ended well leaves none, and none is older than its job."""
    is_older = record.at is not None and job.first_at is not None and record.at < job.first_at - BEFORE_S
    return job.incident is not None and not is_older


def _add(job: ExplainedJob, verdicts: Sequence[ProgressVerdict]) -> None:
    told = _incident(job.job, verdicts)
    if told.culprits and not (job.incident is not None and job.is_told):
        told.evidence += job.incident.evidence if job.incident is not None else []
        job.incident, job.is_told = told, True
    elif job.incident is not None:
        job.incident.evidence += told.evidence[:MOST_BESIDE]


def _of_records(
    folder: str, files: Sequence[str], progress: Sequence[GroupProgress], verdicts: Sequence[ProgressVerdict]
) -> ExplainedJob:
    """A job that ended well leaves none: where they show nothing that waits, the answer is that it cannot be told."""
    job = ExplainedJob(folder, _world_size(progress), files=list(files))
    if verdicts:
        job.incident = _incident(folder, verdicts)
    else:
        ranks = ranks_text(sorted({each.rank for each in progress if each.rank is not None}))
        text = f"the flight records of {ranks} show nothing that waits, and how many ranks there were is not known"
        job.incident = Incident(f"explain:{folder}:records", "hang", "critical", text, folder, confidence="low")
    job.is_told = bool(job.incident.culprits)
    return job


def _incident(name: str, verdicts: Sequence[ProgressVerdict]) -> Incident:
    first = verdicts[0]
    lines = [line for verdict in verdicts for line in progress_evidence(verdict)]
    nodes = {each.rank: each.node for each in first.counters}
    text = lines[0].text
    return Incident(
        f"explain:{name}:{first.kind}",
        "hang",
        "critical",
        text if first.culprits else f"the blocking rank is unknown: {text}",
        name,
        since=first.since,
        culprits=[
            Culprit(rank, nodes.get(rank, ""), None, text, "", True, how="elsewhere" if first.sides else "stands")
            for rank in first.culprits
        ],
        suffers=Suffers(
            ranks=Ranges.of({*first.waiting, *first.culprits, *first.missing}),
            waiting=Ranges.of(first.waiting),
            waits_in=first.operation.name if first.operation is not None else "",
        ),
        evidence=lines,
        confidence=first.confidence if first.culprits else "low",
    )


def _world_size(progress: Sequence[GroupProgress]) -> int | None:
    """That of the largest group."""
    return max((len(each.group.ranks) for each in progress if each.group.ranks is not None), default=None)


def _nearest(jobs: Sequence[ExplainedJob], folder: Path) -> ExplainedJob | None:
    """The only job there is, or the one whose files lie nearest; None where several lie as near."""
    if len(jobs) < 2:
        return jobs[0] if jobs else None
    near = [(max((_common(file, folder) for file in job.files), default=0), job) for job in jobs]
    most = max(depth for depth, _ in near)
    nearest = [job for depth, job in near if depth == most]
    return nearest[0] if len(nearest) == 1 else None


def _common(file: str, folder: Path) -> int:
    """How many folders of their paths are the same."""
    count = 0
    for theirs, ours in zip(Path(file).absolute().parent.parts, folder.parts, strict=False):
        if theirs != ours:
            break
        count += 1
    return count


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
        except NoCapture:
            gaps.append(Gap.about("log", item=str(path), why="is an archive: unpack it first"))
            continue
        except BadRecording as problem:
            gaps.append(Gap.about("capture", item=str(path), why=str(problem).removeprefix(str(path)).lstrip(": ")))
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
