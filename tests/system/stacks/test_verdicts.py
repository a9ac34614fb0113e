"""`mltop stacks --json` beside real jobs that hang in twelve ways, and beside two that do not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.cases.launch import start

CULPRIT = 2
FIRST_PID_NAMESPACE = Path("pid:[4026531836]")  # linux/proc_ns.h

# `mltop stacks` dumps every job of the machine and so moves the counters of jobs that other tests watch.
pytestmark = pytest.mark.jobs


def stacks(*args: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "stacks", "--json", *args],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def job_of(report: dict[str, Any], pids: list[int]) -> dict[str, Any]:
    """The report of the job these processes belong to (other tests run jobs of their own beside it)."""
    found = [job for job in report["jobs"] if {digest["pid"] for digest in job["digests"]} & set(pids)]
    assert len(found) == 1, report["jobs"]
    return found[0]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("sleep_in_dataset", "read_blocked"),
        ("slow_validation", "slow_validation"),
        ("mismatch", "broadcast"),
        ("sigstop", "stopped"),
        ("uninterruptible", "kernel"),
        ("endless_loop", "spin_forever"),
        ("worker_deadlock", "read_blocked"),
        ("fifo_read", "read_shard"),
        ("skewed_steps", "step"),
        ("gone", "gone"),
    ],
)
def test_the_culprit_is_named(case: str, words: str, tmp_path: Path) -> None:
    job = start(case, tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung()
        report = job_of(stacks(), job.pids)
        verdict = report["verdict"]
        # A rank that computes, or stands below a validation, may be at work: after ten seconds nobody can tell.
        computes = case in ("endless_loop", "slow_validation")
        assert verdict["kind"] == ("suspect" if computes else "hang"), verdict
        assert verdict["confidence"] in (("low",) if computes else ("high", "medium")), verdict
        assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
        culprit = verdict["culprits"][0]
        assert words in f"{culprit['where']} {culprit['reason']}", verdict
        assert verdict["evidence"], verdict
        assert report["world_size"] == 4
        if case == "worker_deadlock":
            pids = (culprit["pid"], culprit["child_pid"])
            assert pids[0] == job.pids[CULPRIT], "the rank is to be named"
            assert pids[1] not in (None, *job.pids), "and its worker"
    finally:
        job.stop()


@pytest.mark.parametrize("calls_per_s", [5.0, 100.0])
def test_calls_of_other_threads_hide_no_hang(calls_per_s: float, tmp_path: Path) -> None:
    """torch's watchdog and NCCL's proxies make 4.3 a second in every rank of a job that hangs."""
    with start("sleep_in_dataset", tmp_path, helper_calls_per_s=calls_per_s) as job:
        job.wait_hung()
        verdict = job_of(stacks(), job.pids)["verdict"]
    assert (verdict["kind"], verdict["confidence"]) == ("hang", "high"), verdict
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
    assert "its counters move" not in str(verdict["evidence"])


@pytest.mark.parametrize(
    ("case", "at", "wait", "kind", "confidence"),
    [
        ("ddp_backward", "await_rows", "ddp.backward", "hang", "high"),
        # a function below save_checkpoint: for a minute nobody can tell a slow storage from one that hangs
        ("checkpoint", "upload_shard", "gather_object", "suspect", "low"),
    ],
)
def test_what_torch_does_on_its_own_is_told(
    case: str, at: str, wait: str, kind: str, confidence: str, tmp_path: Path
) -> None:
    """A wait in autograd, which only native frames show, and a collective that has called the user's code."""
    job = start(case, tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung(180.0)
        report = job_of(stacks(), job.pids)
    finally:
        job.stop()
    verdict = report["verdict"]
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
    assert verdict["culprits"][0]["where"].startswith(f"{at} ("), verdict
    assert "cases/train.py:" in verdict["culprits"][0]["where"], verdict
    assert [(group["ranks"], group["where"].split(",")[0]) for group in verdict["waiting"]] == [("0-1,3", wait)], (
        verdict
    )
    assert (verdict["kind"], verdict["confidence"]) == (kind, confidence), verdict


def test_native_frames_change_neither_the_verdict_nor_the_classes(tmp_path: Path) -> None:
    """Each rank has its libraries at addresses of its own, as under torchrun."""
    job = start("sleep_in_dataset", tmp_path, ranks=4, culprit=CULPRIT, forged=False)
    try:
        job.wait_hung()
        report = job_of(stacks("--native"), job.pids)
    finally:
        job.stop()
    assert report["verdict"]["kind"] == "hang", report["verdict"]
    assert [culprit["rank"] for culprit in report["verdict"]["culprits"]] == [CULPRIT], report["verdict"]
    stands, waits = report["classes"]
    assert [(made["ranks"], made["waiting_in"]) for made in (stands, waits)] == [("2", None), ("0-1,3", "all_reduce")]
    assert any(frame["function"] == "c10d::Work::wait" for frame in waits["frames"]), waits
    assert not any(
        frame["function"].startswith("0x") or "<" in frame["function"].strip("<>") for frame in waits["frames"]
    )


def test_two_engineers_who_look_at_once_see_the_same(tmp_path: Path) -> None:
    """Each one's dumps stop the processes that the other watches."""
    job = start("sleep_in_dataset", tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung()
        command = [sys.executable, "-m", "mltop", "stacks", "--json"]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        verdicts = [job_of(json.loads(one.communicate(timeout=90)[0]), job.pids)["verdict"] for one in both]
        for verdict in verdicts:
            assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
    finally:
        job.stop()


def test_a_rank_that_vanished_without_a_trace_is_named(tmp_path: Path) -> None:
    job = start("gone", tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung()
        job.reap_culprit()
        verdict = job_of(stacks(), job.pids)["verdict"]
        if Path("/proc/self/ns/pid").readlink() != FIRST_PID_NAMESPACE:
            # In a container it may just not be seen, and nobody else is to blame for that.
            assert (verdict["kind"], verdict["confidence"]) == ("suspect", "low"), verdict
            assert f"rank {CULPRIT} is not seen from here" in verdict["gaps"][0]["why"]
            return
        assert verdict["kind"] == "hang", verdict
        assert [culprit["rank"] for culprit in verdict["culprits"]] == [CULPRIT], verdict
        assert "gone" in verdict["culprits"][0]["reason"]
    finally:
        job.stop()


@pytest.mark.parametrize(("case", "kinds"), [("healthy_slow", {"moving"}), ("straggler", {"straggler"})])
def test_a_job_that_moves_accuses_nobody(case: str, kinds: set[str], tmp_path: Path) -> None:
    job = start(case, tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung()
        verdict = job_of(stacks(), job.pids)["verdict"]
        assert verdict["culprits"] == [], verdict
        assert verdict["kind"] in kinds, verdict
        if case == "straggler":
            assert [slow["rank"] for slow in verdict["stragglers"]] == [CULPRIT], verdict
    finally:
        job.stop()


def test_a_capture_holds_the_same_verdict_and_no_secret(tmp_path: Path) -> None:
    job = start("sleep_in_dataset", tmp_path, ranks=4, culprit=CULPRIT)
    try:
        job.wait_hung()
        directory = tmp_path / "capture"
        done = subprocess.run(
            [sys.executable, "-m", "mltop", "capture", "-o", str(directory)],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{directory}\n"
    finally:
        job.stop()
    saved = json.loads((directory / "verdict.json").read_text())
    again = stacks("--recording", str(directory))
    assert job_of(again, job.pids) == job_of(saved, job.pids)
    assert "rank 2" in (directory / "verdict.txt").read_text()
    texts = {path: path.read_bytes() for path in directory.rglob("*.json")}
    assert any(b"GLOO_SOCKET_IFNAME" in text for text in texts.values()), "its settings are kept, nothing else is"
    assert not [path for path, text in texts.items() if b"SECRET" in text]


def test_raw_prints_every_process_and_only_integers(tmp_path: Path) -> None:
    job = start("sleep_in_dataset", tmp_path, ranks=2, culprit=1)
    try:
        job.wait_hung()
        done = subprocess.run(
            [sys.executable, "-m", "mltop", "stacks", "--raw"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        job.stop()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(job.pids) <= {line["pid"] for line in lines}
    values = [
        local["repr"]
        for line in lines
        for thread in line["threads"]
        for frame in thread["frames"]
        for local in frame.get("locals") or ()
    ]
    assert values
    assert all(value.lstrip("-").isdigit() for value in values)
