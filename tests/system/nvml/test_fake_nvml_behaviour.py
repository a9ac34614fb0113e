"""The fake NVML's errors, blocking, re-reading and counting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml.child import Child
from tests.fakes.nvml.counts import calls_on_gpu, per_gpu, read_counts
from tests.fakes.nvml.scenario import FakeNvml
from tests.waiting import wait_until

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", count=8)


@pytest.fixture
def child(fake: FakeNvml) -> Iterator[Child]:
    with Child(fake) as running:
        yield running


def test_unsupported_keys_and_fields(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.3.power_mw", "unsupported")
    fake.set("gpu.3.memory_temperature_c", "unsupported")
    fake.set("gpu.4.field.82", "error 4")
    fake.set("gpu.4.field.999", 12345)
    fake.write()
    assert child.error("nvmlDeviceGetPowerUsage(handle(3))") == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert child("nvmlDeviceGetPowerUsage(handle(2))") == 70000
    assert child("fields(3, 82, 83, 999)") == [[3, 1, 0], [0, 3, 0], [3, 3, 0]]
    assert child("fields(4, 82, 999)") == [[4, 1, 0], [0, 3, 12345]]
    assert child.error("nvmlDeviceGetFanSpeed(handle(0))") == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_ecc_counters_exist_only_while_ecc_is_on(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.ecc_enabled", False)
    fake.write()
    assert child.error("nvmlDeviceGetTotalEccErrors(handle(0), 1, 0)") == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_lost_gpu_refuses_everything_and_the_others_answer(fake: FakeNvml, child: Child) -> None:
    child("globals().update(kept=handle(3))")
    fake.set("gpu.3.call.*", f"error {LOST}")
    fake.write()
    assert child.error("nvmlDeviceGetName(kept)") == LOST
    assert child.error("nvmlDeviceGetFieldValues(kept, [82])") == LOST
    assert child.error("handle(3)") == LOST
    assert child("[nvmlDeviceGetPowerUsage(handle(i)) for i in (0, 1, 2, 4, 5, 6, 7)]") == [70000] * 7
    fake.set("gpu.3.call.nvmlDeviceGetHandleByIndex", "ok")
    fake.write()
    assert child.error("nvmlDeviceGetName(handle(3))") == LOST
    fake.unset("gpu.3.call.*")
    fake.write()
    assert child("nvmlDeviceGetName(kept)").startswith("NVIDIA")


def test_missing_functions_raise_function_not_found(fake: FakeNvml, child: Child) -> None:
    fake.set("call.nvmlDeviceGetTemperatureV", "missing")
    fake.write()
    child.ask("nvmlDeviceGetTemperatureV(handle(0), 0)")
    assert child.answer()["type"] == "NVMLError_FunctionNotFound"
    assert child("nvmlDeviceGetTemperature(handle(0), 0)") == 32  # the name is not a prefix
    child.ask("nvmlDeviceGetGridLicensableFeatures(handle(0))")  # not in the library at all
    assert child.answer()["type"] == "NVMLError_FunctionNotFound"


def test_exact_names_win_over_families_and_those_over_all(fake: FakeNvml, child: Child) -> None:
    fake.set("call.nvmlDeviceGetMemoryInfo_v2", "ok")
    fake.set("call.nvmlDeviceGetMemoryInfo", "error 4")
    fake.set("gpu.*.call.*", "error 999")
    fake.set("call.nvmlDeviceGetHandleByIndex", "ok")
    fake.write()
    assert child("nvmlDeviceGetMemoryInfo(handle(0), nvmlMemory_v2).used") == 0
    assert child.error("nvmlDeviceGetMemoryInfo(handle(0))") == 4
    assert child.error("nvmlDeviceGetName(handle(0))") == 999
    assert child("nvmlDeviceGetCount()") == 8  # concerns no GPU


def test_initialisation_can_fail_and_is_needed(fake: FakeNvml) -> None:
    fake.set("call.nvmlInit", "error 9")
    fake.write()
    child = Child(fake, initialize=False)
    try:
        assert child.error("nvmlInit()") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        assert child.error("nvmlDeviceGetCount()") == pynvml.NVML_ERROR_UNINITIALIZED
        fake.unset("call.nvmlInit")
        fake.write()
        child("nvmlInit()")
        assert child("nvmlDeviceGetCount()") == 8
        child("nvmlShutdown()")
        assert child.error("nvmlShutdown()") == pynvml.NVML_ERROR_UNINITIALIZED
    finally:
        child.close()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("gpu.3.powr_mw", "1", 'unknown key "gpu.3.powr_mw"'),
        ("driver_version", "1", 'unknown key "driver_version"'),
        ("gpu.3.power_mw", "312 W", "power_mw is an integer"),
        ("gpu.8.power_mw", "1", "gpu.8, but count = 8"),
        ("gpu.x.power_mw", "1", "a GPU is * or 0 to"),
        ("gpu.0.throttle_mask", "44", "mask such as 0x40"),
        ("gpu.0.persistence", "yes", "persistence is 0 or 1"),
        ("gpu.0.processes", "12:5", "PID:BYTES:compute"),
        ("call.nvmlDeviceGetPowr", "ok", "no function"),
        ("call.nvmlInit", "explode", "a call does"),
        ("gpu.0.field.x", "1", "no field id"),
    ],
)
def test_a_mistyped_scenario_aborts_with_one_clear_line(fake: FakeNvml, key: str, value: str, words: str) -> None:
    fake.set(key, value)
    fake.write()
    code = "import pynvml; pynvml.nvmlInit()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **fake.env()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    assert words in done.stderr
    assert done.stderr.startswith(f"fake NVML: {fake.path}:2: ")
    assert done.stderr.count("\n") == 1


def calls_of(fake: FakeNvml, function: str) -> int:
    return read_counts(fake.counts_path).get(function, 0)


def test_a_call_blocks_for_a_time_and_then_does_what_follows(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.3.call.nvmlDeviceGetPowerUsage", f"block 0.3 + error {LOST}")
    fake.write()
    started_s = time.monotonic()
    assert child.error("nvmlDeviceGetPowerUsage(handle(3))") == LOST
    assert time.monotonic() - started_s >= 0.3
    assert child("nvmlDeviceGetPowerUsage(handle(2))") == 70000


def test_block_forever_ends_when_the_scenario_changes(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.5.call.nvmlDeviceGetPowerUsage", "block forever")
    fake.write()
    child.ask("nvmlDeviceGetPowerUsage(handle(5))")
    wait_until(lambda: calls_of(fake, "nvmlDeviceGetPowerUsage") == 1, what="the blocking call")
    fake.set("gpu.5.power_mw", 123000)  # a change that does not unblock
    fake.write()
    time.sleep(0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(timeout=0.05)
    fake.unset("gpu.5.call.nvmlDeviceGetPowerUsage")
    fake.write()
    assert child.answer() == {"value": 123000}


def test_no_gpus_is_a_scenario_too(fake: FakeNvml, child: Child) -> None:
    fake.set("count", 0)
    fake.write()
    assert child("nvmlDeviceGetCount()") == 0


def test_block_forever_ends_with_sigterm(fake: FakeNvml) -> None:
    fake.set("call.nvmlInit", "block forever")
    fake.write()
    child = Child(fake, initialize=False)
    try:
        child.ask("nvmlInit()")
        wait_until(lambda: calls_of(fake, "nvmlInitWithFlags") == 1, what="the blocking call")
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(timeout=5) == -signal.SIGTERM
    finally:
        child.close()


def test_every_write_is_seen_by_the_next_call(fake: FakeNvml, child: Child) -> None:
    child("globals().update(kept=handle(0))")
    for watts in range(100, 400):
        fake.set("gpu.0.power_mw", watts * 1000)
        fake.write()
        assert child("nvmlDeviceGetPowerUsage(kept)") == watts * 1000


def test_counts_per_function_and_per_gpu_over_two_processes(fake: FakeNvml, child: Child) -> None:
    child("[nvmlDeviceGetClockInfo(handle(2), 1) for _ in range(5)]")
    other = Child(fake)
    try:
        other("nvmlDeviceGetClockInfo(handle(6), 1)")
    finally:
        other.close()
    counts = read_counts(fake.counts_path)
    assert counts["nvmlDeviceGetClockInfo"] == 6
    assert counts["nvmlInitWithFlags"] == 2
    assert "nvmlDeviceGetName" not in counts
    assert per_gpu(fake.counts_path) == {2: 10, 6: 2}  # each with its handle look-up
    assert calls_on_gpu(fake.counts_path, 2) == {
        "nvmlDeviceGetClockInfo": 5,
        "nvmlDeviceGetHandleByIndex_v2": 5,
    }


def test_counts_before_any_process_are_empty(tmp_path: Path) -> None:
    assert read_counts(tmp_path / "none") == {}
    assert per_gpu(tmp_path / "none") == {}
