"""`mltop stacks` beside processes that say anything of themselves: real ones, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mltop.probes.investigate.material import Material
from mltop.probes.model import JobReport, NodeState, Verdict
from mltop.tui.commands.stacks import exit_code
from mltop.tui.exits import EXIT_INTERRUPTED, EXIT_UNREACHABLE

pytestmark = pytest.mark.jobs

SLEEP = "import time; time.sleep(600)"


@contextmanager
def ranks(*environs: dict[str, str]) -> Iterator[list[int]]:
    """Python processes with these variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))}
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEP], env={**plain, **environ}, start_new_session=True)
        for environ in environs
    ]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def environ(rank: object, world_size: object, port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "10.9.8.7",
        "MASTER_PORT": str(port),
        **more,
    }


def stacks(*options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "stacks", "--json", "--samples", "2", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("numbers", "rank", "world_size", "said"),
    [
        ((0, 999_999_999_999), 0, None, "WORLD_SIZE=999999999999"),
        ((-5, 4), None, 4, "RANK=-5"),
        ((10**30, 4), None, 4, "RANK=100000"),
        ((3, 16_000_000), 3, 16_000_000, ""),
    ],
)
def test_a_process_with_any_numbers_is_dumped_and_judged(
    numbers: tuple[int, int], rank: int | None, world_size: int | None, said: str
) -> None:
    with ranks(environ(*numbers, 1), environ(0, 2, 2), environ(1, 2, 2)) as (pid, *_):
        done, found = stacks()
    assert done.returncode == 0, done.stderr
    assert "no training ranks" not in done.stdout + done.stderr
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {"10.9.8.7:1", "10.9.8.7:2"}
    (digest,) = [one for one in jobs["10.9.8.7:1"]["digests"] if one["pid"] == pid]
    assert digest["rank"] == rank
    assert digest["frames"]
    assert jobs["10.9.8.7:1"]["world_size"] == world_size
    assert jobs["10.9.8.7:2"]["world_size"] == 2
    assert [job["error"] for job in found["jobs"]] == ["", ""]
    assert said in done.stderr


def test_many_jobs_of_one_rank_do_not_hide_the_one_that_matters() -> None:
    many = [environ(0, 1, 1000 + number) for number in range(40)]
    with ranks(*many, environ(0, 2, 1), environ(1, 2, 1)):
        done, found = stacks("--timeout", "60")
        assert done.returncode == 0, done.stderr
        assert len(found["jobs"]) == 41
        text = subprocess.run(
            [sys.executable, "-m", "mltop", "stacks", "--samples", "1", "--timeout", "60"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert "job 10.9.8.7:1, world size 2" in text.stdout
    assert "and 9 more jobs: " in text.stdout


def test_the_timeout_holds() -> None:
    many = [environ(0, 1, 1000 + number) for number in range(40)]
    with ranks(*many):
        done = subprocess.run(
            [sys.executable, "-m", "mltop", "stacks", "--json", "--timeout", "3"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode in (0, EXIT_UNREACHABLE)
    assert "jobs" in json.loads(done.stdout)


def report(error: str = "") -> JobReport:
    return JobReport("a", 1, Verdict("unclear"), error=error)


@pytest.mark.parametrize(
    ("material", "reports", "interrupted", "failed", "code"),
    [
        (Material(), [report()], False, "", 0),
        (Material(), [], False, "", 0),
        (Material(), [report(), report("judging it failed")], False, "", EXIT_UNREACHABLE),
        (Material(), [], False, "the dump failed: ValueError", EXIT_UNREACHABLE),
        (Material(not_answered=[NodeState("n1", "lost")]), [report()], False, "", EXIT_UNREACHABLE),
        (Material(), [report("x")], True, "", EXIT_INTERRUPTED),
    ],
)
def test_what_the_exit_code_says(
    material: Material, reports: list[JobReport], interrupted: bool, failed: str, code: int
) -> None:
    assert exit_code(material, reports, interrupted, failed) == code
