"""The slice `records` of `bash tests/gpu` over fakes: what a timeout leaves behind is found; every claim can fail."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.jobs import Job
from tests.hardware.ras import Answer
from tests.hardware.slices import records
from tests.hardware.slices.records import Had, checks_of, read_dump
from tests.once import once
from tests.replays import wrong
from tests.system.hardware.faults.fault import Lie
from tests.system.hardware.faults.records import FAULTS
from tests.system.hardware.hardware_lies import differing
from tests.system.hardware.hardware_runs import Done, run

SHORT = ("--only", "records", "--minutes", "1.7")  # with more, everything takes longer
GLOO = {"line: gloo timeout"}
CHANGED = {"4": "6", "3": "4"}  # of digits in a line; of words any other one
# In what the fake NCCL and torch say.
LIES = [
    *(("NCCL INFO", "NCCL NOTE"), ("NCCL version", "NCCL release"), ("Init COMPLETE", "Init DONE")),
    *(("PG GUID", "PG UUID"), ("OpType=", "Op="), ("last enqueued work", "enqueued"), ("First PG", "1st PG")),
    *(("Stack trace", "Backtrace"), ("Observed", "Saw"), ("Received a", "Got a")),
    *(("2.10", "3.0"), ("pg_config", "groups"), ("retired", "gone"), ("last_started", "begun"), ("nccl:all", "all")),
    *(("nccl_version", "version"), ("secondary_hash", "hash2"), ("nvml_dev", "gpu"), ("Comms", "C")),
]


def one_run(folder: Path, **env: str) -> Done:
    return run(GpuMachine(folder / "machine", ranks=False), *SHORT, env=env)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return once(tmp_path_factory, "records", one_run)


@pytest.fixture(scope="module")
def data(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(saved(done).read_text())
    return found


def saved(done: Done) -> Path:
    return next(done.directory.glob("fixtures/*/records.json"))


def test_the_whole_command_agrees(done: Done) -> None:
    assert (done.code, done.names("differs"), done.names("not tried")) == (0, set(), GLOO), done.report
    assert done.names("agrees") == set(records.CHECKS) - GLOO
    assert wrong(saved(done).parent) == []
    log = json.loads(saved(done).read_text())["logs"][0]
    assert re.search(r"^host:\d+:\d+ \[0\] NCCL INFO", log, re.MULTILINE) and str(done.directory) not in log


def test_all_that_can_lie_differs(tmp_path: Path) -> None:
    done = one_run(tmp_path, MLTOP_FAKE_TORCH_RECORDS=json.dumps(LIES))
    lines = {name for name in records.CHECKS if name.startswith("line: ")} - GLOO
    dumps = {f"dump: {name}" for name in ("version", "keys", "entry keys", "pg_status keys", "last entry")}
    answers = {"ras: keys", "ras: communicator keys", "ras: rank keys", "ras: text"}
    assert done.names("differs") == lines | dumps | answers, done.report


def test_where_nccl_refuses_gloo_tells_its_own(tmp_path: Path) -> None:
    done = one_run(tmp_path, MLTOP_FAKE_TORCH_NCCL="refuses")
    assert {"line: gloo timeout", "line: NCCL init", "dump: plain data", "dump: last entry"} <= done.names("agrees")
    assert done.names("differs") == {"dump: entry keys"}, done.report  # the fake's gloo has few of them
    for name in ("line: watchdog timeout", "timeout: op and limit", "ras: pids"):
        assert "Duplicate GPU detected" in done.check(name)["why"], name


def test_one_lie_makes_one_check_differ(data: dict[str, Any]) -> None:
    others = {}
    for name, fault in FAULTS.items():
        bent = copy.deepcopy(data)
        if name in GLOO:
            bent["backend"], bent["dumps"] = "gloo", {}
            bent["logs"][0] += "RuntimeError: Timed out waiting 1500ms for recv operation to complete\n"
            assert differing(checks_of(Had.of(bent))) == set()
        for lie in fault.lies:
            put(bent, lie)
        found = differing(checks_of(Had.of(bent)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def put(data: dict[str, Any], lie: Lie) -> None:
    at: Any = data
    *path, last = lie.name.split(".")
    for name in path:
        at = at[int(name)] if isinstance(at, list) else at[name]
    key: Any = int(last) if isinstance(at, list) else last
    if lie.source == "line":
        assert re.search(lie.text, at[key]), lie
        at[key] = re.sub(lie.text, lambda found: other(found[0]), at[key])
    elif lie.text == "null":
        del at[key]
    else:
        at[key] = json.loads(lie.text)


def other(text: str) -> str:
    """As long, and not the same."""
    return text[:-1] + CHANGED.get(text[-1], "~" if not text[-1].isalnum() else "Q" if text[-1] != "1" else "2")


def test_a_dump_is_read_as_plain_data_only() -> None:
    found, opcodes = read_dump(pickle.dumps({"version": "2.10", "entries": [1, None, 1.5]}, protocol=2))
    assert found == {"version": "2.10", "entries": [1, None, 1.5]} and "EMPTY_DICT" in opcodes
    assert read_dump(pickle.dumps(time.sleep)) == ("UnpicklingError: it names time.sleep", [])
    assert read_dump(b"")[0].startswith("EOFError") or read_dump(b"")[0].startswith("ValueError")
    assert isinstance(read_dump(b"no pickle at all")[0], str)


def test_json_without_a_comma_is_read() -> None:
    text = '{"missing_ranks":[\n{"rank":3,\n"nvml_dev": 1\n"status":{"unresponsive":true}\n}]}'
    assert Answer(text).data() == {"missing_ranks": [{"rank": 3, "nvml_dev": 1, "status": {"unresponsive": True}}]}


def test_an_nccl_without_ras_or_json_is_not_tried(data: dict[str, Any]) -> None:
    bent = copy.deepcopy(data)
    bent["ras"][0].update(text="NCCL version 2.26.2\n", greeting="SERVER PROTOCOL 2\nOK\nERROR: Unknown command\n")
    outcomes = {check.name: check for check in checks_of(Had.of(bent))}
    assert outcomes["ras: pids"].outcome == "not tried" and "2.28.7" in outcomes["ras: pids"].why
    assert outcomes["ras: text"].outcome == "agrees"
    bent["ras"][0].update(text="", why="RAS on port 1: [Errno 111] Connection refused")
    told = [check for check in checks_of(Had.of(bent)) if check.name.startswith("ras: ")]
    assert {check.outcome for check in told} == {"not tried"} and "before 2.24" in told[0].why


def test_real_gloo_says_and_dumps_so(tmp_path: Path) -> None:
    checks = {check.name: check for check in checks_of(with_real_torch(tmp_path))}
    agreed = {name for name, check in checks.items() if check.outcome == "agrees"}
    assert {"line: gloo timeout", *(f"dump: {name}" for name in records.DUMPS[:-1])} <= agreed, checks
    assert differing(checks.values()) == set()


def with_real_torch(folder: Path) -> Had:
    context = Context(folder, time.monotonic() + 120, Pythons(sys.executable, sys.executable), Machine(), False)
    settings = {**records.SETTINGS, "JOB_TIMEOUT_S": "1"}
    with Job(context, "collective", ["", ""], "gloo", settings, device="cpu") as job:
        had = Had("gloo", 1.0, job.pids, why={"nccl": "no GPU", "NCCL's log": "no GPU", "ras": "no GPU"})
        records.collect(context, job, had)
    return had
