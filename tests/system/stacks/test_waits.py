"""Real jobs whose ranks wait in ways of their own, judged from their real stacks and counters."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.judge.hang.evidence import evidence_by_job
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import RankDeath, Sample
from tests.system.cases.launch import RunningJob, start
from tests.system.stacks.test_verdicts import job_of, stacks

CULPRIT = 2

# `mltop stacks` dumps every job of the machine and so moves the counters of jobs that other tests watch.
pytestmark = pytest.mark.jobs


def verdict_of(case: str, directory: Path) -> tuple[dict[str, Any], list[int]]:
    with start(case, directory, ranks=4, culprit=CULPRIT) as job:
        job.wait_hung()
        found: dict[str, Any] = job_of(stacks(), job.pids)["verdict"]
        return found, job.pids


@pytest.mark.parametrize(
    ("case", "kinds", "where"),
    [
        ("stale_baton", {"hang"}, "take_baton"),
        ("stale_file_lock", {"hang"}, "filelock"),
        ("marker_of_nobody", {"unclear"}, "wait_for_marker"),
    ],
)
def test_where_every_rank_polls_its_place_is_told_and_nobody_accused(
    case: str, kinds: set[str], where: str, tmp_path: Path
) -> None:
    verdict, _ = verdict_of(case, tmp_path)
    assert verdict["culprits"] == [], verdict
    assert verdict["kind"] in kinds, verdict
    assert verdict["evidence"][0].startswith("every rank polls at "), verdict
    assert where in verdict["evidence"][0], verdict


def test_a_healthy_job_that_sleeps_in_one_line_moves(tmp_path: Path) -> None:
    verdict, _ = verdict_of("sleepy_steps", tmp_path)
    assert (verdict["kind"], verdict["culprits"]) == ("moving", []), verdict


@pytest.mark.parametrize("case", ["marker", "work_poll", "native_wait", "pipeline", "tensor_data", "training_thread"])
def test_who_stands_elsewhere_is_named_whatever_the_others_wait_in(case: str, tmp_path: Path) -> None:
    verdict, pids = verdict_of(case, tmp_path)
    named = [(culprit["rank"], culprit["pid"]) for culprit in verdict["culprits"]]
    assert (verdict["kind"], named) == ("hang", [(CULPRIT, pids[CULPRIT])]), verdict
    assert "read_blocked" in verdict["culprits"][0]["where"], verdict


@pytest.mark.parametrize(("case", "thread"), [("thread_lock", "metrics-pusher"), ("log_lock", "logger-thread")])
def test_the_thread_that_holds_the_lock_is_named(case: str, thread: str, tmp_path: Path) -> None:
    verdict, _ = verdict_of(case, tmp_path)
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
    assert f"its thread {thread}" in verdict["culprits"][0]["reason"], verdict
    assert "read_blocked" in verdict["culprits"][0]["where"], verdict


@pytest.mark.parametrize(("case", "place"), [("deadlocked_pair", "deadlocked_pair"), ("crossed_receives", "swap")])
def test_two_that_receive_from_each_other_are_named(case: str, place: str, tmp_path: Path) -> None:
    verdict, pids = verdict_of(case, tmp_path)
    named = [(culprit["rank"], culprit["pid"]) for culprit in verdict["culprits"]]
    assert (verdict["kind"], named) == ("hang", [(1, pids[1]), (2, pids[2])]), verdict
    assert all(culprit["where"].startswith(f"{place} (cases/waits.py:") for culprit in verdict["culprits"]), verdict
    assert any("ranks 1-2 wait for one another" in line for line in verdict["evidence"]), verdict


def test_a_receive_whose_sender_stands_in_a_collective_is_a_circle(tmp_path: Path) -> None:
    verdict, pids = verdict_of("early_receive", tmp_path)
    named = [(culprit["rank"], culprit["pid"]) for culprit in verdict["culprits"]]
    assert (verdict["kind"], named) == ("suspect", [(1, pids[1]), (2, pids[2])]), verdict
    circle = (
        "ranks 1-2 wait for one another: rank 1 in recv from rank 2, rank 2 in all_reduce, which rank 1 has not come to"
    )
    assert circle in verdict["evidence"], verdict


def test_event_loops_that_only_look_are_not_said_to_move_for_sure(tmp_path: Path) -> None:
    verdict, _ = verdict_of("polling_loops", tmp_path)
    assert (verdict["kind"], verdict["confidence"], verdict["culprits"]) == ("moving", "low", []), verdict
    assert "a poll looks the same" in verdict["evidence"][-1], verdict


def test_an_idle_event_loop_is_suspected_where_the_others_train_in_theirs(tmp_path: Path) -> None:
    verdict, pids = verdict_of("trainer_in_loop", tmp_path)
    named = [(culprit["rank"], culprit["pid"]) for culprit in verdict["culprits"]]
    assert (verdict["kind"], named) == ("suspect", [(CULPRIT, pids[CULPRIT])]), verdict
    assert "its event loop is idle" in verdict["culprits"][0]["reason"], verdict


def test_a_server_without_requests_is_not_accused(tmp_path: Path) -> None:
    verdict, _ = verdict_of("server_in_loop", tmp_path)
    assert (verdict["kind"], verdict["culprits"]) == ("unclear", []), verdict


def ends_of(job: RunningJob, timeout_s: float = 60.0) -> list[RankDeath]:
    """How its ranks ended, in the order in which that is noticed, with what each said last."""
    left = dict(enumerate(job.processes))
    deaths = []
    deadline = time.monotonic() + timeout_s
    while left:
        assert time.monotonic() < deadline, f"{sorted(left)} live on\n{job.logs()}"
        for rank, process in list(left.items()):
            assert isinstance(process, subprocess.Popen)
            if process.poll() is not None:
                del left[rank]
                lines = (job.directory / f"rank{rank}.log").read_text().splitlines()
                how, code = ("signal", -process.returncode) if process.returncode < 0 else ("exit", process.returncode)
                error = lines[-1] if lines and how == "exit" else ""
                death = RankDeath(process.pid, rank, "job", 0, how, code, time.time(), "zombie", error)  # type: ignore[arg-type]
                deaths.append(death)
        time.sleep(0.005)  # between two looks of a parent that has no other way to see all of them at once
    return deaths


def test_of_a_job_that_died_the_first_one_is_named(tmp_path: Path) -> None:
    with start("crash", tmp_path, ranks=4, culprit=CULPRIT, forged=False) as job:
        deaths = ends_of(job)
    sample = Sample("n1", time.time(), deaths=deaths)
    (given,) = evidence_by_job([sample], [], or_ended=True)
    verdict = report(given).verdict
    assert verdict.ended
    assert [(culprit.rank, culprit.reason) for culprit in verdict.culprits] == [
        (CULPRIT, "gone: killed by SIGSEGV (core dumped)" if deaths[0].dumped_core else "gone: killed by SIGSEGV")
    ], (deaths, verdict)
    assert any("exited with code" in line for line in verdict.evidence), verdict
