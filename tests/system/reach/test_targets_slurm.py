"""Slurm's jobs as targets: squeue's answers, the environment of a job, and what is said when there are no nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, slurm
from mltop.probes.reach.targets import resolve as resolve_in
from mltop.probes.reach.targets.resolve import Route, routes_for
from mltop.probes.reach.targets.slurm import Allocation, allocations_here, allocations_of
from tests.fakes.scripts import shell_script

# What squeue 22.05 prints for -t all -o '%A|%i|%T|%N|%r', and for -s -o '%i|%N'.
QUEUE = """\
1|1_2|RUNNING|gpu03|None
3|1_1|RUNNING|gpu02|None
2|1_0|COMPLETED|gpu01|None
6|6+0|RUNNING|gpu01|None
7|6+1|RUNNING|gpu[02-03]|None
8|8|PENDING||ReqNodeNotAvail, UnavailableNodes:gpu04
9|9|RUNNING|gpu[01-04]|None
10|10|CANCELLED|gpu[01-02]|None
11|11|COMPLETING|gpu01|None
12|12|OUT_OF_MEMORY|gpu01|OutOfMemory
"""
STEPS = "9.0|gpu[01-02]\n9.1|gpu03\n9.batch|gpu01\n"
FAKE = """\
# squeue -h [-t all | -s] -j JOB -o FORMAT
case "$2 $3" in "-t all") job=$5; rows={queue} ;; *) job=$4; rows={steps} ;; esac
if [ "$job" = 4711 ]; then echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; fi
if [ "$job" = 13 ]; then echo 'squeue: error: slow' >&2; exec sleep 1000; fi
if [ "$job" = 14 ]; then
    echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; fi
grep -E "^([0-9]+\\|)?$job[^0-9]" "$rows" || :
"""


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue").write_text(QUEUE)
    (tmp_path / "steps").write_text(STEPS)
    program = shell_script(tmp_path / "bin/squeue", FAKE, queue=tmp_path / "queue", steps=tmp_path / "steps")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.usefixtures("squeue")
@pytest.mark.parametrize(
    ("job", "found"),
    [
        ("9", [Allocation("9", ("gpu01", "gpu02", "gpu03", "gpu04"))]),
        ("1_1", [Allocation("3", ("gpu02",))]),
        ("1", [Allocation("1", ("gpu03",)), Allocation("3", ("gpu02",))]),
        ("6", [Allocation("6+0", ("gpu01",)), Allocation("6+1", ("gpu02", "gpu03"))]),
        ("6+1", [Allocation("6+1", ("gpu02", "gpu03"))]),
        ("9.0", [Allocation("9", ("gpu01", "gpu02"))]),
        ("9.batch", [Allocation("9", ("gpu01",))]),
        ("11", [Allocation("11", ("gpu01",))]),
    ],
)
def test_jobs_tasks_parts_and_steps(job: str, found: list[Allocation]) -> None:
    assert allocations_of(job) == found


@pytest.mark.usefixtures("squeue")
@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("8", "has no nodes yet, it is pending: ReqNodeNotAvail, UnavailableNodes:gpu04 (`squeue --start`"),
        ("10", "has ended, it is cancelled (see `sacct -j`)"),
        ("12", "has ended, it is out of memory"),
        ("1_0", "has ended, it is completed"),
        ("4711", "no such job"),
        ("99", "no such job: squeue does not list it"),
        ("9.7", "no such step of the running job (its steps are: 9.0, 9.1, 9.batch)"),
        ("14", "squeue failed: slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        ("abc", "is not a Slurm job id"),
        ("9;reboot", "is not a Slurm job id"),
        ("-9", "is not a Slurm job id"),
    ],
)
def test_why_a_job_has_no_nodes(job: str, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        allocations_of(job)
    assert words in str(caught.value)
    assert job in str(caught.value)


@pytest.mark.usefixtures("squeue")
def test_a_squeue_that_hangs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SQUEUE_TIMEOUT_S", 0.3)
    with pytest.raises(UsageProblem, match=r"squeue did not answer within 0.3 s \(.*scontrol ping"):
        allocations_of("13")


def test_no_slurm_here_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageProblem, match="squeue is not on this machine"):
        allocations_of("9")


@pytest.mark.usefixtures("squeue")
def test_a_job_keeps_to_its_ranks_when_they_are_one_job() -> None:
    targets = resolve_in(TargetOptions(job="6"), {})
    assert (targets.nodes, targets.job, targets.via) == (("gpu01", "gpu02", "gpu03"), "6", "ssh")
    assert resolve_in(TargetOptions(job="1"), {}).job == ""  # two array tasks: each is judged for itself
    more = resolve_in(TargetOptions(job="9", nodes=("other,gpu02",)), {})
    assert more.nodes == ("other", "gpu02", "gpu01", "gpu03", "gpu04")
    assert more.title == "other,gpu02 + job 9"


@pytest.mark.usefixtures("squeue")
def test_srun_runs_in_the_job_that_was_named() -> None:
    targets = resolve_in(TargetOptions(job="6", via="srun"), {})
    assert targets.routes == (Route("srun", ("gpu01",), "6+0"), Route("srun", ("gpu02", "gpu03"), "6+1"))
    with pytest.raises(UsageProblem, match="other is not a node of job 9"):
        resolve_in(TargetOptions(job="9", nodes=("other",), via="srun"), {})
    with pytest.raises(UsageProblem, match="--user bob: srun runs as you"):
        resolve_in(TargetOptions(job="9", via="srun", user="bob"), {})


JOB = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "gpu[01-03]", "SLURMD_NODENAME": "gpu01", "WCOLL": "/no/such"}


def test_inside_of_a_job_its_nodes_are_meant() -> None:
    targets = resolve_in(TargetOptions(), JOB)
    assert (targets.nodes, targets.title, targets.job) == (("gpu01", "gpu02", "gpu03"), "job 9", "9")
    assert resolve_in(TargetOptions(nodes=("other",)), JOB).nodes == ("other",)
    assert resolve_in(TargetOptions(via="srun"), JOB).routes == (Route("srun", targets.nodes, "9"),)


def test_a_job_of_several_parts_is_met_whole() -> None:
    environ = {
        **JOB,
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu01",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu[02-03]",
    }
    assert allocations_here(environ) == [
        Allocation("9+0", ("gpu01",)),
        Allocation("9+1", ("gpu02", "gpu03")),
    ]
    assert resolve_in(TargetOptions(), environ).job == "9"  # which all its ranks carry
    assert allocations_here({}) == []


def test_nodes_of_our_job_are_reached_by_srun_where_there_is_one(tmp_path: Path) -> None:
    nodes = ("gpu01", "gpu02", "elsewhere")
    without = {**JOB, "PATH": str(tmp_path)}
    assert routes_for(nodes, "", [], without) == (Route("local", ("gpu01",)), Route("ssh", ("gpu02", "elsewhere")))
    srun = tmp_path / "srun"
    srun.touch(0o755)
    assert routes_for(nodes, "", [], without) == (
        Route("local", ("gpu01",)),
        Route("srun", ("gpu02",), "9"),
        Route("ssh", ("elsewhere",)),
    )
