"""The rule that says who failed first, case by case: hand-made lines, as they stand in each rank's file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import ExplainedJob

TRACE = ["Traceback (most recent call last):", '  File "/job/train.py", line 7, in main', "    step()"]
LOST = [
    *TRACE,
    "torch.distributed.DistBackendError: NCCL error in: x, remote process exited or there was a network error",
]


def c10(second: float, rank: int, group: str = "0 PG GUID 0(default_pg)", number: int | None = None) -> str:
    minutes, seconds = divmod(second, 60)
    at = f"10:{int(minutes):02d}:{int(seconds):02d}.{int(seconds % 1 * 1e6):06d}000"
    return (
        f"[rank{rank}]:[E1103 {at} ProcessGroupNCCL.cpp:1] [PG ID {group} Rank {rank if number is None else number}] "
    )


def timeout(
    second: float,
    rank: int,
    sequence: int,
    op: str = "ALLREDUCE",
    numel: int = 8,
    group: str = "0 PG GUID 0(default_pg)",
    number: int | None = None,
) -> str:
    return (
        f"{c10(second, rank, group, number)}Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, "
        f"NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
    )


def triple(
    second: float,
    rank: int,
    enqueued: int,
    completed: int,
    group: str = "0 PG GUID 0(default_pg)",
    number: int | None = None,
) -> str:
    head = c10(second, rank, group, number)
    return f"{head} failure detected by watchdog at work sequence id: {completed + 1} PG status: last enqueued work: {enqueued}, last completed work: {completed}"


def dump(second: float, rank: int, enqueued: int, completed: int) -> str:
    return (
        f"{c10(second, rank)}Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the "
        f"debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is"
    )


def raised(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def judged(folder: Path, ranks: dict[int, list[str]], **more: list[str]) -> ExplainedJob:
    for rank, lines in ranks.items():
        (folder / f"rank_{rank}.log").write_text("".join(f"{line}\n" for line in ["NCCL version 2.27.3", *lines]))
    for name, lines in more.items():
        (folder / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))
    (job,) = explain([str(folder)], lambda _: None).jobs
    return job


def culprits(job: ExplainedJob) -> list[int | None]:
    return [culprit.rank for culprit in job.incident.culprits] if job.incident is not None else []


def test_never_entered(tmp_path: Path) -> None:
    """The posted example: rank 6 never launched what the others wait in."""
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in range(8) if rank != 6}
    job = judged(tmp_path, {**ranks, 6: [dump(606, 6, 39, 39)]})
    assert culprits(job) == [6]
    assert job.incident is not None
    assert (job.incident.kind, job.incident.confidence) == ("hang", "high")
    assert [(end.enqueued, end.completed) for end in job.ranks[5:7]] == [(42, 39), (39, 39)]


def test_who_waits_in_a_group_of_its_own_is_a_victim(tmp_path: Path) -> None:
    """Ranks 2 and 3 are a group; 3 never came to it, so neither launched what 0 and 1 wait in."""
    group = "3 PG GUID 12(mesh_tp)"
    job = judged(
        tmp_path,
        {
            0: [timeout(660, 0, 40), triple(660, 0, 40, 39)],
            1: [timeout(660, 1, 40), triple(660, 1, 40, 39)],
            2: [timeout(600, 2, 7, group=group, number=0), triple(600, 2, 7, 6, group, 0), dump(606, 2, 39, 39)],
            3: [dump(606, 3, 39, 39)],
        },
    )
    assert culprits(job) == [3]


def test_one_sequence_in_two_groups_is_unrelated(tmp_path: Path) -> None:
    job = judged(
        tmp_path,
        {
            rank: [
                timeout(600, rank, 7, op, group=f"{number} PG GUID {number}(mesh)", number=rank % 2),
                triple(600, rank, 7, 6, f"{number} PG GUID {number}(mesh)", rank % 2),
            ]
            for rank, (op, number) in enumerate(
                [("ALLREDUCE", 5), ("ALLREDUCE", 5), ("BROADCAST", 6), ("BROADCAST", 6)]
            )
        },
    )
    assert culprits(job) == []
    assert not job.is_told


def test_another_collective_at_the_same_place(tmp_path: Path) -> None:
    job = judged(
        tmp_path,
        {
            rank: [timeout(600, rank, 40, "BROADCAST" if rank == 2 else "ALLREDUCE"), triple(600, rank, 40, 39)]
            for rank in range(4)
        },
    )
    assert culprits(job) == [2]


@pytest.mark.parametrize("op", ["SEND", "RECV", "COALESCED"])
def test_pairs_may_differ(tmp_path: Path, op: str) -> None:
    job = judged(
        tmp_path,
        {
            rank: [timeout(600, rank, 40, op if rank == 2 else "RECV", 4 + rank), triple(600, rank, 40, 39)]
            for rank in range(4)
        },
    )
    assert culprits(job) == []


def test_two_camps_of_one_size_are_told_as_such(tmp_path: Path) -> None:
    job = judged(
        tmp_path,
        {
            rank: [timeout(600, rank, 40, "BROADCAST" if rank < 2 else "ALLREDUCE"), triple(600, rank, 40, 39)]
            for rank in range(4)
        },
    )
    assert culprits(job) == []
    assert job.incident is not None
    assert "ranks 0-1 and ranks 2-3" in job.incident.headline


def test_all_launched_names_nobody(tmp_path: Path) -> None:
    job = judged(tmp_path, {rank: [timeout(600, rank, 40), triple(600, rank, 40, 39)] for rank in range(4)})
    assert culprits(job) == []
    assert job.incident is not None
    assert "below them" in job.incident.headline


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-04 10:00:05,876] [INFO] [launch.py:163:main] dist_world_size=4",
        "using world size: 4, data-parallel size: 4, context-parallel size: 1",
        "Initializing distributed: GLOBAL_RANK: 2, MEMBER: 3/4",
        "n1:41:77 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0",
    ],
)
def test_who_is_not_in_the_files_may_be_the_one(tmp_path: Path, line: str) -> None:
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 40, 39)] for rank in range(4)}
    first = judged(tmp_path, ranks).incident
    assert first is not None and "or at a rank that is not in them" in first.headline
    again = judged(tmp_path, ranks, launcher=[line]).incident
    assert again is not None and again.headline.endswith("it failed below them, on a GPU or the network")


def test_a_missing_file_is_no_silence(tmp_path: Path) -> None:
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 40, 39)] for rank in (0, 1, 3)}
    job = judged(tmp_path, ranks)
    assert culprits(job) == []
    assert job.incident is not None
    assert "rank 2" in job.incident.headline
    assert [gap.item for gap in job.gaps] == ["2"]


def test_a_silent_rank_with_a_file_did_not_come(tmp_path: Path) -> None:
    ranks = {rank: [timeout(600, rank, 40)] for rank in (0, 1, 3)}
    assert culprits(judged(tmp_path, {**ranks, 2: ["step 3"]})) == [2]


def test_two_silent_ranks_of_four_are_not_both_accused(tmp_path: Path) -> None:
    job = judged(tmp_path, {0: [timeout(600, 0, 40)], 1: [timeout(600, 1, 40)], 2: ["step 3"], 3: ["step 3"]})
    assert culprits(job) == []


def test_a_log_that_ends_far_behind_the_others_was_cut(tmp_path: Path) -> None:
    ranks = {rank: ["step 400", timeout(600, rank, 40)] for rank in (0, 1, 3)}
    assert culprits(judged(tmp_path, {**ranks, 2: ["step 100"]})) == []


def test_an_exception_before_the_others_waited(tmp_path: Path) -> None:
    ranks = {rank: [timeout(1300, rank, 40), triple(1300, rank, 40, 39)] for rank in (0, 1, 3)}
    assert culprits(judged(tmp_path, {**ranks, 2: raised(2, *TRACE, "ValueError: no")})) == [2]


def test_an_exception_after_its_own_timeout_is_a_victims(tmp_path: Path) -> None:
    late = raised(1, *TRACE, "AttributeError: 'NoneType' object has no attribute 'shutdown'")
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in (0, 1, 3)}
    job = judged(tmp_path, {**ranks, 1: [*ranks[1], *late], 2: [dump(606, 2, 39, 39)]})
    assert culprits(job) == [2]


def test_an_exception_that_was_survived_is_none(tmp_path: Path) -> None:
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in (0, 1, 3)}
    before = [*raised(1, *TRACE, "OSError: [Errno 5] retrying"), "step 12", *ranks[1]]
    assert culprits(judged(tmp_path, {**ranks, 1: before, 2: [dump(606, 2, 39, 39)]})) == [2]


def test_victims_alone_name_nobody(tmp_path: Path) -> None:
    job = judged(tmp_path, {rank: raised(rank, *LOST) for rank in range(4)})
    assert culprits(job) == []
    assert not job.is_told


def test_what_fails_on_all_ranks_alike_is_no_ranks_fault(tmp_path: Path) -> None:
    job = judged(
        tmp_path, {rank: raised(rank, *TRACE, f"FileNotFoundError: no config on rank {rank}") for rank in range(4)}
    )
    assert culprits(job) == []
    assert job.is_told
    assert job.incident is not None
    assert job.incident.headline.startswith("all 4 ranks failed alike, which is no rank's fault: FileNotFoundError")


def test_two_failures_of_their_own_without_times(tmp_path: Path) -> None:
    own = {1: raised(1, *TRACE, "ValueError: a"), 2: raised(2, *TRACE, "KeyError: 'b'")}
    job = judged(tmp_path, {0: raised(0, *LOST), **own, 3: raised(3, *LOST)})
    assert culprits(job) == []
    assert job.incident is not None
    assert "rank 1, rank 2" in job.incident.headline


def test_a_barrier_names_who_did_not_come(tmp_path: Path) -> None:
    says = f"{c10(60, 0)}[Rank 0]: Rank 3 failed to pass monitoredBarrier in 60000 ms"
    told = raised(0, *TRACE, "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 60000 ms")
    others = {
        rank: raised(
            rank, *TRACE, f"RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors"
        )
        for rank in (1, 2)
    }
    assert culprits(judged(tmp_path, {0: [says, *told], **others, 3: ["step 3"]})) == [3]


def test_most_name_one_host(tmp_path: Path) -> None:
    def wc(rank: int, peer: str, code: int = 12) -> str:
        return f"n{rank}:{rank + 1}:9 [0] NCCL WARN NET/IB: Got completion from peer {peer}<4567> with error {code}, opcode 0, len 0, vendor err 129"

    ranks = {rank: [wc(rank, "10.0.0.3"), wc(rank, "10.0.0.2", 5), *raised(rank, *LOST)] for rank in (0, 1, 2)}
    job = judged(tmp_path, {**ranks, 3: [wc(3, "10.0.0.0"), *raised(3, *LOST)]})
    assert job.incident is not None
    assert [(culprit.rank, culprit.node) for culprit in job.incident.culprits] == [(None, "10.0.0.3")]


@pytest.mark.parametrize(
    ("line", "kind", "named"),
    [
        ("slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-11-03T10:00:00 DUE TO TIME LIMIT ***", "stopped", []),
        ("slurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2026-11-03T10:00:00 DUE TO PREEMPTION ***", "stopped", []),
        ("srun: error: n7: task 2: Out Of Memory", "crash", [2]),
        ("srun: error: n7: task 2: Segmentation fault (core dumped)", "crash", [2]),
    ],
)
def test_slurms_word(tmp_path: Path, line: str, kind: str, named: list[int]) -> None:
    job = judged(
        tmp_path, {rank: ["step 3"] for rank in range(4)}, slurm=[line, "srun: error: n7: tasks 0-1,3: Terminated"]
    )
    assert job.incident is not None
    assert (job.incident.kind, culprits(job)) == (kind, named)


def test_cancelled_after_it_hung_is_a_hang(tmp_path: Path) -> None:
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in (0, 1, 3)}
    end = "slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-11-03T12:00:00 ***"
    job = judged(tmp_path, {**ranks, 2: [dump(606, 2, 39, 39)]}, slurm=[end])
    assert culprits(job) == [2]


def test_nothing_wrong(tmp_path: Path) -> None:
    job = judged(tmp_path, {rank: ["step 3", "WARNING: no error: 0.1", "training finished"] for rank in range(4)})
    assert job.incident is None
    assert job.is_told


def test_silence_is_no_good_end(tmp_path: Path) -> None:
    job = judged(tmp_path, {rank: ["step 3", "ERROR: nobody knows this one", "step 4"] for rank in range(4)})
    assert job.incident is not None
    assert not job.is_told
    assert "neither a failure nor a good end" in job.incident.headline
    assert "ERROR: nobody knows this one" in job.incident.headline


def test_lines_that_were_left_out_are_no_silence(tmp_path: Path) -> None:
    lines = [f"(W pid={rank + 1}, ip=10.0.0.1) {timeout(600, rank, 40)}" for rank in (0, 1)]
    lines += [f"(W pid={rank + 1}, ip=10.0.0.1) [rank{rank}]: hello" for rank in range(4)]
    (tmp_path / "driver.log").write_text(
        "\n".join([*lines, f"(W pid=3, ip=10.0.0.1) {timeout(600, 3, 40)} [repeated 2x across cluster]", ""])
    )
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == []
    assert any(gap.fix == "RAY_DEDUP_LOGS=0" for gap in job.gaps)


def table(name: str, *rows: tuple[int, int, str, int]) -> list[str]:
    """torchrun's: rank, exit code, time; the first is the one it saw first. ``name``: of the host."""
    lines = ["train.py FAILED", "-" * 60, "Failures:"]
    for number, (rank, code, at, local) in enumerate(rows):
        if number == len(rows) - 1:
            lines += ["-" * 60, "Root Cause (first observed failure):"]
        lines += [
            f"[{number}]:", f"  time      : 2026-11-03_{at}", f"  host      : {name}", f"  rank      : {rank} (local_rank: {local})",
            f"  exitcode  : {code} (pid: {900 + rank})", "  error_file: <N/A>", "  traceback : To enable traceback see: x",
        ]  # fmt: skip
    return [*lines, "=" * 60]


def test_a_kill_after_another_nodes_unknown_failure_is_no_cause(tmp_path: Path) -> None:
    """Slurm kills what is left once one node's launcher has failed."""
    one = table("n1", (1, -15, "10:00:02", 1), (0, 1, "10:00:00", 0))
    two = table("n2", (2, -15, "10:00:40", 0), (3, -9, "10:00:40", 1))
    job = judged(tmp_path, {}, node1=one, node2=two)
    assert culprits(job) == []
    assert not job.is_told


def test_a_kill_is_the_cause_where_the_others_complain(tmp_path: Path) -> None:
    ranks = {rank: raised(rank, *LOST) for rank in (0, 1, 2)}
    job = judged(
        tmp_path,
        {**ranks, 3: ["step 3"]},
        node1=table("n1", (1, 1, "10:00:02", 1), (0, 1, "10:00:02", 0)),
        node2=table("n2", (2, 1, "10:00:40", 0), (3, -9, "10:00:00", 1)),
    )
    assert culprits(job) == [3]


def test_what_slurm_kills_later_is_no_cause(tmp_path: Path) -> None:
    lines = [
        "srun: error: n1: task 0: Exited with exit code 1",
        "srun: error: n1: task 1: Killed",
        "srun: error: n2: tasks 2-3: Killed",
    ]
    assert culprits(judged(tmp_path, {rank: ["step 3"] for rank in range(4)}, slurm=lines)) == []


def test_monitors_of_all_ranks_that_wait_accuse_nobody(tmp_path: Path) -> None:
    says = {
        rank: [f"[RankMonServer{rank + 50}@n1:{rank}] Did not get subsequent heartbeat. Waited 600.00 seconds."]
        for rank in range(4)
    }
    assert culprits(judged(tmp_path, says)) == []


def test_one_monitor_names_its_rank(tmp_path: Path) -> None:
    says = {rank: raised(rank, *LOST) for rank in (0, 1, 3)}
    assert culprits(
        judged(
            tmp_path, {**says, 2: ["[RankMonServer52@n1:2] Did not get subsequent heartbeat. Waited 600.00 seconds."]}
        )
    ) == [2]


def test_a_kernels_line_of_another_day_is_none_of_its(tmp_path: Path) -> None:
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in (0, 1, 3)}
    old = "Oct 27 03:00:00 n9 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=123, GPU has fallen off the bus."
    gone = "Nov  3 10:00:01 n9 kernel: NVRM: Xid (PCI:0000:1b:00): 45, pid=123, Ch 00000008"
    job = judged(tmp_path, {**ranks, 2: [dump(606, 2, 39, 39)]}, kernel=[old, gone])
    assert culprits(job) == [2]


def test_clocks_apart_give_no_order(tmp_path: Path) -> None:
    """The nodes' first complaints are a minute apart: so are their clocks, and half a minute is no order."""

    def died(rank: int, at: int, error: str) -> str:
        return f'{{"message": {{"message": "{error}", "extraInfo": {{"timestamp": "{at}"}}}}}}'

    begin = int(time.mktime((2026, 11, 3, 10, 0, 0, 0, 0, -1)))
    for rank, (late, error) in enumerate([(60, LOST[-1]), (30, "ValueError: a"), (0, LOST[-1]), (0, "KeyError: b")]):
        folder = tmp_path / f"none_{'ab'[rank // 2] * 8}" / "attempt_0" / str(rank % 2)
        folder.mkdir(parents=True)
        (folder / "error.json").write_text(died(rank, begin + late, error))
        (folder / "stderr.log").write_text(f"[rank{rank}]: hello\n")
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == []
    assert not job.is_told


def test_the_only_silent_one_lived_until_it_was_ended(tmp_path: Path) -> None:
    """Somebody died, and not who was stopped by the launcher."""
    ranks = {
        rank: raised(rank, *TRACE, "ConnectionResetError: [Errno 104] Connection reset by peer") for rank in (0, 1, 3)
    }
    rows = table("n1", (0, 1, "10:00:02", 0), (3, 1, "10:00:02", 3), (2, -15, "10:00:03", 2), (1, 1, "10:00:01", 1))
    assert culprits(judged(tmp_path, {**ranks, 2: ["step 3"]}, launcher=rows)) == []


def test_what_follows_the_timeouts_in_a_shared_log_is_later(tmp_path: Path) -> None:
    waits = [line for rank in (0, 1, 3) for line in (timeout(600, rank, 40), triple(600, rank, 42, 39))]
    ends = [f"{c10(662, 1)}To avoid data inconsistency, we are taking the entire process down."]
    late = raised(0, *TRACE, "AttributeError: 'NoneType' object has no attribute 'shutdown'")
    (tmp_path / "all.log").write_text("\n".join([*waits, dump(606, 2, 39, 39), *ends, *late, ""]))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == [2]


def test_a_table_that_is_cut_off_accuses_nobody(tmp_path: Path) -> None:
    rows = table("n1", (0, 1, "10:00:02", 0), (1, 1, "10:00:01", 1))[:-2]
    cut = "\n".join(
        [*rows, "  traceback : Traceback (most recent call last):", "    File x", "  torch.distributed.DistBac"]
    )
    (tmp_path / "launcher.log").write_text(cut)
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == []


def test_where_faulthandler_saw_the_culprit(tmp_path: Path) -> None:
    stack = ["Timeout (0:05:00)!", "Thread 0x00007f1a (most recent call first):", '  File "/venv/lib/python3.11/threading.py", line 5, in wait',
             "Thread 0x00007f1b (most recent call first):", '  File "/job/data.py", line 77 in fetch', '  File "/job/train.py", line 9 in main']  # fmt: skip
    ranks = {rank: [timeout(600, rank, 40), triple(600, rank, 42, 39)] for rank in (0, 1, 3)}
    job = judged(tmp_path, {**ranks, 2: [*stack, dump(606, 2, 39, 39)]})
    assert culprits(job) == [2]
    assert job.incident is not None
    assert [each.text for each in job.incident.evidence if each.source == "stacks"] == [
        "rank 2 was in fetch (/job/data.py:77)"
    ]


def test_stdout_alone_is_no_silence(tmp_path: Path) -> None:
    """Complaints go to stderr: where a rank's is lost, its stdout does not speak for it."""
    for rank in range(4):
        folder = tmp_path / "none_abcdefgh" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 3\n")
        if rank != 3:
            (folder / "stderr.log").write_text(f"{timeout(600, rank, 40)}\n{triple(600, rank, 40, 39)}\n")
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == []
    (folder / "stderr.log").write_text("")
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == [3]


def test_a_job_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "train.out").write_text("\n".join(["step 3", *TRACE, "ValueError: no", ""]))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is not None
    assert job.incident.headline == "the job failed: ValueError: no, in main (/job/train.py:7)"
    assert job.is_told
    assert job.incident.culprits == []


def test_after_a_watchdog_has_ended_another_rank(tmp_path: Path) -> None:
    """In one log of all, without any stamp or counter that could be read."""
    late = raised(4, *TRACE, "AttributeError: 'NoneType' object has no attribute 'shutdown'")
    ends = "[rank2]: To avoid data inconsistency, we are taking the entire process down."
    (tmp_path / "driver.log").write_text("\n".join([ends, *late, ""]))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert culprits(job) == []


@pytest.mark.parametrize("is_told", [True, False])
def test_each_engine_of_vllm_counts_its_own_workers(tmp_path: Path, is_told: bool) -> None:
    lines = [
        f"(Worker_DP{rank // 4}_TP{rank % 4}_EP{rank} pid={3520 + rank}) INFO 11-03 22:51:42 [parallel_state.py:1208] "
        f"rank {rank} in world size 8 is assigned as DP rank {rank // 4}, PP rank 0, TP rank {rank % 4}"
        for rank in range(8 if is_told else 0)
    ]
    died = "[multiproc_executor.py:154] Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    lines.append(f"(EngineCore_DP1 pid=3392) ERROR 11-03 23:14:04 {died}")
    (tmp_path / "server.log").write_text("".join(f"{line}\n" for line in lines))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits if culprit.rank is not None] == ([5] if is_told else [])
