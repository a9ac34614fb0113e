"""The hang capture: everything needed to explain it later, in one directory; and the way back."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.folding import folded
from mltop.probes.investigate.material import Material, judge, nodes_by_gap, rank_gaps
from mltop.probes.investigate.missing import by_reason
from mltop.probes.model import SCHEMA, Gap, JobReport, Sample, to_json
from mltop.probes.record import BadRecording, CaptureWriter, read_capture, read_recording

Describe = Callable[[list[JobReport]], str]
NodeSamples = Iterable[tuple[str, list[Sample]]]


def default_directory(now: float) -> Path:
    """mltop-capture-<local time> in the working directory, or in the temporary one when that takes no files."""
    name = time.strftime("mltop-capture-%Y%m%d-%H%M%S", time.localtime(now))
    try:
        parent = Path.cwd()
    except OSError:  # the working directory was removed
        parent = Path(tempfile.gettempdir())
    if not os.access(parent, os.W_OK):
        parent = Path(tempfile.gettempdir())
    candidates = [parent / name, *(parent / f"{name}-{number}" for number in range(2, 100))]
    return next(path for path in candidates if not path.exists())


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
    """What a running dump knows so far, so that a capture that is cut off holds it.

    ``samples``: (node, all that are known of it), where that is more than the dump's verdict needed.
    """
    writer.nodes(material.nodes, material.connections)
    writer.add_dumps(material.dumps)
    for node, known in material.samples.items() if samples is None else samples:
        if known:
            writer.add_samples(node, known)


def finish_capture(
    writer: CaptureWriter,
    material: Material,
    reports: list[JobReport],
    describe: Describe,
    samples: NodeSamples | None = None,
) -> None:
    """Everything else: the verdict and what is missing. ``samples`` as in ``write_round``."""
    write_round(writer, material, samples)
    for state, reason, nodes in by_reason(material.not_answered):
        writer.problem(f"{folded(nodes)} did not answer: {reason or state}")
    for gap, nodes in nodes_by_gap(material):
        writer.problem(f"{folded(nodes)}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else ""))
    if not material.dumps and not writer.problems:
        writer.problem("no stack was dumped: no training rank was found")
    writer.add("verdict.json", to_json(stacks_object(material, reports)).encode())
    writer.add("verdict.txt", describe(reports).encode())
    writer.finish()


def load(path: Path) -> Material:
    """A capture directory, or a recording file (samples only). BadRecording says what is wrong with it."""
    if not path.exists():
        raise BadRecording(f"{path} does not exist")
    if path.is_dir():
        capture = read_capture(path)
        gaps = [Gap("capture", problem) for problem in capture.problems]
        return Material(capture.nodes, capture.samples, capture.dumps, capture.not_answered, gaps)
    from mltop.probes.model import NodeState

    recording = read_recording(path)
    material = Material(gaps=[Gap("recording", f"{path.name} is cut off")] if recording.cut_off else [])
    for sample in recording.samples:
        material.samples.setdefault(sample.node, []).append(sample)
    material.nodes = [NodeState(node, "live") for node in material.samples]
    return material


def rejudge(path: Path, job: str | None = None) -> tuple[Material, list[JobReport]]:
    """The verdict of a capture, made anew from what it holds."""
    material = load(path)
    return material, judge(material, job)
