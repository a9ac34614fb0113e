"""Single lines of logs, as published or seen, and what is told from them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mltop.probes.collect.logs.files import read_log
from mltop.probes.collect.logs.parser import step_in
from mltop.probes.collect.logs.prefixes import Clock, speaker_of
from mltop.probes.collect.logs.tracebacks import kind_of_exception
from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import LogEvent, LogFile, Speaker

AT = time.mktime((2026, 11, 4, 12, 0, 0, 0, 0, -1))
HEAD = "[rank7]:[E1103 10:00:05.123456789 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank 7] "
TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, "
    "Timeout(ms)=600000) ran for 600031 milliseconds before timing out."
)
TRIPLE = (
    "failure detected by watchdog at work sequence id: 40 PG status: last enqueued work: 42, last completed work: 39"
)


def read(tmp_path: Path, *lines: str, name: str = "train.log", end: str = "\n") -> LogFile:
    path = tmp_path / name
    path.write_text("\n".join(lines) + end)
    return read_log(str(path))


def only(tmp_path: Path, *lines: str) -> LogEvent:
    (event,) = known(read(tmp_path, *lines))
    return event


def known(file: LogFile) -> list[LogEvent]:
    """Those that a row or a block knows."""
    return [event for event in file.events if event.event_class != "unread"]


def test_a_timeout_has_its_collective_and_when_it_began(tmp_path: Path) -> None:
    event = only(tmp_path, HEAD + TIMEOUT)
    assert (event.kind, event.rank, event.sequence, event.op, event.sizes) == (
        "collective_timeout", 7, 40, "ALLREDUCE", (4096, 4096),
    )  # fmt: skip
    assert event.ran_s == 600.031
    assert event.group == ""
    assert event.line == 1
    assert event.at is not None
    assert time.localtime(event.at)[1:6] == (11, 3, 10, 0, 5)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (TRIPLE, (42, None, 39)),
        (TRIPLE.replace(", last comp", ", last started work: 40 (ALLREDUCE), last comp"), (42, 40, 39)),
        (TRIPLE.replace("42", "-1").replace("39", "-1"), (-1, None, -1)),
        ("Timeout at NCCL work: 40, last enqueued NCCL work: 42, last completed NCCL work: 39.", (42, None, 39)),
        ("[Rank 7] failure detected by watchdog at work: 40, last enqueued NCCL work: 42, last completed NCCL work: 39", (42, None, 39)),
        ("Received a dump signal due to a collective timeout from  rank 2 and we will try our best to dump the debug info. "
         "Last enqueued NCCL work: 42, last completed NCCL work: 39.This is most likely caused by …", (42, None, 39)),
        ("Received a global timeout from another rank and will start to dump the debug info. Last enqueued NCCL work: 42, "
         "last completed NCCL work: 39.", (42, None, 39)),
    ],
)  # fmt: skip
def test_counters_of_all_releases(tmp_path: Path, line: str, counts: tuple[int, int | None, int]) -> None:
    event = only(tmp_path, HEAD + line)
    assert (event.enqueued, event.started, event.completed) == counts
    assert event.rank == 7


def test_a_sub_group_is_not_the_default_one(tmp_path: Path) -> None:
    head = HEAD.replace("PG ID 0 PG GUID 0(default_pg) Rank 7", "PG ID 3 PG GUID 12(mesh_tp) Rank 1")
    event = only(tmp_path, head + TIMEOUT)
    assert (event.group, event.group_name, event.group_rank, event.rank) == ("12", "mesh_tp", 1, 7)


@pytest.mark.parametrize("width", [72, 80, 100, 120])
def test_of_a_wrapped_line_nothing_wrong_is_read(tmp_path: Path, width: int) -> None:
    text = HEAD + TRIPLE.replace("42", "4242").replace("39", "3939")
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    events = read(tmp_path, "iteration 3", *pieces, "iteration 4").events
    told = {(event.rank, event.enqueued, event.completed) for event in events}
    assert told <= {(rank, *counts) for rank in (7, None) for counts in ((4242, 3939), (4242, None), (None, None))}


def test_of_a_number_that_goes_on_in_the_next_line_nothing_is_read(tmp_path: Path) -> None:
    text = HEAD + TRIPLE
    at = text.index("39") + 1
    assert read(tmp_path, text[:at], text[at:], "iteration 4").events == []


def test_the_end_of_a_number_may_be_cut_off(tmp_path: Path) -> None:
    file = read(tmp_path, HEAD + TRIPLE, end="")
    assert file.is_cut
    assert file.events == []


def test_a_cut_exception_accuses_nobody(tmp_path: Path) -> None:
    frames = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/job/a.py", line 3, in f',
        "[rank1]:     x()",
    ]
    assert read(tmp_path, *frames, "[rank1]: RuntimeError: [/__w/py", end="").events == []
    assert read(tmp_path, *frames, "[rank1]: torch.distributed.Dist", end="").events == []
    assert [event.kind for event in read(tmp_path, *frames, "[rank1]: ValueError: no").events] == ["exception"]


def test_writes_of_others_begin_within_a_line(tmp_path: Path) -> None:
    event = only(tmp_path, "iteration 12 | loss=2.1][rank3]:[E" + (HEAD + TIMEOUT).partition("[E")[2])
    assert (event.rank, event.kind) == (3, "collective_timeout")


def test_colours_bars_and_carriage_returns_do_not_hide(tmp_path: Path) -> None:
    line = f"  3%|#   | 3/100\r  4%|#   | 4/100\r\x1b[31m{HEAD}{TIMEOUT}\x1b[0m\r"
    assert only(tmp_path, line).rank == 7


def test_the_same_line_a_hundred_times_is_kept_five_times(tmp_path: Path) -> None:
    file = read(tmp_path, *[HEAD + TIMEOUT] * 100)
    assert len(file.events) == 5
    assert file.left_out == {"collective_timeout": 95}


@pytest.mark.parametrize(
    ("line", "speaker", "rest"),
    [
        ("[rank12]: x", Speaker(rank=12), "x"),
        ("[default3]:[rank11]: x", Speaker(rank=11, local_rank=3), "x"),
        ("12: [rank12]:[E1103", Speaker(rank=12, task=12), "[E1103"),
        ("(RayTrainWorker pid=811, ip=10.0.0.2) x", Speaker(pid=811, node="10.0.0.2", process="RayTrainWorker"), "x"),
        (
            "(MegatronPolicyWorker[rank=31] pid=7, ip=10.0.0.3) x",
            Speaker(pid=7, node="10.0.0.3", rank=31, process="MegatronPolicyWorker"),
            "x",
        ),
        ("(Worker_TP1 pid=99) x", Speaker(rank=1, pid=99, process="Worker_TP1"), "x"),
        ("(Worker_DP1_TP0 pid=99) x", Speaker(pid=99, process="Worker_DP1_TP0"), "x"),
        ("(VllmWorker rank=7 pid=4) x", Speaker(rank=7, pid=4, process="VllmWorker"), "x"),
        ("[2025-03-11 03:17:15 TP4] x", Speaker(rank=4, process="TP4"), "x"),
        ("[2025-03-11 03:17:15 DP1 TP4] x", Speaker(process="DP1 TP4"), "x"),
        ("[2025-03-11 03:17:15] x", Speaker(), "[2025-03-11 03:17:15] x"),
        ("[rank: 3] Seed set to 1", Speaker(rank=3), "Seed set to 1"),
        ("(raylet, ip=10.0.0.3) x", Speaker(node="10.0.0.3", process="raylet"), "x"),
        ("(min, max) time across ranks", Speaker(), "(min, max) time across ranks"),
        ("[1,mpirank:3,algo-2]<stderr>:x", Speaker(task=3, node="algo-2"), "x"),
        ("[ERROR] x", Speaker(), "[ERROR] x"),
        ("[RankMonServer77@n7:3] x", Speaker(pid=77, node="n7", rank=3), "x"),
        ("[2026-11-02 10:00:05] n7:123:456 [2] x.cc:7 NCCL WARN y", Speaker(pid=123, node="n7"), "x.cc:7 NCCL WARN y"),
        ("plain: text", Speaker(), "plain: text"),
        ("[2026-11-02 10:00:05,123] [INFO] x", Speaker(), "[2026-11-02 10:00:05,123] [INFO] x"),
    ],
)
def test_prefixes(line: str, speaker: Speaker, rest: str) -> None:
    assert speaker_of(line) == (speaker, rest)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("[E709 08:01:02.5 x.cpp:1]", (2026, 7, 9, 8, 1, 2)),
        ("[E1118 08:01:02.5 x.cpp:1]", (2025, 11, 18, 8, 1, 2)),  # it cannot be of tomorrow
        ("W1103 08:01:02.998000 29446 torch/x.py:1]", (2026, 11, 3, 8, 1, 2)),
        ("2026-11-02 08:01:02,123 x", (2026, 11, 2, 8, 1, 2)),
        ("2026-11-02_08:01:02", (2026, 11, 2, 8, 1, 2)),
        ("Nov  2 08:01:02 n7 kernel: x", (2026, 11, 2, 8, 1, 2)),
    ],
)
def test_stamps(text: str, local: tuple[int, ...]) -> None:
    at = Clock(AT).stamp(text)
    assert at is not None
    assert tuple(time.localtime(at)[:6]) == local


@pytest.mark.parametrize("text", ["[E9999 99:99:99.1 x]", "2026-13-45 08:01:02", "Foo  2 08:01:02", "12:34:56"])
def test_what_is_no_stamp(text: str) -> None:
    assert Clock(AT).stamp(text) is None


def test_a_stamp_with_a_zone_is_the_same_everywhere() -> None:
    assert Clock(AT).stamp("2026-11-02T08:01:02+02:00") == Clock(AT).stamp("2026-11-02T06:01:02Z")


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("ValueError", "expected 8 columns", "exception"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "exception"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "exception"),
        ("OSError", "[Errno 28] No space left on device", "exception"),
        ("botocore.exceptions.ReadTimeoutError", "Read timeout on endpoint URL: https://s3", "exception"),
        ("requests.exceptions.ConnectionError", "HTTPSConnectionPool(host='x'): Connection refused", "exception"),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4", "peer_exception"),
        ("torch.distributed.DistBackendError", "NCCL error in: x, unhandled cuda error", "peer_exception"),
        ("torch.distributed.DistStoreError", "Timed out after 301 seconds waiting for clients. 3/4", "peer_exception"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", "peer_exception"),
        ("RuntimeError", "Socket Timeout: wait timeout after 300000ms, keys: /x", "peer_exception"),
        ("EOFError", "", "peer_exception"),
        ("ray.exceptions.ActorDiedError", "The actor died unexpectedly", "peer_exception"),
        ("KeyboardInterrupt", "", "terminated"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException", "Process 1 got signal: 15", "terminated"),
    ],
)
def test_who_speaks_of_others(name: str, message: str, kind: str) -> None:
    assert kind_of_exception(name, message) == kind


@pytest.mark.parametrize(
    ("line", "kind", "named", "node"),
    [
        ("srun: error: n7: task 3: Killed", "died", (3,), "n7"),
        ("srun: error: n7: tasks 0-2,5: Segmentation fault (core dumped)", "died", (0, 1, 2, 5), "n7"),
        ("srun: error: n7: task 3: Out Of Memory", "oom_kill", (3,), "n7"),
        ("srun: error: n7: task 3: Exited with exit code 1", "exit", (3,), "n7"),
        ("srun: error: n7: tasks 0-2: Terminated", "exit", (0, 1, 2), "n7"),
        ("srun: error: n7: task 3: Aborted (core dumped)", "exit", (3,), "n7"),
        ("Segmentation  fault (core dumped)", "fatal_signal", (), ""),
        ("Fatal Python error: Bus\terror", "fatal_signal", (), ""),
        ("slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-11-02T10:00:00 DUE TO TIME LIMIT ***", "time_limit", (), "n7"),
        ("slurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2026-11-02T10:00:00 DUE TO PREEMPTION ***", "preempted", (), "n7"),
        ("slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-11-02T10:00:00 ***", "cancelled", (), "n7"),
        ("[rank0]:[E1103 10:00:05.1 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms",
         "barrier_named", (1, 2), ""),
        ("[rank0]: [21] finished collective #904, but didn't join collective #905", "desync_named", (21,), ""),
        ("n7:1:2 [3] NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4567> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=x "
         "vendor_err=129 hca mlx5_1", "network", (), "n7"),
        ("Nov  2 08:01:02 n7 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid='123', name=python, GPU has fallen", "xid", (), "n7"),
    ],
)  # fmt: skip
def test_launchers_and_kernel(tmp_path: Path, line: str, kind: str, named: tuple[int, ...], node: str) -> None:
    event = only(tmp_path, line)
    assert (event.kind, event.named, event.node) == (kind, named, node)


def test_a_chain_of_exceptions_is_told_by_its_last(tmp_path: Path) -> None:
    block = ["Traceback (most recent call last):", '  File "/job/a.py", line 3, in f', "    x()"]
    file = read(
        tmp_path, *block, "queue.Empty", "", "During handling of the above exception, another exception occurred:", "",
        *block, "torch.distributed.DistBackendError: NCCL error in: x", "", "iteration 1",
    )  # fmt: skip
    assert [event.kind for event in file.events] == ["peer_exception"]


def test_a_workers_own_words_stand_for_it(tmp_path: Path) -> None:
    file = read(
        tmp_path, "[rank2]: Traceback (most recent call last):", '[rank2]:   File "/job/train.py", line 3, in main',
        "[rank2]:     next(it)", "[rank2]: KeyError: Caught KeyError in DataLoader worker process 0.",
        "[rank2]: Original Traceback (most recent call last):", '[rank2]:   File "/job/data.py", line 9, in __getitem__',
        "[rank2]:     row['y']", "[rank2]: KeyError: 'y'",
    )  # fmt: skip
    assert [(event.kind, event.rank, event.text, event.place) for event in file.events] == [
        ("exception", 2, "KeyError: 'y'", "__getitem__ (/job/data.py:9)")
    ]


def test_a_spawner_names_its_child(tmp_path: Path) -> None:
    event = only(
        tmp_path, "Traceback (most recent call last):", '  File "/venv/lib/python3.11/x.py", line 3, in join',
        "torch.multiprocessing.spawn.ProcessRaisedException: ", "", "-- Process 3 terminated with the following error:",
        "Traceback (most recent call last):", '  File "/job/a.py", line 7, in work', "    x()", "ValueError: no",
    )  # fmt: skip
    assert (event.kind, event.named, event.text) == ("child_named", (3,), "ValueError: no")


def test_secrets_and_escapes_are_not_quoted(tmp_path: Path) -> None:
    event = only(
        tmp_path, "Traceback (most recent call last):", '  File "/job/a.py", line 7, in work', "    x()",
        "ValueError: cannot log in with password=hunter2secret at https://joe:pw@host/x \x1b]0;owned\x07",
    )  # fmt: skip
    assert "hunter2secret" not in event.text
    assert ":pw@" not in event.text
    assert "\x1b" not in event.text


@pytest.mark.parametrize(
    "line",
    [
        HEAD + TIMEOUT.replace("SeqNum=40", "SeqNum=" + "9" * 6000),
        HEAD + TIMEOUT.replace("600031", "9" * 400),
        HEAD + TRIPLE.replace("42", "9" * 30),
        "[rank1]: Did not get initial heartbeat. Waited " + "9" * 400 + " seconds.",
        "[rank1]: Did not get initial heartbeat. Waited 1.2.3 seconds.",
        "n7:1:2 [0] NCCL INFO comm rank 0 nranks " + "9" * 30,
    ],
)
def test_numbers_that_are_none(tmp_path: Path, line: str) -> None:
    assert known(read(tmp_path, line)) == []


def test_the_rest_of_another_line_is_not_joined(tmp_path: Path) -> None:
    file = read(tmp_path, HEAD + TRIPLE, "[rank6]: [E1103 10:00:06.12", "7 ProcessGroupNCCL.cpp:1] x")
    assert [event.completed for event in known(file)] == [39]


@pytest.mark.parametrize(
    ("before", "speaker"),
    [
        ("[80746] ", Speaker(rank=3)),
        ("   123\t", Speaker(rank=3)),
        ("train/node3/stderr.log:123:", Speaker(rank=3)),
        ("2026-11-02T10:00:05.123456789Z ", Speaker(rank=3)),
        ("2026-11-02 10:00:05,123 ", Speaker(rank=3)),
        ("2026-11-02T10:00:05.1+01:00 stderr F ", Speaker(rank=3)),
        ("[pod/train-worker-0/pytorch] ", Speaker(rank=3)),
        ("worker-0  | ", Speaker(rank=3)),
        ("node03: ", Speaker(rank=3, node="node03")),
        ("10.0.0.1: ", Speaker(rank=3, node="10.0.0.1")),
        ("node03: [default7]:", Speaker(rank=3, local_rank=7, node="node03")),
        ("[1,3]<stderr>:", Speaker(rank=3, task=3)),
        ("[prterun-n1-7@1,3]<stderr>: ", Speaker(rank=3, task=3)),
        (
            "[2025-05-10 00:18:21] (WorkerDict pid=12, ip=train-13-w-0) ",
            Speaker(rank=3, node="train-13-w-0", pid=12, process="WorkerDict"),
        ),
        ("[36m(ActorModelRayActor pid=12)[0m ", Speaker(rank=3, pid=12, process="ActorModelRayActor")),
    ],
)
def test_what_other_tools_put_in_front(tmp_path: Path, before: str, speaker: Speaker) -> None:
    """A sub-group's number of a rank is not the rank's, where the line says both."""
    line = before + HEAD.replace("rank7", "rank3").replace("default_pg) Rank 7", "mesh_tp) Rank 1") + TIMEOUT
    event = only(tmp_path, line)
    assert (event.speaker, event.rank, event.group_rank) == (speaker, 3, 1)


@pytest.mark.parametrize(
    "line", ["ValueError: [rank3]: no such", "RuntimeError: peer said [rank3]: no", "my.pkg.BadShardError: [rank3]: x"]
)
def test_what_an_exception_says_is_no_prefix(line: str) -> None:
    assert speaker_of(line) == (Speaker(), line)
    assert speaker_of(f"[rank2]: {line}") == (Speaker(rank=2), line)


def test_a_write_that_begins_after_a_progress_bars_blank(tmp_path: Path) -> None:
    assert only(tmp_path, f"1%| | 24/1752 [01:08<1:22:56] {HEAD}{TIMEOUT}").rank == 7


@pytest.mark.parametrize("completed", ["93459313471793", "2", "-7"])
def test_what_no_counter_can_be_is_unknown(tmp_path: Path, completed: str) -> None:
    """torch 2.4, before anything was completed."""
    said = f"Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: {completed}."
    event = only(tmp_path, HEAD + said)
    assert (event.enqueued, event.completed) == (1, None)


def test_lines_that_begin_with_their_hosts(tmp_path: Path) -> None:
    lines = [
        "worker-1: Traceback (most recent call last):",
        "worker-0: Traceback (most recent call last):",
        'worker-1:   File "/w/train.py", line 10, in <module>',
        'worker-0:   File "/w/train.py", line 11, in <module>',
        "worker-1:     x = cfg['lr']",
        "worker-1: KeyError: 'lr'",
        "worker-1: [2026-11-04 10:00:10,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 77",
        "worker-0: RuntimeError: NCCL error: remote process exited",
        "pdsh@login: worker-1: ssh exited with exit code 1",
    ]
    events = [event for event in known(read(tmp_path, *lines)) if event.event_class != "teardown"]
    assert [(event.kind, event.speaker.node, event.text.partition(" at ")[0], event.place) for event in events] == [
        ("exception", "worker-1", "KeyError: 'lr'", "<module> (/w/train.py:10)"),
        ("peer_exception", "worker-0", "RuntimeError: NCCL error: remote process exited", "<module> (/w/train.py:11)"),
    ]


@pytest.mark.parametrize("name", ["INFO", "trainer", "RuntimeError"])
def test_words_before_a_colon_are_no_hosts(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, *[f"{name}: step {number}" for number in range(9)]).speakers == set()


def test_what_lightning_says_of_its_children(tmp_path: Path) -> None:
    said = "Child process with PID 12345 terminated with code -9. Forcefully terminating all other processes"
    event = only(tmp_path, f"Epoch 0:  10%| | 12/120 [00:10<01:30, v_num=1][rank: 2] {said}")
    assert (event.kind, event.group_rank, event.pid, event.how, event.code) == ("exit", 2, 12345, "signal", 9)
    assert event.rank is None  # it is its number within the node


def test_what_ucx_says_of_a_signal(tmp_path: Path) -> None:
    event = only(tmp_path, "[n1:00041:0:41] Caught signal 7 (Bus error: nonexistent physical address)")
    assert (event.kind, event.node, event.pid, event.code) == ("fatal_signal", "n1", 41, 7)


@pytest.mark.parametrize(("last", "told"), [(9, 0), (2, 1)])
def test_an_exception_of_nobody_before_many_steps_was_caught(tmp_path: Path, last: int, told: int) -> None:
    lines = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "    import fast"]
    lines += ["ModuleNotFoundError: No module named 'fast'", "going on without"]
    path = tmp_path / "a.log"
    lines += [f"step {number} loss 2.0" for number in range(1, last + 1)]
    path.write_text("\n".join([*lines, *["exited with code 0"] * (1 - told), ""]))
    (job,) = explain([str(path)], lambda _: None).jobs
    assert (job.incident is not None) == bool(told)


@pytest.mark.parametrize("box", ["│╭╰─", "|++-"])
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_richs_tracebacks(tmp_path: Path, box: str, prefix: str) -> None:
    side, top, bottom, line = box
    lines = [
        f"{top}{line * 9} Traceback (most recent call last) {line * 9}{top}",
        f"{side} /w/train.py:753 in run                    {side}",
        f"{side}                                           {side}",
        f"{side}   752 {side}   config = of(args)                  {side}",
        f"{side} ❱ 753 {side}   launch(config)                     {side}",
        f"{bottom}{line * 43}{bottom}",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        f"{top}{line * 9} Traceback (most recent call last) {line * 9}{top}",
        f"{side} /w/train.py:9 in main                      {side}",
        f"{bottom}{line * 43}{bottom}",
        "ValueError: no more",
    ]
    event = only(tmp_path, *(prefix + each for each in lines))
    assert (event.kind, event.text, event.place) == ("exception", "ValueError: no more", "main (/w/train.py:9)")
    assert event.rank == (3 if prefix else None)


def test_what_follows_a_traceback_at_once_is_read(tmp_path: Path) -> None:
    lines = ["[rank7]: Traceback (most recent call last):", '[rank7]:   File "/w/a.py", line 3, in f', "[rank7]: E: x"]
    told = [(event.kind, event.text[:20]) for event in read(tmp_path, *lines, HEAD + TIMEOUT).events]
    assert told == [("exception", "E: x"), ("collective_timeout", HEAD[8:28])]


@pytest.mark.parametrize(
    ("before", "speaker"),
    [
        ("2026-11-04T10:00:0{}.1Z ", Speaker()),
        ("2026-11-04 10:00:0{},001 ERROR rank=2 ", Speaker()),
        (
            "(Worker_TP1 pid=112) ERROR 11-04 10:00:1{} [multiproc_executor.py:559] ",
            Speaker(rank=1, pid=112, process="Worker_TP1"),
        ),
    ],
)
def test_a_traceback_in_a_loggers_lines(tmp_path: Path, before: str, speaker: Speaker) -> None:
    lines = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "    x()", "KeyError: 'lr'"]
    event = only(tmp_path, *(before.format(second) + line for second, line in enumerate(lines)))
    assert (event.kind, event.text, event.place, event.speaker) == (
        "exception",
        "KeyError: 'lr'",
        "f (/w/a.py:3)",
        speaker,
    )


@pytest.mark.parametrize(
    "line",
    [
        "E1104 10:00:01.1 11 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 "
        "(pid: 19414) of binary: /usr/bin/python",
        "[2026-11-04 10:00:05,999] [ERROR] [launch.py:324:sigkill_handler] ['/bin/python', '-u', 'a.py', "
        "'--local_rank=1'] exits with return code = -11",
    ],
)
def test_a_launchers_word_alone_is_no_good_end(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"step 1\n{line}\nafter\n")
    (job,) = explain([str(path)], lambda _: None).jobs
    assert job.incident is not None and not job.is_told and job.incident.culprits == []
    assert line[-20:] in job.incident.evidence[0].text


@pytest.mark.parametrize(
    ("lines", "is_end"),
    [
        (["step 9 loss 1", "{'train_runtime': 331.7, 'epoch': 3.0}"], True),
        (["step 9 loss 1", "`Trainer.fit` stopped: `max_steps=9` reached."], True),
        (["step 9 loss 1", "[after training is done] datetime: 2026-11-03", "saving checkpoint at iteration 9"], True),
        (["step 9 loss 1", "Training completed for stage 1", "step 10 loss 1"], False),
        (["step 9 loss 1", "upload successfully completed", *["still at it"] * 9], False),
        (["step 9 loss 1", "main exited with code 0"], True),
        (["step 9 loss 1"], False),
        (["step 9 loss 1", "worker group successfully finished. Waiting 300 seconds for other agents"], True),
    ],
)
def test_only_an_end_that_is_seen_is_a_good_one(tmp_path: Path, lines: list[str], is_end: bool) -> None:
    assert bool(read(tmp_path, *lines).good_ends.latest) is is_end


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("iteration     1700/    2000 | lm loss: 3.5 | number of skipped iterations:   0 |", 1700),
        ("slurmstepd: error: *** STEP 640777.0 ON n1 CANCELLED AT 2026-11-03T10:00:00 ***", None),
        ("global_step: 12, loss 3", 12),
        ("step=7", 7),
        ("Step 3.5 of the plan", None),
    ],
)
def test_steps(text: str, step: int | None) -> None:
    assert step_in(text) == step


def test_a_server_that_answers_after_an_error_goes_on(tmp_path: Path) -> None:
    trace = ["Traceback (most recent call last):", '  File "/a.py", line 1, in f', "ValueError: too long"]
    served = 'INFO: 10.0.0.1:80 - "POST /v1/completions HTTP/1.1" 200 OK'
    path = tmp_path / "a.log"
    path.write_text("\n".join([*trace, 'INFO: 10.0.0.1:80 - "POST / HTTP/1.1" 500 Error', served, ""]))
    (job,) = explain([str(path)], lambda _: None).jobs
    assert job.incident is not None and not job.incident.culprits and not job.is_told
    path.write_text("\n".join([served, *trace, 'INFO: 10.0.0.1:80 - "POST / HTTP/1.1" 500 Error', ""]))
    (job,) = explain([str(path)], lambda _: None).jobs
    assert job.incident is not None and "ValueError: too long" in job.incident.headline


@pytest.mark.parametrize("prefix", ["", "[1,0]<stderr>:", "[0]<stderr>:"])
def test_horovods_missing_ranks(tmp_path: Path, prefix: str) -> None:
    lines = ["Missing ranks:", "1: [allreduce.a, allreduce.b ...]", "3!: [allreduce.a]", "step 4"]
    event = only(tmp_path, *(prefix + line for line in lines))
    assert (event.kind, event.named) == ("barrier_named", (1, 3))
