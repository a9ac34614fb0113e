"""`mltop explain --job ID`: Slurm says where the output of a job is that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.scripts import shell_script
from tests.slurm import slurm_cluster

SCONTROL = (
    "JobId=123 JobName=train UserId=me(1000) JobState=FAILED Reason=NonZeroExitCode NodeList=n[1-2] WorkDir={folder} "
    "StdErr={folder}/%x-%j-%t.err StdOut={folder}/slurm-123.out"
)
LOST = "torch.distributed.DistBackendError: NCCL error in: x, connection closed"


def crash(rank: int, error: str) -> str:
    return f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/a.py", line 1, in f\n[rank{rank}]: {error}\n'


def explained(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mltop", "explain", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False)


def test_names_with_slurms_patterns(tmp_path: Path) -> None:
    (tmp_path / "slurm-123.out").write_text("step 1\n")
    for rank in range(2):
        (tmp_path / f"train-123-{rank}.err").write_text(crash(rank, LOST if rank else "ValueError: no"))
    shell_script(tmp_path / "bin" / "scontrol", "echo {line}", line=SCONTROL.format(folder=tmp_path))
    shell_script(tmp_path / "bin" / "sacct", "echo accounting is off >&2; exit 1")
    done = explained("--job", "123", "--json", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert len(told["files"]) == 3
    assert [culprit["rank"] for culprit in told["jobs"][0]["incident"]["culprits"]] == [0]
    assert "job 123: failed on n[1-2]" in done.stderr


def test_sacct_knows_what_scontrol_has_forgotten(tmp_path: Path) -> None:
    (tmp_path / "out-7.log").write_text(crash(0, "ValueError: no") + crash(1, LOST))
    row = f"7|FAILED|1:0|n1|train|me|{tmp_path}|{tmp_path}/out-%j.log|"
    shell_script(tmp_path / "bin" / "scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    shell_script(tmp_path / "bin" / "sacct", "echo {row}", row=row)
    done = explained("--job", "7", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 1, done.stderr
    assert "rank 0 failed first" in " ".join(done.stdout.split())


def test_a_slurm_that_does_not_know_it_is_said(tmp_path: Path) -> None:
    for name in ("scontrol", "sacct"):
        shell_script(tmp_path / "bin" / name, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    done = explained("--job", "7", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1]
        == "mltop: --job 7: Slurm knows no such job (give its log files: mltop explain PATH…)"
    )


OFF = "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1"
NO_FIELD = 'case "$*" in *StdOut*) echo "sacct: fatal: Invalid field requested: StdOut" >&2; exit 1; esac'
NO_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
UNCONFIGURED = "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1"


@pytest.mark.parametrize(
    ("sacct", "scontrol", "why"),
    [
        ("exit 3", UNCONFIGURED, "sacct failed: it ended with 3; scontrol failed: fatal: Could not establish a"),
        ("exit 0", UNCONFIGURED, "scontrol failed: fatal: Could not establish a configuration source"),
        (OFF, NO_JOB, "sacct failed: error: Slurm accounting storage is disabled"),  # it may have ended long ago
        (NO_FIELD, NO_JOB, "Slurm knows no such job"),  # before 23.11
    ],
)
def test_a_slurm_that_fails_does_not_deny_the_job(tmp_path: Path, sacct: str, scontrol: str, why: str) -> None:
    shell_script(tmp_path / "bin" / "sacct", sacct)
    shell_script(tmp_path / "bin" / "scontrol", scontrol)
    done = explained("--job", "7", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"mltop: --job 7: {why}")


def test_of_a_real_slurm() -> None:
    with slurm_cluster(nodes=1) as slurm:
        script = slurm.directory / "dies.py"
        script.write_text("raise ValueError('expected 8 columns')\n")
        job = slurm.submit(f"echo step 1\n{sys.executable} {script}", 1, "-e", str(slurm.directory / "%j.err"))
        slurm.wait_ended(job)
        done = slurm.mltop("explain", "--job", job, "--json", check=False)
        assert done.returncode == 1, done.stderr
        told = json.loads(done.stdout)
        assert f"job {job}: failed on gpu01" in done.stderr
        assert len(told["files"]) == 2
        assert told["jobs"][0]["incident"]["headline"].startswith("the job failed: ValueError: expected 8 columns")


def test_what_slurm_knows_and_no_file_says(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("step 1\n")
    shell_script(tmp_path / "bin" / "scontrol", "exit 1")
    for state, code, words in (
        ("OUT_OF_MEMORY", 3, "Slurm calls it out of memory"),
        ("TIMEOUT", 0, "stopped from outside"),
    ):
        row = f"7|{state}|0:125|n1|train|me|{tmp_path}|{tmp_path}/out.log|"
        shell_script(tmp_path / "bin" / "sacct", "echo {row}", row=row)
        done = explained("--job", "7", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
        assert done.returncode == code
        assert words in " ".join(done.stdout.split())
