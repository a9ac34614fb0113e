"""What NVML is asked once: a failure that passes does not leave it unknown for the agent's life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.nvml.worker import Worker
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import fake_here

PASSING, NO_PERMISSION = 999, 4


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 1)


@pytest.fixture
def worker(fake: FakeNvml) -> Iterator[Worker]:
    fake.write()
    running = Worker()
    yield running
    running.kill()
    running.close()


def serial(worker: Worker, at_s: float) -> tuple[bool, Any]:
    """Whether the child told static values at this time of its caller's clock, and the serial number in them."""
    worker.ask({"at_s": at_s, "skip": [], "without": [], "again": False})
    answer = worker.answer(20.0)
    assert answer is not None, "the child does not answer"
    (gpu,) = answer["gpus"]
    static = gpu["read"].get("static")
    return static is not None, static and static["values"].get("serial")


def test_a_failure_that_passes_is_asked_again_after_a_minute(fake: FakeNvml, worker: Worker) -> None:
    fake.set("gpu.0.call.nvmlDeviceGetSerial", f"error {PASSING}")
    fake.write()
    assert serial(worker, 100.0) == (True, None)
    fake.unset("gpu.0.call.nvmlDeviceGetSerial")
    fake.write()
    assert serial(worker, 130.0) == (False, None)
    told, number = serial(worker, 160.0)
    assert told
    assert number
    assert serial(worker, 300.0) == (False, None)


def test_what_is_not_permitted_is_not_asked_again(fake: FakeNvml, worker: Worker) -> None:
    fake.set("gpu.0.call.nvmlDeviceGetSerial", f"error {NO_PERMISSION}")
    fake.write()
    assert serial(worker, 100.0) == (True, None)
    fake.unset("gpu.0.call.nvmlDeviceGetSerial")
    fake.write()
    assert serial(worker, 300.0) == (False, None)
