"""Samples and stacks put together as incidents, live and from what was kept of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.investigate.capture import retold
from mltop.probes.investigate.diagnosis import diagnosed, with_told
from mltop.probes.model import (
    Culprit,
    Evidence,
    Incident,
    JobReport,
    NodeState,
    RankSample,
    Sample,
    StackDigest,
    Verdict,
    to_json,
)
from mltop.probes.record import BadRecording, CaptureWriter
from mltop.probes.record.captures import INCIDENTS

HUNG_AT = 1_763_640_000.0
WHO = Culprit(2, "n", 102, "stands", "read (data.py:1)", True)


def report() -> JobReport:
    digests = [
        StackDigest(rank, 100 + rank, node="n", job="train", taken_at=HUNG_AT + 60.0 + rank / 100) for rank in range(4)
    ]
    verdict = Verdict("hang", [WHO], confidence="high", since=HUNG_AT)
    return JobReport("train", 4, verdict, digests=digests, uid=7)


def sample(at: float, first_pid: int = 100) -> Sample:
    ranks = [
        RankSample(first_pid + rank, rank, world_size=4, job="train", uid=7, state="S", started_at=HUNG_AT - 40.0)
        for rank in range(4)
    ]
    return Sample("n", at, ranks=ranks)


@pytest.mark.parametrize("later_s", [-0.5, 0.01, 0.5, 30.0])
def test_a_job_that_is_first_seen_after_its_dump_has_not_been_started_since(later_s: float) -> None:
    """What is judged knows one sample of each node, taken a little before the stacks, or a little after them."""
    (incident,) = diagnosed([sample(HUNG_AT + 60.0 + later_s)]).incidents([report()])
    assert (incident.kind, [culprit.rank for culprit in incident.culprits]) == ("hang", [2])


def test_one_that_was_started_since_has() -> None:
    assert diagnosed([sample(HUNG_AT + 90.0, first_pid=200)]).incidents([report()]) == []


def incident(**more: object) -> Incident:
    told = Incident("job/train/7", "hang", "critical", "rank 2 stands", "train", 7, HUNG_AT + 30.0, culprits=[WHO])
    return replace(told, **more)  # type: ignore[arg-type]


FROM_STACKS = Evidence("stacks", "rank 2 did not move for 60 s")
FROM_LOG = Evidence("log", "Timed out waiting 20000ms", HUNG_AT + 20.0, "n")


def test_what_only_those_then_knew_is_added_to_what_is_judged_anew() -> None:
    before = incident(since=HUNG_AT, evidence=[Evidence("stacks", "rank 2 did not move for 58 s"), FROM_LOG])
    (joined,) = with_told([incident(evidence=[FROM_STACKS])], [before])
    assert (joined.since, joined.evidence) == (HUNG_AT, [FROM_STACKS, FROM_LOG])


def test_what_is_not_found_again_is_as_it_was() -> None:
    node = Incident("gpu.lost/n/GPU 1", "node", "critical", "GPU 1 is lost")
    assert with_told([], [incident(), node]) == [incident(), node]
    assert with_told([], [incident(), node], job="train") == [incident()]
    assert with_told([incident(culprits=[])], [incident()]) == [incident()]
    other_cause = incident(id="job/train/7/n", kind="crash")
    assert with_told([other_cause], [incident()]) == [other_cause]


def capture(path: Path, incidents: str) -> Path:
    writer = CaptureWriter(path)
    writer.nodes([NodeState("n", "live")])
    writer.add_samples("n", [sample(HUNG_AT + 60.0)])
    writer.add(INCIDENTS, incidents.encode())
    writer.finish()
    return path


def test_a_capture_tells_what_was_told_then(tmp_path: Path) -> None:
    told = incident(headline="rank 2\x1b[31m stands\n", evidence=[FROM_LOG])
    _, _, (again,) = retold(capture(tmp_path / "c", to_json([told])))
    assert (again.headline, again.evidence, again.culprits) == ("rank 2 stands", [FROM_LOG], [WHO])


@pytest.mark.parametrize(("name", "value"), [("since", 1e300), ("until", -1.0), ("uid", 10**30)])
def test_a_capture_that_tells_impossible_numbers_is_refused(tmp_path: Path, name: str, value: float) -> None:
    told = json.loads(to_json([incident()]))
    told[0][name] = value
    with pytest.raises(BadRecording, match=f"it says {name} is"):
        retold(capture(tmp_path / "c", json.dumps(told)))
