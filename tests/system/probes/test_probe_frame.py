"""Probe processes under their supervisor: real processes that measure, hang, die, print garbage, close their output."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model.probe import ProbeEvent
from tests.fakes.probes import Runs, gpu, idle, of, pids_in, torch_python
from tests.processes import is_gone

TWO = (gpu(0), gpu(1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(torch_python(tmp_path_factory.mktemp("python")))


def whys(events: list[ProbeEvent]) -> list[str]:
    return [event.why for event in of(events, "failed", "refused")]


def only_failure(events: list[ProbeEvent]) -> ProbeEvent:
    (failure,) = of(events, "failed", "refused")
    return failure


def test_one_process_per_device(runs: Runs) -> None:
    events = runs.run(idle(*TWO), "measure")
    assert whys(events) == []
    (devices,) = of(events, "devices")
    assert devices.data["torch"] == "2.9.0+cu128"
    assert devices.data["cuda"] == "12.8"
    assert devices.data["python"] == sys.executable
    assert [device["uuid"] for device in devices.data["devices"]] == ["GPU-0", "GPU-1"]
    results = {event.device: event.data for event in of(events, "result")}
    assert {uuid: (data["node"], data["gpu"], data["cwd"]) for uuid, data in results.items()} == {
        "GPU-0": ("n1", 0, "/"),
        "GPU-1": ("n1", 1, "/"),
    }
    assert results["GPU-1"]["seen"] == {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    stages = [(event.stage, event.deadline_s) for event in of(events, "stage") if event.device == "GPU-0"]
    assert stages == [("start python", 10.0), ("import torch", 30.0), ("device", 40.0), ("warm", 10.0), ("warm", 10.0)]


def test_one_process_for_all_devices(runs: Runs) -> None:
    events = runs.run(idle(*TWO), "measure", kind="copies")
    assert {event.data["seen"]["CUDA_VISIBLE_DEVICES"] for event in of(events, "result")} == {"GPU-0,GPU-1"}
    assert [event.device for event in of(events, "result")] == ["GPU-0", "GPU-1"]
    assert whys(events) == []


def test_without_gpus_the_processors_are_one_device(runs: Runs) -> None:
    events = runs.run(idle(), "measure")
    (result,) = of(events, "result")
    assert result.device == "cpu"
    assert result.data["seen"]["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_stage_that_does_not_end_is_named_and_its_processes_are_ended(deaf: bool, runs: Runs, tmp_path: Path) -> None:
    began = time.monotonic()
    how = {"deaf": True} if deaf else {"asked": str(tmp_path / "asked")}
    events = runs.run(idle(gpu()), "hang", **how, deadlines_s={"warm": 0.2})
    failure = only_failure(events)
    assert (failure.device, failure.stage, failure.why) == (
        "GPU-0",
        "warm",
        "stage 'warm' was not over within 0.2 s",
    )
    pids = pids_in(events)
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)
    assert (tmp_path / "asked").exists() != deaf
    assert time.monotonic() - began > 2.0 or not deaf  # SIGKILL comes two seconds after SIGTERM


def test_progress_is_no_new_stage(runs: Runs) -> None:
    failure = only_failure(runs.run(idle(gpu()), "progress", deadlines_s={"warm": 0.3}))
    assert failure.why == "stage 'warm' was not over within 0.3 s"


def test_all_of_it_has_a_limit(runs: Runs) -> None:
    failure = only_failure(runs.run(idle(gpu()), "hang", total_s=1.0))
    assert failure.why == "the probe was not over within 1 s (it was in stage 'warm')"


IMPORT_ERROR = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    import torch
ImportError: libcudart.so.12: cannot open shared object file: No such file or directory
"""
CUDA_ERROR = """RuntimeError: CUDA error: an illegal memory access was encountered
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"says": IMPORT_ERROR, "code": 1}, "ImportError: libcudart.so.12: cannot open shared object file: No such "),
        ({"says": CUDA_ERROR, "code": 1}, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ({"says": OUT_OF_MEMORY, "code": 1}, "out of memory: torch.OutOfMemoryError: CUDA out of memory. Tried to"),
        ({"signal": signal.SIGKILL}, "killed by SIGKILL"),
        ({"signal": signal.SIGSEGV, "says": "loading\n"}, "killed by SIGSEGV (loading)"),
        ({"code": 7}, "it ended with exit code 7 and no result"),
        ({"code": 0}, "it ended with exit code 0 and no result"),
    ],
)
def test_how_it_died(options: dict[str, Any], why: str, runs: Runs) -> None:
    failure = only_failure(runs.run(idle(gpu()), "die", **options))
    assert failure.why.startswith(f"died in stage 'import torch': {why}")
    assert failure.stage == "import torch"
    assert bool(failure.fix) == ("memory: " in failure.why)


def test_noise_of_any_kind_is_no_event(runs: Runs) -> None:
    events = runs.run(idle(gpu()), "garbage")
    assert [(event.event, event.stage) for event in events if event.event != "devices"] == [
        ("stage", "start python"),
        ("stage", "warm"),
        ("result", ""),
    ]


def test_a_flood_is_ended(runs: Runs) -> None:
    failure = only_failure(runs.run(idle(gpu()), "flood"))
    assert failure.why == "it wrote more than 16 MB in stage 'start python'"


def test_one_that_closes_its_output_is_ended(runs: Runs) -> None:
    events = runs.run(idle(gpu()), "silence")
    assert only_failure(events).why == "closed its output in stage 'warm' without ending"
    assert all(is_gone(pid) for pid in pids_in(events))


def test_one_that_does_not_end_after_its_result_is_no_failure(runs: Runs) -> None:
    events = runs.run(idle(gpu()), "linger")
    assert [event.data for event in of(events, "result")] == [{"uuid": "GPU-0"}]
    assert whys(events) == []


def test_cancel_ends_everything(runs: Runs) -> None:
    cancelled = threading.Event()

    def on_event(event: ProbeEvent) -> None:
        if event.stage == "warm" and event.device == "GPU-1":
            cancelled.set()

    events = runs.run(idle(*TWO), "hang", on_event, cancelled)
    assert whys(events) == []
    pids = pids_in(events)
    assert len(pids) >= 2
    assert all(is_gone(pid) for pid in pids)


def test_only_one_probe_at_a_time(runs: Runs) -> None:
    second: list[ProbeEvent] = []
    cancelled = threading.Event()

    def on_event(event: ProbeEvent) -> None:
        if event.stage == "warm":
            second.extend(runs.run(idle(gpu()), "measure", key="k2", force=True))
            cancelled.set()

    first = runs.run(idle(gpu()), "hang", on_event, cancelled, key="k1")
    refusal = only_failure(second)
    assert refusal.event == "refused"
    assert refusal.why == f"a matmul probe of mltop (pid {pids_in(first)[0]}, key k1) runs here"
    assert whys(runs.run(idle(gpu()), "measure")) == []


def test_a_launcher_is_told_rounds_and_waits_without_a_deadline(runs: Runs) -> None:
    seen: list[str] = []

    def on_event(event: ProbeEvent) -> None:
        seen.append(event.event)
        if event.event == "ready":
            assert runs.supervisor.tell("another", {}) != ""
            time.sleep(0.5)  # longer than the stage before it may take
            assert runs.supervisor.tell("k1", {"tell": "round", "round": 3}) == ""
        if event.event == "round":
            assert runs.supervisor.tell("k1", {"tell": "end"}) == ""

    events = runs.run(idle(*TWO), "launch", on_event, kind="all_reduce", deadlines_s={"join": 0.3})
    assert seen == ["devices", "stage", "stage", "ready", "stage", "times", "round"]
    (ready,) = of(events, "ready")
    assert ready.data["devices"] == ["GPU-0", "GPU-1"]
    assert ready.data["options"]["backend"] == "nccl"
    assert [event.data for event in of(events, "times", "round")] == [{"round": 3}, {"round": 3}]
    assert runs.supervisor.tell("k1", {}) == "no probe with the key k1 runs here"


def test_a_python_that_is_not_there_is_a_sentence() -> None:
    events = Runs("/nowhere/python").run(idle(gpu()), "measure")
    failure = only_failure(events)
    assert failure.why.startswith("no Python with a torch that will do: /nowhere/python (named for this probe): ")
    assert "not found" in failure.why
    assert "--torch-python PATH" in failure.fix


def test_processes_cannot_dump_core_and_are_the_first_to_go_without_memory(runs: Runs, tmp_path: Path) -> None:
    limits: list[str] = []

    def on_event(event: ProbeEvent) -> None:
        for pid in event.data.get("pids", ())[:1]:
            limits.append(Path(f"/proc/{pid}/limits").read_text())
            limits.append(Path(f"/proc/{pid}/oom_score_adj").read_text())
            assert os.getsid(pid) == pid
            os.kill(pid, signal.SIGKILL)

    facts = idle()
    facts.samples[-1].host.memory_available_bytes = 6 << 30
    runs.run(facts, "hang", on_event)
    assert any(line.split()[:6] == ["Max", "core", "file", "size", "0", "0"] for line in limits[0].splitlines())
    assert any(line.split()[:4] == ["Max", "data", "size", str(3 << 30)] for line in limits[0].splitlines())
    assert limits[1].strip() == "1000"
