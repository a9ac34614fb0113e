"""Words of an end that only some programs write: launchers in Python, C++'s terminate, NCCL's verbs, Slurm, mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.collect.logs.tracebacks import TRACEBACK
from tests.unit.probes.collect.logs.test_lines import HEAD, TIMEOUT, known, only, read

ACCELERATE, DEEPSPEED = "/env/bin/accelerate", "/env/lib/python3.11/site-packages/deepspeed/launcher/launch.py"


@pytest.mark.parametrize(
    ("place", "end", "code"),
    [
        (DEEPSPEED, "died with <Signals.SIGSEGV: 11>.", -11),
        (ACCELERATE, "returned non-zero exit status 2.", 2),
        ("/job/train.py", "returned non-zero exit status 128.", None),
        ("/job/train.py", "died with <Signals.SIGKILL: 9>.", None),
    ],
)
def test_what_a_launcher_raises_of_its_child(tmp_path: Path, place: str, end: str, code: int | None) -> None:
    raised = f"subprocess.CalledProcessError: Command '['python', 'train.py']' {end}"
    events = known(read(tmp_path, TRACEBACK, f'  File "{place}", line 8, in main', raised))
    assert [(event.kind, event.code) for event in events] == ([] if code is None else [("launcher_failed", code)])


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ("  what():  std::bad_alloc", ["exception"]),
        ("  what():  CUDA error: the launch timed out and was terminated", ["exception"]),
        ("  what():  [Rank 0] Watchdog caught something", []),
        ("  what():  NCCL error: remote process exited or there was a network error", []),
        ("  what():  Timed out waiting for clients", []),
        ("  what():  CUDA error: driver shutting down", []),
        ("ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev x", ["peer_lost"]),
        ("ibvwrap.c:187 NCCL WARN Call to ibv_modify_qp failed with error No such device", ["exception"]),
        ("srun: error: Task launch for StepId=36.0 failed on node cn131: Job credential expired", ["node_failure"]),
        ("master-0     0/1       Evicted   0          19h", ["node_failure"]),
    ],
)
def test_whose_failure_it_is(tmp_path: Path, said: str, kinds: list[str]) -> None:
    assert [event.kind for event in known(read(tmp_path, said))] == kinds


@pytest.mark.parametrize(("end", "op"), [("OpTy", ""), ("OpType=ALLREDUCE, Numel", "ALLREDUCE"), ("", "")])
def test_a_timeout_that_a_terminal_wrapped_within_a_word(tmp_path: Path, end: str, op: str) -> None:
    cut = TIMEOUT[: TIMEOUT.index("OpType")] + end
    event = only(tmp_path, HEAD + cut, "the rest of it")
    assert (event.kind, event.rank, event.sequence, event.op) == ("collective_timeout", 7, 40, op)


def test_the_number_that_a_terminal_cut_is_not_read(tmp_path: Path) -> None:
    assert known(read(tmp_path, HEAD + TIMEOUT[: TIMEOUT.index("0, OpType")])) == []


def test_old_torchs_log_is_no_part_of_an_exceptions_message(tmp_path: Path) -> None:
    raised = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 564.00 MiB."
    old = "[E ProcessGroupNCCL.cpp:456] [Rank 3] "
    events = known(read(tmp_path, TRACEBACK, '  File "a.py", line 1, in f', raised, old + TIMEOUT))
    assert [(event.kind, event.group_rank) for event in events] == [("exception", None), ("collective_timeout", 3)]


def test_the_cause_of_a_workers_end_tells_more_than_that_it_ended(tmp_path: Path) -> None:
    frame = '  File "a.py", line 1, in f'
    killed = "RuntimeError: DataLoader worker (pid 262) is killed by signal: Bus error."
    direct = "The above exception was the direct cause of the following exception:"
    ended = "RuntimeError: DataLoader worker (pid(s) 262) exited unexpectedly"
    assert only(tmp_path, TRACEBACK, frame, killed, "", direct, "", TRACEBACK, frame, ended).text == killed


def test_a_stamp_before_mpiruns_tag(tmp_path: Path) -> None:
    line = "2026-06-02T16:13:44.884Z: [1,12]<stdout>:n1:815:864 [0] NCCL WARN Call to ibv_get_async_event failed"
    event = only(tmp_path, line)
    assert (event.speaker.task, event.speaker.node, event.speaker.pid) == (12, "n1", 815)
