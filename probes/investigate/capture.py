"""The hang capture: everything needed to explain it later, in one directory; and the way back."""

from __future__ import annotations

import contextlib
import errno
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.material import Interner, Material, judge, nodes_by_gap, rank_gaps
from mltop.probes.judge.nodes import by_reason, folded
from mltop.probes.model import SCHEMA, Gap, JobReport, NodeState, Sample, to_json
from mltop.probes.reach.records import HISTORY_S
from mltop.probes.record import BadRecording, CaptureWriter, Saved, read_capture, read_recording

Describe = Callable[[list[JobReport]], str]
NodeSamples = Iterable[tuple[str, list[Sample]]]
MOST_OF_ONE_SECOND = 1000  # captures beside each other


def begin(directory: Path | None, now: float) -> CaptureWriter:
    """A capture at ``directory``, which must be new, or at a name that is free. Raises OSError.

    The default is mltop-capture-<local time> in the working directory, or in the temporary one when that takes no
    files; whatever stands there, a dangling link too, is passed by.
    """
    if directory is not None:
        return CaptureWriter(directory)
    name = time.strftime("mltop-capture-%Y%m%d-%H%M%S", time.localtime(now))
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


def stacks_object(material: Material, reports: list[JobReport]) -> dict[str, object]:
    """The object `mltop stacks --json` prints; ``gaps``: ranks that may be missing from it, and what would help."""
    return {
        "schema": SCHEMA,
        "nodes": material.nodes,
        "jobs": reports,
        "not_answered": material.not_answered,
        "gaps": [{"node": node, **asdict(gap)} for node, gap in rank_gaps(material)],
    }


def write_round(writer: CaptureWriter, material: Material, samples: NodeSamples | None = None) -> None:
    """Writes what a running dump knows so far, so that a capture that is cut off holds it.

    ``samples``: (node, all that are known of it), where that is more than the dump's verdict needed.
    """
    writer.nodes(material.nodes, material.connections)
    writer.add_dumps(material.dumps)
    for node, node_samples in material.samples.items() if samples is None else samples:
        if node_samples:
            writer.add_samples(node, node_samples)


def finish_capture(
    writer: CaptureWriter,
    material: Material,
    reports: list[JobReport],
    describe: Describe,
    samples: NodeSamples | None = None,
) -> None:
    """Writes everything else: the verdict and what is missing. ``samples`` as in ``write_round``."""
    write_round(writer, material, samples)
    for state, reason, nodes in by_reason(material.not_answered):
        writer.problem(f"{folded(nodes)} did not answer: {reason or state}")
    for gap, nodes in nodes_by_gap(material):
        writer.problem(f"{folded(nodes)}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else ""))
    for report in reports:
        if report.error:
            writer.problem(f"job {report.job or 'without a name'}: {report.error}")
    if not material.dumps and not writer.problems:
        writer.problem("no stack was dumped: no training rank was found")
    writer.add("verdict.json", to_json(stacks_object(material, reports)).encode())
    writer.add("verdict.txt", describe(reports).encode())
    writer.finish()


def load(path: Path) -> Saved:
    """Reads a capture directory, or a recording file. Raises BadRecording, which says what is wrong with it."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadRecording(f"{path} does not exist") from None
        raise BadRecording(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if is_folder:
        return read_capture(path, Interner().stacks)
    recording = read_recording(path)
    gaps = [Gap("recording", f"{path.name} is cut off")] if recording.cut_off else []
    return Saved([NodeState(node, "live") for node in recording.samples], recording.samples, gaps=gaps)


def material_of(saved: Saved) -> Material:
    """What a verdict is made from: as in a live session, the last minutes before each node's newest sample."""
    interner, minutes = Interner(), {}
    for node, samples in saved.samples.items():
        *earlier, newest = samples.since(samples.newest_at - HISTORY_S)
        minutes[node] = [*map(interner.ranks_of, earlier), newest]
    return Material(saved.nodes, minutes, saved.dumps, saved.not_answered, saved.gaps)


def rejudge(path: Path, job: str | None = None) -> tuple[Material, list[JobReport]]:
    """What a capture holds, and its verdict made anew from that. Raises BadRecording."""
    material = material_of(load(path))
    return material, judge(material, job)
