"""The hang capture: everything needed to explain it later, in one directory; and the way back."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mltop.probes.investigate.material import Material, judge
from mltop.probes.model import SCHEMA, JobReport, NodeState, to_json
from mltop.probes.record import BadRecording, CaptureWriter, read_capture, read_samples


def default_directory(now: float) -> Path:
    """mltop-capture-<local time> in the working directory, with a number when that exists."""
    name = time.strftime("mltop-capture-%Y%m%d-%H%M%S", time.localtime(now))
    candidates = [Path(name), *(Path(f"{name}-{n}") for n in range(2, 100))]
    return next(path for path in candidates if not path.exists())


def stacks_object(material: Material, reports: list[JobReport]) -> dict[str, object]:
    """The object `mltop stacks --json` prints."""
    return {"schema": SCHEMA, "nodes": material.nodes, "jobs": reports, "not_answered": material.not_answered}


def write_capture(directory: Path, material: Material, reports: list[JobReport], text: str) -> list[str]:
    """Write all of ``material``; returns what is missing, each a sentence. OSError: not even the directory is there."""
    writer = CaptureWriter(directory)
    writer.nodes(material.nodes)
    for state in material.not_answered:
        writer.problem(f"{state.node} did not answer: {state.reason}")
    writer.add_dumps(material.dumps)
    for node, samples in material.samples.items():
        writer.add_samples(node, samples)
    writer.add("verdict.json", to_json(stacks_object(material, reports)).encode())
    writer.add("verdict.txt", text.encode())
    if not material.dumps:
        writer.problem("no stack was dumped: no training rank was found")
    writer.finish()
    return writer.problems


def load(path: Path) -> Material:
    """A capture directory, or a recording file (samples only). BadRecording says what is wrong with it."""
    if not path.exists():
        raise BadRecording(f"{path} does not exist")
    if path.is_dir():
        manifest, samples, dumps = read_capture(path)
        nodes = [NodeState(**state) for state in manifest.get("nodes", [])]
        return Material(nodes=nodes, samples=samples, dumps=dumps, not_answered=_not_answered(path))
    material = Material()
    for sample in read_samples(path):
        material.samples.setdefault(sample.node, []).append(sample)
    material.nodes = [NodeState(node, "live") for node in material.samples]
    return material


def _not_answered(directory: Path) -> list[NodeState]:
    try:
        saved = json.loads((directory / "verdict.json").read_bytes())
    except FileNotFoundError:  # a capture that failed half way
        return []
    except (OSError, ValueError) as error:
        raise BadRecording(f"{directory / 'verdict.json'}: {error}") from error
    return [NodeState(**state) for state in saved.get("not_answered", [])]


def rejudge(path: Path, job: str | None = None) -> tuple[Material, list[JobReport]]:
    """The verdict of a capture, made anew from what it holds."""
    material = load(path)
    return material, judge(material, job)
