"""`dcgmi diag`: what it says is read, a node that is in use refuses, and it ends in every case."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.agent import diagnosis
from mltop.probes.agent.diagnosis import diagnose, in_use, parse_diag
from mltop.probes.agent.programs import Unavailable
from mltop.probes.model import GpuProcess, GpuSample, RankSample, Sample
from mltop.probes.model.acts import DiagResult
from tests.fakes.dcgmi import NOT_RUNNING, VERSION_3, VERSION_4, fake_dcgmi
from tests.waiting import wait_until

IDLE = Sample("n1", 1.0, gpus=[GpuSample(0, busy=0.0, memory_used_bytes=0, processes=[])])


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(output: object, code: str = "") -> Path:
        return fake_dcgmi(tmp_path, output, code)

    return make


def run(sample: Sample = IDLE, ranks: list[RankSample] | None = None, cancelled: threading.Event | None = None) -> Any:
    def samples(*_: object) -> list[Sample]:
        return [sample]

    return diagnose(ranks or [], samples, cancelled or threading.Event())


@pytest.mark.parametrize(
    ("output", "results"),
    [
        (
            VERSION_3,
            [
                DiagResult("Denylist", "pass"),
                DiagResult("Persistence Mode", "warn", text="is off"),
                DiagResult("Page Retirement/Row Remap", "pass", [0, 1]),
                DiagResult("Page Retirement/Row Remap", "fail", [2], "a row remapping failed"),
            ],
        ),
        (VERSION_4, [DiagResult("software", "pass", [0]), DiagResult("software", "fail", [1], "row remap failure")]),
    ],
)
def test_what_it_says(output: object, results: list[DiagResult], dcgmi: Callable[..., Path], tmp_path: Path) -> None:
    dcgmi(output)
    answer = run()
    assert [DiagResult(**result) for result in answer["results"]] == results and answer["took_s"] > 0
    assert (tmp_path / "args").read_text() == "diag -r 1 -j"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (NOT_RUNNING, "unable to establish a connection"),
        ("Error: Bad parameter\nmore", "dcgmi says: Error: Bad parameter"),
        ("", "dcgmi says: nothing"),
        ('{"a": ' * 5000, "dcgmi says"),
        ('{"DCGM Diagnostic": {"test_categories": 5}}', "dcgmi says"),
    ],
)
def test_what_is_no_diagnosis_is_a_sentence(output: object, words: str, dcgmi: Callable[..., Path]) -> None:
    dcgmi(output)
    with pytest.raises(Unavailable, match=words):
        run()


@pytest.mark.parametrize(
    "strange",
    [
        '{"d": {"test_categories": [5, {"tests": 5}, {"tests": [5, {"results": [5, {}]}]}]}}',
        '{"d": {"test_categories": [{"tests": [{"name": 7, "results": [{"status": 9, "gpu_id": "x"}]}]}]}}',
    ],
)
def test_strange_reports_do_no_harm(strange: str) -> None:
    assert all(result.status == "unknown" for result in parse_diag(strange))


BUSY = {
    "a rank": ([RankSample(5, 0, job="j", state="S")], IDLE),
    "a process": ([], Sample("n1", 1.0, gpus=[GpuSample(0, processes=[GpuProcess(7)])])),
    "activity": ([], Sample("n1", 1.0, gpus=[GpuSample(0, busy=0.5)])),
    "memory": ([], Sample("n1", 1.0, gpus=[GpuSample(0, memory_used_bytes=2 << 30)])),
    "nobody knows": ([], Sample("n1", 1.0)),
}


@pytest.mark.parametrize("what", BUSY)
def test_a_node_that_is_in_use_refuses(what: str, dcgmi: Callable[..., Path], tmp_path: Path) -> None:
    dcgmi(VERSION_3)
    ranks, sample = BUSY[what]
    with pytest.raises(Unavailable, match="would disturb the work"):
        run(sample, ranks)
    assert not (tmp_path / "args").exists()


def test_a_dead_rank_uses_nothing() -> None:
    assert in_use([RankSample(5, 0, state="Z")], IDLE) == ""


def test_without_dcgmi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no dcgmi"):
        run()


def test_one_that_hangs_is_ended(dcgmi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    dcgmi(VERSION_3, f"import os, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(600)")
    monkeypatch.setattr(diagnosis, "DEADLINE_S", 3.0)
    with pytest.raises(Unavailable, match="did not end within 3 s"):
        run()
    wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists(), what="its end")


def test_cancelling_ends_it(dcgmi: Callable[..., Path]) -> None:
    dcgmi(VERSION_3, "import time\ntime.sleep(600)")
    cancelled = threading.Event()
    threading.Timer(0.5, cancelled.set).start()
    began = time.monotonic()
    with pytest.raises(Unavailable, match="cancelled"):
        run(cancelled=cancelled)
    assert time.monotonic() - began < 60
