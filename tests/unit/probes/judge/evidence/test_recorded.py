"""What real jobs of torch left (tests/fixtures/dead_jobs), and who it was."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from tests.documents import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "dead_jobs"
# Of each: what became of it, who is named, and words of the headline.
TOLD = {
    "well": ("crash", [], "neither a failure nor a good end"),  # torchrun writes nothing at a good end
    "exception": ("crash", [1], "ValueError: expected 8 columns, got 7, in die"),
    "exception-console-unrecorded": ("crash", [1], "ValueError: expected 8 columns, got 7, in die"),
    "kill": ("crash", [1], "killed first by SIGKILL"),
    "kill-console-unrecorded": ("crash", [1], "killed first by SIGKILL"),
    "segfault-console": ("crash", [1], "killed first by SIGSEGV"),
    "timeout": ("hang", [1], "did not come: all others waited in vain"),
    "timeout-console-unrecorded": ("hang", [1], "did not come: all others waited in vain"),
    "timeout-tee": ("hang", [1], "did not come: all others waited in vain"),
    "full-disk": ("crash", [1], "[Errno 28] No space left on device"),
    "barrier": ("hang", [1], "rank 0 names it"),
    "first-attempt-tee": ("crash", [1], "ValueError: expected 8 columns"),
    "spawn-raise": ("crash", [1], "rank 1 failed: ValueError: bad batch, in f (/job/train.py:4)"),
    "spawn-kill": ("crash", [1], "rank 1 was killed by SIGKILL"),
    "spawn-exit": ("crash", [1], "rank 1 exited with code 3"),
    "alike": ("crash", [], "all 3 ranks failed alike, which is no rank's fault: KeyError"),
}


def test_all_are_there() -> None:
    assert {path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("*.tar.gz")} == TOLD.keys()


@pytest.mark.parametrize("name", TOLD)
def test_who_it_was(tmp_path: Path, name: str) -> None:
    kind, ranks, words = TOLD[name]
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is not None
    assert (job.incident.kind, [culprit.rank for culprit in job.incident.culprits]) == (kind, ranks)
    assert words in job.incident.headline
    assert all(evidence.where for evidence in job.incident.evidence[:1])


@pytest.mark.parametrize("name", TOLD)
def test_without_the_console_nobody_else_is_named(tmp_path: Path, name: str) -> None:
    """Less is known, and nothing that is wrong."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / name / "console.out").unlink()
    for job in explain([str(tmp_path)], lambda _: None).jobs:
        named = [culprit.rank for culprit in job.incident.culprits] if job.incident is not None else []
        assert set(named) <= set(TOLD[name][1])


def test_several_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    for name in TOLD:
        with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
    jobs = explain([str(tmp_path)], lambda _: None).jobs
    assert len(jobs) == len(TOLD)


def test_the_child_of_one_of_several_spawners_has_no_rank(tmp_path: Path) -> None:
    """Each node's spawner numbers from 0 on: "process 1" of the second node is not rank 1."""
    with tarfile.open(FIXTURES / "spawn-raise.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    text = (tmp_path / "spawn-raise/console.out").read_text()
    lost = text.replace("ValueError: bad batch", "torch.distributed.DistBackendError: NCCL error, connection closed")
    (tmp_path / "spawn-raise/console.out").unlink()
    (tmp_path / "node0.log").write_text(lost.replace("-- Process 1", "-- Process 0"))
    (tmp_path / "node1.log").write_text(text)
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is not None and job.incident.culprits == []
    assert "ValueError: bad batch" in job.incident.headline


def test_a_child_that_its_watchdog_ended_is_no_culprit(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "spawn-kill.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "spawn-kill/console.out"
    path.write_text(path.read_text().replace("SIGKILL", "SIGABRT"))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is None or job.incident.culprits == []
