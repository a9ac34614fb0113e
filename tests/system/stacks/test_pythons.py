"""`mltop stacks` of jobs on every Python of this machine, also of ranks in containers; all jobs before one dump."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.pythons import REQUIRED, found, missing
from tests.system.cases.launch import RunningJob, start
from tests.system.stacks.test_verdicts import job_of, stacks

pytestmark = pytest.mark.jobs

OLDEST = (3, 8)
VERSIONS = [version for version in found() if tuple(map(int, version.rstrip("t").split("."))) >= OLDEST]
RANKS, CULPRIT = 3, 2
CONTAINER = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
KINDS = {
    "sleep": ("plain_sleep", ()),
    "sleep in a container": ("plain_sleep", CONTAINER),
    "poll": ("plain_poll", ()),
    "event loop": ("plain_asyncio", ()),
}


def test_the_pythons_are_here() -> None:
    assert not missing(), f"stacks must be tried on {', '.join(REQUIRED)}: there is no {', '.join(missing())} here"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """By version and kind. The jobs run until the tests are done."""
    jobs: dict[tuple[str, str], RunningJob] = {}
    with ExitStack() as stack:
        for version in VERSIONS:
            for kind, (case, prefix) in KINDS.items():
                folder: Path = tmp_path_factory.mktemp(f"{version} {kind}".replace(" ", "-"))
                command = (*prefix, str(found()[version]))
                job = start(case, folder, RANKS, CULPRIT, forged=False, python=command)
                jobs[version, kind] = stack.enter_context(job)
        for job in jobs.values():
            job.wait_hung()
        report = stacks("--timeout", "80")
        yield {key: job_of(report, job.pids) for key, job in jobs.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_blocking_rank_is_named(version: str, kind: str, reports: dict[tuple[str, str], dict[str, Any]]) -> None:
    job = reports[version, kind]
    verdict = job["verdict"]
    named = [(culprit["rank"], culprit["where"].partition(" ")[0]) for culprit in verdict["culprits"]]
    kind_of_verdict, where = ("suspect", "<module>") if kind == "event loop" else ("hang", "read_blocked")
    assert (verdict["kind"], named, verdict["gaps"]) == (kind_of_verdict, [(CULPRIT, where)], []), verdict
    waits = [(waiting["ranks"], waiting["where"].partition(",")[0]) for waiting in verdict["waiting"]]
    place = "a poll" if kind == "poll" else "all_reduce"
    assert waits == [("0-1", place)], verdict
    threads = {(digest["rank"], digest["thread"]) for digest in job["digests"]}
    assert threads == {(rank, thread) for rank in range(RANKS) for thread in ("MainThread", "metrics")}
    assert {digest["state"] for digest in job["digests"]} <= {
        "S",
        "R",
    }  # a thread that was stopped may run for a moment
    assert all(digest["switches"] is not None for digest in job["digests"] if digest["thread"] == "metrics")
