"""Files of flight recorders: every writer's names and forms, old ones, others' ones, and such as are not whole yet."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mltop.probes.collect.records.files import pipe_of, places_of, rank_of_name
from mltop.probes.collect.records.flight_recorder import (
    KEPT_COMPLETED,
    may_be_flight_record,
    parse_flight_record,
    read_flight_record,
)
from tests.builders.flight_records import as_json, as_pickle, done_to, operation, record

MEMBERS = {"0": range(4)}
WAITS = record(done_to(39, operation(40, state="scheduled")), status={0: (40, -1, 39)}, members=MEMBERS)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_7", 7), ("nccl_trace_rank_0", 0), ("_dump_12", 12), ("_dump_12.json", 12),
        ("rank_511.json", 511), ("torchcomm_fr_trace_3", 3), ("hccl_trace_rank_3", 3), ("run_a_5.pickle", 5),
        ("README", None), ("7", None), ("trace_rank_x", None), ("a_99999999", None), ("a_123456789012", None),
    ],
)  # fmt: skip
def test_names(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


@pytest.mark.parametrize("as_bytes", [as_pickle, as_json])
def test_a_record(as_bytes: object, tmp_path: Path) -> None:
    (file := tmp_path / "comm_lib_trace_rank_2").write_bytes(as_bytes(WAITS))  # type: ignore[operator]
    told = read_flight_record(file)
    assert (told.rank, told.version, told.gap) == (2, "2.10", None)
    (progress,) = told.progress
    assert (progress.enqueued, progress.started, progress.completed) == (40, -1, 39)
    assert (progress.group.ranks, progress.group.backend, progress.group_rank) == ((0, 1, 2, 3), "nccl", 2)
    assert (progress.file, progress.source) == (str(file), "flight_recorder")
    newest = progress.operations[-1]
    assert (newest.sequence, newest.name, newest.state, newest.sizes_in) == (40, "all_reduce", "scheduled", ((1024,),))
    assert newest.frames == (
        () if as_bytes is as_json else
        ("all_reduce (torch/distributed/distributed_c10d.py:3245)", "train_step (llm/train.py:45)")
    )  # fmt: skip
    assert len(progress.operations) == KEPT_COMPLETED + 1


def test_without_status_the_entries_tell() -> None:
    for state, completed in (("scheduled", 39), ("started", 39), ("completed", 40)):
        told = record(done_to(39, operation(40, state=state)), version="2.0")
        del told["pg_status"]
        (progress,) = parse_flight_record(as_pickle(told), rank=0, at=0.0, shown="x").progress
        assert (progress.enqueued, progress.completed) == (40, completed)


def test_of_a_group_with_messages_the_status_is_not_believed() -> None:
    """torch counts operations of two ranks, by their own sequence, in the same field."""
    message = operation(3, "recv 0<-1", "scheduled", p2p=77)
    told = record(done_to(3, message), status={0: (77, -1, 76)}, members=MEMBERS)
    (progress,) = parse_flight_record(as_pickle(told), rank=0, at=0.0, shown="x").progress
    assert (progress.enqueued, progress.completed) == (3, 3)
    assert (progress.operations[-1].p2p, progress.operations[-1].sequence) == (True, 77)


def test_a_count_beyond_what_is_recorded_says_nothing_of_waiting() -> None:
    told = record(done_to(3), status={0: (77, -1, 3)}, members=MEMBERS)
    (progress,) = parse_flight_record(as_pickle(told), rank=0, at=0.0, shown="x").progress
    assert (progress.enqueued, progress.completed) == (77, 77)


def test_a_rank_that_has_launched_nothing_is_told_by_its_status() -> None:
    told = record([], status={0: (-1, -1, -1)})
    (progress,) = parse_flight_record(as_json(told), rank=1, at=0.0, shown="x").progress
    assert (progress.group.description, progress.enqueued, progress.completed) == ("default_pg", -1, -1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"ray_train_dump_error": "no such\\u001b[31m actor"}', "the job could not write it: no such"),
        (b'{"hello": 1}', "no flight record"),
        (b"[1]", "no table"),
        (b"", "cut off"),
        (b"Traceback (most recent call last):", "no pickle"),
        (b'{"version": "3.1", "entries": []}', "its version is 3.1"),
    ],
)
def test_what_is_none(content: bytes, why: str, tmp_path: Path) -> None:
    (file := tmp_path / "rank_3.json").write_bytes(content)
    os.utime(file, (1e9, 1e9))
    told = read_flight_record(file)
    assert told.progress == ()
    assert told.gap is not None
    assert why in told.gap.why
    assert (told.gap.source, told.gap.item) == ("flight_recorder", "3")


def test_strange_values_are_left_out() -> None:
    entry = {**operation(1), "collective_seq_id": "x", "state": ["a"], "time_created_ns": -5, "timeout_ms": {},
             "input_sizes": [[10**30, "7"], 3], "profiling_name": 7, "process_group": None, "pg_id": []}  # fmt: skip
    other = {**operation(2), "collective_seq_id": "12", "timeout_ms": "4000", "is_p2p": "no"}
    told = {"entries": [entry, other, 7, None], "pg_status": {"0": "x"}, "pg_config": {"0": {"ranks": "[0, x]"}}}
    records = parse_flight_record(json.dumps(told).encode(), rank=0, at=0.0, shown="x").progress
    by_name = {progress.group.name: progress for progress in records}
    assert by_name["0"].enqueued == 12
    assert by_name["0"].operations[-1].timeout_s == 4.0
    assert by_name["0"].group.ranks is None
    assert by_name[""].operations[0].sizes_in == ((7,), ())


def test_secrets_do_not_leave(tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    waits = operation(1, state="scheduled", group=(token, token))
    waits["frames"] = [{"name": f"f_{token}", "filename": f"/x/{token}/train.py", "line": 1}]
    (file := tmp_path / "a_0").write_bytes(as_pickle(record([waits])))
    assert token not in repr(read_flight_record(file).progress)


def test_an_old_one_is_of_an_earlier_job(tmp_path: Path) -> None:
    (file := tmp_path / "a_0").write_bytes(as_pickle(WAITS))
    assert read_flight_record(file, started_at=time.time() - 60).gap is None
    os.utime(file, (time.time() - 90,) * 2)
    gap = read_flight_record(file, started_at=time.time() - 60).gap
    assert gap is not None
    assert "older than the process" in gap.why


def test_one_that_is_being_written(tmp_path: Path) -> None:
    (file := tmp_path / "a_0").write_bytes(as_pickle(WAITS)[:-100])
    gap = read_flight_record(file).gap
    assert gap is not None
    assert gap.why.endswith("it is still being written")
    os.utime(file, (time.time() - 90,) * 2)
    gap = read_flight_record(file).gap
    assert gap is not None
    assert gap.why.endswith("it is cut off in the middle")


def test_only_regular_files_of_the_ranks_user(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe_0")
    (other := tmp_path / "other_0").write_bytes(as_pickle(WAITS))
    for path, uid, why in (
        (pipe, None, "no regular file"),
        (tmp_path, None, "no regular file"),
        (Path("/dev/zero"), None, "no regular file"),
        (tmp_path / "none_0", None, "cannot be opened"),
        (other, os.getuid() + 1, "another user"),
    ):
        gap = read_flight_record(path, uid=uid).gap
        assert gap is not None
        assert why in gap.why


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with (file := tmp_path / "a_0").open("wb") as big:
        big.truncate(1 << 36)
    gap = read_flight_record(file).gap
    assert gap is not None
    assert "larger than" in gap.why


def test_where_records_lie() -> None:
    usual = ["/home/ann/.cache/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3"]
    assert places_of({"HOME": "/home/ann"}, 3)[:2] == usual
    assert places_of({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, 3)[0] == "/c/torch/comm_lib_trace_rank_3"
    chosen = {"TORCH_FR_DUMP_TEMP_FILE": "/a/b_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/other_", "HOME": "/h"}
    first, *others = places_of(chosen, 3)
    assert first == "/a/b_3"
    assert not any("nccl" in place or "comm_lib" in place for place in others)
    assert places_of({"TORCH_FR_DUMP_TEMP_FILE": "dumps/r"}, 3, "/work")[0] == "/work/dumps/r3"
    assert all(place.startswith("/") for place in places_of({"TORCH_FR_DUMP_TEMP_FILE": "dumps/r"}, 3))
    assert pipe_of({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/p/x"}, 3) == "/p/x3.pipe"


@pytest.mark.parametrize(
    ("name", "content", "may_be"),
    [
        ("comm_lib_trace_rank_3", as_pickle(WAITS), True),
        ("_dump_3.json", as_json(WAITS), True),
        ("rank_3.json", b'{"ray_train_dump_error": "x"}', True),
        ("stderr_3", b"[rank3]: Traceback", False),
        ("metrics_3.json", b'{"loss": 2.1}', False),
        ("model", as_pickle(WAITS), False),
        ("a_3", b"", False),
    ],
)
def test_which_files_may_be_records(name: str, content: bytes, may_be: bool, tmp_path: Path) -> None:
    (file := tmp_path / name).write_bytes(content)
    assert may_be_flight_record(file) is may_be


def test_a_pipe_is_not_even_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a_3")
    assert not may_be_flight_record(tmp_path / "a_3")
