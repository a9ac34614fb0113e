"""The hang capture: everything needed to explain it later, in one directory; and the way back."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.diagnosis import Diagnosis, diagnosed, with_told
from mltop.probes.investigate.material import Material, judge, nodes_by_gap, rank_gaps
from mltop.probes.judge.health.rule import NO_EXPECTATIONS
from mltop.probes.judge.nodes import by_reason, folded
from mltop.probes.model import SCHEMA, Gap, Incident, JobReport, NodeState, Sample, to_json
from mltop.probes.model.text import clean
from mltop.probes.reach.sharing import Sharing
from mltop.probes.record import BadRecording, CaptureWriter, Saved, read_capture, read_recording
from mltop.probes.record.archives import SUFFIXES, is_archive, is_archive_name, stem_of
from mltop.probes.record.captures import FINDINGS, INCIDENTS, KERNEL_LINES
from mltop.probes.record.decoding import decode_sample
from mltop.probes.record.recordings import DecodeLine, sentence
from mltop.probes.system.files import BadFile

Describe = Callable[[Sequence[JobReport], Sequence[Sample]], str]
NodeSamples = Iterable[tuple[str, list[Sample]]]
MOST_JUDGED, LEAST_JUDGED = 2000, 2  # samples of all nodes, and of one: two tell whether a counter grows
HISTORY_S = 600.0  # of samples that a capture holds
MOST_OF_ONE_SECOND = 1000  # captures beside each other


def begin(path: Path | None, now: float, parent: Path | None = None) -> CaptureWriter:
    """A capture at ``path``, which must be new, or at a name that is free. Raises OSError.

    Of an archive (FILE.tar.gz) it is the folder beside it, which is packed at the end. ``parent``: of a chosen name.

    The default is mltop-capture-<local time> in the working directory, or in the temporary one when that takes no
    files; whatever stands there, a dangling link too, is passed by.
    """
    if path is not None and is_archive_name(path.name):
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return _at_a_free_name(path.parent, stem_of(path))
    if path is not None:
        return CaptureWriter(path)
    name = time.strftime("mltop-capture-%Y%m%d-%H%M%S", time.localtime(now))
    if parent is not None:
        return _at_a_free_name(parent, name)
    with contextlib.suppress(OSError):  # it takes no files, or was removed
        return _at_a_free_name(Path.cwd(), name)
    return _at_a_free_name(Path(tempfile.gettempdir()), name)


def _at_a_free_name(parent: Path, name: str) -> CaptureWriter:
    for number in range(1, MOST_OF_ONE_SECOND):
        with contextlib.suppress(FileExistsError):
            return CaptureWriter(parent / (name if number == 1 else f"{name}-{number}"))
    raise FileExistsError(
        errno.EEXIST, f"and {MOST_OF_ONE_SECOND - 1} more of this name exist already", str(parent / name)
    )


def pack(writer: CaptureWriter, path: Path | None) -> None:
    """Makes one file of a finished capture: ``path``, else one named as its folder. Raises OSError and BadFile."""
    writer.pack(path if path is not None else writer.directory.with_name(writer.directory.name + SUFFIXES[0]))


def stacks_object(material: Material, reports: list[JobReport], incidents: Sequence[Incident]) -> dict[str, object]:
    """The object `mltop stacks --json` prints; ``gaps``: ranks that may be missing from it, and what would help;
    ``unassigned``: Python processes of no job.
    """
    return {
        "schema": SCHEMA,
        "nodes": material.nodes,
        "incidents": incidents,
        "jobs": reports,
        "not_answered": material.not_answered,
        "gaps": [{"node": node, **asdict(gap)} for node, gap in rank_gaps(material)],
        "unassigned": [
            {"node": sample.node, **asdict(process)} for sample in material.newest for process in sample.unassigned
        ],
    }


def write_round(writer: CaptureWriter, material: Material, samples: NodeSamples | None = None) -> None:
    """Writes what a running dump knows so far, so that a capture that is cut off holds it.

    ``samples``: (node, all that are known of it), where that is more than the dump's verdict needed.
    """
    writer.nodes(material.nodes, material.connections)
    writer.add_dumps(material.dumps)
    writer.add_records(material.records.values())
    for node, node_samples in material.samples.items() if samples is None else samples:
        if node_samples:
            writer.add_samples(node, node_samples)


def finish_capture(
    writer: CaptureWriter,
    material: Material,
    reports: list[JobReport],
    describe: Describe,
    *,
    samples: NodeSamples | None = None,
    incidents: Sequence[Incident] = (),
) -> None:
    """Writes everything else: the verdict, what is wrong with the nodes, and what is missing.

    ``samples`` as in ``write_round``; ``incidents``: what is told of it all, where somebody watched it for longer.
    """
    recent = _Recent(len(material.nodes))
    write_round(writer, material, recent.seeing(material.samples.items() if samples is None else samples))
    for state, reason, nodes in by_reason(material.not_answered):
        writer.problem(f"{folded(nodes)} did not answer: {reason or state}")
    for gap, nodes in nodes_by_gap(material):
        writer.problem(f"{folded(nodes)}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else ""))
    for report in reports:
        if report.error:
            writer.problem(f"job {report.job or 'without a name'}: {report.error}")
    if not material.dumps and not writer.problems:
        writer.problem("no stack was dumped: no training rank was found")
    diagnosis = diagnosed(recent.samples)
    incidents = incidents or diagnosis.incidents(reports)
    writer.add("verdict.json", to_json(stacks_object(material, reports, incidents)).encode())
    writer.add("verdict.txt", describe(reports, material.newest).encode())
    writer.add(INCIDENTS, to_json(list(incidents)).encode())
    writer.add(
        FINDINGS, to_json([finding for finding in diagnosis.health.findings() if finding.until is None]).encode()
    )
    writer.add(KERNEL_LINES, recent.kernel_text().encode())
    writer.finish()


def most_of_a_node(nodes: int) -> int:
    """How many samples of each can be judged within a second or two."""
    return max(LEAST_JUDGED, MOST_JUDGED // max(1, nodes))


class _Recent:
    """The last samples of each node, as many as can be judged within a second or two, of those that pass."""

    def __init__(self, nodes: int) -> None:
        self._most = most_of_a_node(nodes)
        self.samples: list[Sample] = []
        self._newest: list[Sample] = []

    def seeing(self, samples: NodeSamples) -> NodeSamples:
        for node, of_node in samples:
            self.samples += of_node[-self._most :]
            self._newest += of_node[-1:]
            yield node, of_node

    def kernel_text(self) -> str:
        """What the kernels said, by time: "2026-11-23T07:14:33Z node01 xid 79 NVRM: …"."""
        events = [(event.at, sample.node, event) for sample in self._newest for event in sample.kernel_events]
        lines = []
        for at, node, event in sorted(events, key=lambda event: event[:2]):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
            code = "" if event.code is None else f" {event.code}"
            lines.append(f"{when} {clean(node)} {event.kind}{code} {clean(event.text)}\n")
        return "".join(lines)


def load(path: Path, decode_line: DecodeLine = decode_sample) -> Saved:
    """Reads a capture (a directory or a .tar.gz), or a recording file. Raises BadRecording, which says what is wrong
    with it. ``decode_line`` as of ``read_recording``.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadRecording(f"{path} does not exist") from None
        raise BadRecording(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if is_folder or is_packed(path):
        return read_capture(path, Sharing().stacks, decode_line)
    recording = read_recording(path, decode_line)
    gaps = [Gap("recording", f"{path.name} is cut off")] if recording.cut_off else []
    return Saved([NodeState(node, "live") for node in recording.samples], recording.samples, gaps=gaps)


def is_packed(path: Path) -> bool:
    """Whether a file is a capture in an archive. Raises BadRecording."""
    try:
        return is_archive(path)
    except (OSError, BadFile) as error:
        raise BadRecording(sentence(error)) from None


def material_of(saved: Saved) -> Material:
    """What a verdict is made from: as in a live session, the last minutes before each node's newest sample."""
    sharing, minutes = Sharing(), {}
    for node, samples in saved.samples.items():
        *earlier, newest = samples.since(samples.newest_at - HISTORY_S)
        minutes[node] = [*map(sharing.ranks_of, earlier), newest]
    records = {(told.node, told.pid): told for told in saved.records}
    return Material(saved.nodes, minutes, saved.dumps, saved.not_answered, saved.gaps, records=records)


def retold(
    path: Path, job: str | None = None, thresholds: Mapping[str, float] = NO_EXPECTATIONS.thresholds
) -> tuple[Material, list[JobReport], list[Incident]]:
    """What a capture or a recording holds, its verdicts made anew, and all that is told of it: from its whole samples,
    and with what was told then by who had watched for longer. Raises BadRecording.
    """
    saved = load(path)
    most = most_of_a_node(len(saved.samples))
    minutes = ([*own.since(own.newest_at - HISTORY_S)][-most:] for own in saved.samples.values())
    return judged_anew(saved, diagnosed([sample for of_node in minutes for sample in of_node], thresholds), job)


def judged_anew(
    saved: Saved, diagnosis: Diagnosis, job: str | None = None
) -> tuple[Material, list[JobReport], list[Incident]]:
    """The same of what was read; ``diagnosis`` has seen its samples."""
    material = material_of(saved)
    rhythms = ((motion.job_key, motion.rhythm) for motion in diagnosis.motions.motions())
    material.rhythms = {key: rhythm.step_s for key, rhythm in rhythms if rhythm is not None}
    reports = judge(material, job)
    return material, reports, with_told(diagnosis.incidents(reports), saved.incidents, job)


def rejudge(path: Path, job: str | None = None) -> tuple[Material, list[JobReport]]:
    """What a capture holds, and its verdict made anew from that. Raises BadRecording."""
    material = material_of(load(path))
    return material, judge(material, job)
