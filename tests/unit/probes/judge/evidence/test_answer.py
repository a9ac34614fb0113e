"""What is said beside the name: times, evidence, how many ranks there are, and how each of them ended."""

from __future__ import annotations

from pathlib import Path

from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import ExplainedJob
from tests.unit.probes.judge.evidence.test_first import TRACE, raised, table

EARLIER = "[rank0]:[W1103 09:00:01.000000000 ProcessGroupNCCL.cpp:1250] Warning: using GPU 0"


def answered(folder: Path, *lines: str, end: str = "\n") -> ExplainedJob:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + end)
    (job,) = explain([str(path)], lambda _: None).jobs
    return job


def test_a_failure_without_a_stamp_has_nobody_elses_time(tmp_path: Path) -> None:
    """An hour-old line of another rank stands before it; when it ended is the launcher's word."""
    failure = raised(2, *TRACE, "ValueError: bad sample 4711")
    job = answered(tmp_path, EARLIER, *failure, *table("n1", (2, 1, "10:05:12", 2)))
    assert job.incident is not None
    assert job.incident.culprits[0].rank == 2
    assert [evidence.at for evidence in job.incident.evidence if "ValueError" in evidence.text] == [None]
    death = job.ranks[2].death
    assert death is not None
    assert death.at is not None
    assert job.incident.since == death.at
    alone = answered(tmp_path, EARLIER, *failure)
    assert alone.incident is not None
    assert (alone.incident.since, alone.ranks[2].death.at if alone.ranks[2].death else 0) == (None, None)
