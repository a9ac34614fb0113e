"""Whose a line is where several write: labels, prefixes and lines that belong to somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.probes.judge.evidence.test_unread import culprits, judged

RAISED = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 5, in main',
    "    run()",
    "ValueError: bad batch 17",
)
TRAINS = "step 1 loss 2.3 torch cuda"


def of_rank(number: int, label: str = "") -> list[str]:
    return [f"{label}[rank{number}]: {line}" for line in RAISED]


@pytest.mark.parametrize(
    "between", ["0: loss: 2.31", "0: [2025-03-01 10:00:00,123] torch.distributed.run: [WARNING] something"]
)
def test_another_ranks_line_of_the_same_task_is_no_part_of_a_traceback(tmp_path: Path, between: str) -> None:
    first, second, *rest = of_rank(1, "0: ")
    job = judged(tmp_path, TRAINS, first, second, between, *rest, "1: step 2 loss", "1: step 3 loss")
    assert culprits(job) == [1]
    assert job.incident is not None and "ValueError: bad batch 17" in job.incident.headline
    assert "2.31" not in job.incident.headline


def test_a_traceback_goes_on_behind_the_launchers_label_alone(tmp_path: Path) -> None:
    label = "[1,3]<stdout>:"
    lines = [f"{label}[RANK 3] [E] {RAISED[0]}", *(f"{label}{line}" for line in RAISED[1:])]
    job = judged(tmp_path, *(f"[1,{rank}]<stdout>:{TRAINS}" for rank in range(4)), *lines)
    assert culprits(job) == [3]


@pytest.mark.parametrize("above", ["Exception ignored in: <function Loader.__del__ at 0x7f>", "--- Logging error ---"])
def test_what_python_ignores_of_one_is_not_anothers_end(tmp_path: Path, above: str) -> None:
    assert culprits(judged(tmp_path, TRAINS, above, *of_rank(3))) == [3]
    ignored = judged(tmp_path, TRAINS, *(f"[rank3]: {line}" for line in (above, *RAISED)), "Training finished")
    assert ignored.incident is None and ignored.is_told


def test_a_crash_after_the_first_of_several_phases_is_no_good_end(tmp_path: Path) -> None:
    phases = ["[rank0]: step 900 loss 2.3 torch cuda", "[rank1]: step 1000 loss 2.3", "Phase 1: training completed"]
    ends = ["[rank1]: Fatal Python error: Segmentation fault", "[rank0]: Application shutdown complete"]
    assert culprits(judged(tmp_path, *phases, "loading stage 2 checkpoint", *ends)) == [1]


@pytest.mark.parametrize("ended", ["iteration 7 at 09:19:24", "epoch 3", "for epoch 3"])
def test_the_end_of_an_epoch_is_not_the_jobs(tmp_path: Path, ended: str) -> None:
    assert judged(tmp_path, TRAINS, f"Training finished {ended}").incident is not None


@pytest.mark.parametrize(
    ("due_to", "kind", "ended_well"),
    [
        ("", "stopped", False),
        (" DUE TO JOB REQUEUE", "stopped", False),
        (" DUE TO TASK FAILURE", "crash", True),
        (" DUE TO TASK FAILURE", "crash", False),
    ],
)
def test_a_step_cancelled_for_a_failed_task_was_not_stopped(
    tmp_path: Path, due_to: str, kind: str, ended_well: bool
) -> None:
    cancelled = f"slurmstepd: error: *** STEP 8412.0 ON n01 CANCELLED AT 2025-03-01T11:00:00{due_to} ***"
    job = judged(tmp_path, TRAINS, *["Training finished"] * ended_well, cancelled)
    assert job.incident is not None and job.incident.kind == kind


def test_of_a_long_list_of_tasks_none_is_made_up(tmp_path: Path) -> None:
    tasks = range(100, 260)
    named = [f"0: /job:jax_worker/replica:0/task:{task}" for task in tasks]
    head = "0: E0224 19:20:59.884120 1611 coordination_service.cc:1402] UNAVAILABLE: "
    job = judged(tmp_path, f"{head}The following tasks are unhealthy (stopped sending heartbeats):", *named, "0: ")
    assert set(culprits(job)) <= set(tasks)


def test_a_communicator_of_some_ranks_numbers_no_file(tmp_path: Path) -> None:
    for number in range(8):
        inited = f"n1:10{number}:10{number} [0] NCCL INFO comm 0x1 rank {number % 4} nranks 4 cudaDev 0 - Init COMPLETE"
        lines = [TRAINS, inited, *(RAISED if number == 5 else ())]
        (tmp_path / f"worker_{number}.log").write_text("".join(f"{line}\n" for line in lines))
    assert culprits(judged(tmp_path, TRAINS)) == [5]


def test_who_reports_that_a_node_is_gone_is_not_to_blame(tmp_path: Path) -> None:
    gone = "The node with node id: ab and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead"
    job = judged(tmp_path, TRAINS, "[rank0]: step 2", f"[rank2]: {gone} because the detector has missed too many")
    assert job.incident is not None
    assert [(culprit.rank, culprit.node) for culprit in job.incident.culprits] == [(None, "10.0.0.3")]
