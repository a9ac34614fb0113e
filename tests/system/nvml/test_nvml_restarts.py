"""NVML's reader starting anew: long answers that come in pieces, activity that does not go blank, new libraries."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.model import GpuSample
from tests.fakes.nvml.build import LIBRARY, build
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.nvml_sources import (
    DEADLINE_S,
    Answer,
    Start,
    all_ok,
    child_pid,
    fake_here,
    hurry,
    is_gone,
    replace_child,
    starter,
    states,
    tick,
    tick_until,
    whys,
)
from tests.waiting import wait_until

ACTIVITY = ("sm_active", "tensor_active", "dram_active", "sm_occupancy", "fp16_active")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 3)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    yield from starter(fake)


def test_an_answer_larger_than_a_pipe_is_taken_although_it_comes_late(fake: FakeNvml, start: Start) -> None:
    """It is complete when its time is over, but the child can only write what the pipe has room for."""
    shape("gb200", fake, 16)  # 160 KB
    fake.set("call.nvmlInitWithFlags", "block 3")
    source = start(0.3, 60.0)
    tick_until(source, lambda answer: "stuck in nvmlInit" in whys(answer), "the call to be named")
    pid = child_pid(source)
    worker = source._worker
    assert worker is not None
    wait_until(lambda: worker.has_spoken(), DEADLINE_S, "the answer to be written")
    hurry(source, 0.5)
    answer = tick_until(source, lambda answer: answer[0], "the answer")
    assert states(answer) == ["ok"] * 16
    assert child_pid(source) == pid and not is_gone(pid)


def test_the_rest_of_an_answer_that_does_not_come_is_given_up(fake: FakeNvml, start: Start) -> None:
    """A child that was stopped in the middle of its answer."""
    shape("gb200", fake, 16)  # 160 KB
    fake.set("call.nvmlInitWithFlags", "block 3")
    source = start(0.3, 60.0)
    tick_until(source, lambda answer: "stuck in nvmlInit" in whys(answer), "the call to be named")
    pid, worker = child_pid(source), source._worker
    assert worker is not None
    wait_until(lambda: worker.has_spoken(), DEADLINE_S, "the answer to be written")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "state T" in worker.kernel_state(), DEADLINE_S, "the child to stop")
    tick(source)
    assert worker.received_s is not None, "a part of it"
    replace_child(source)
    tick_until(source, lambda answer: states(answer) == ["ok"] * 16, "the answer of another child")


def test_a_child_that_writes_without_end_is_ended(
    fake: FakeNvml, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that holds more than any machine would."""
    monkeypatch.setattr("mltop.probes.collect.nvml.worker.MAX_ANSWER_BYTES", 1000)
    shape("gb200", fake, 16)  # 160 KB
    source = start(0.3, 60.0)
    answer = tick_until(source, lambda answer: "without end" in whys(answer), "the end of patience")
    assert [gap.code for gap in answer[1] if "without end" in gap.why] == ["stuck"]


def active(gpu: GpuSample) -> list[float | None]:
    return [getattr(gpu, name) for name in ACTIVITY]


def busy(fake: FakeNvml) -> None:
    for metric, percent in {2: 50, 3: 30, 5: 40, 10: 20, 13: 10, 20: 100, 21: 200}.items():
        fake.set(f"gpu.*.gpm.{metric}", percent)


def is_measured(gpu: GpuSample) -> bool:
    rates = (gpu.pcie.rx_bytes_per_s, gpu.nvlink.rx_bytes_per_s, gpu.throttle_share.get("sw_power_cap"))
    return all(value is not None for value in (*active(gpu), *rates))


def test_the_first_answer_of_a_second_child_has_activity(fake: FakeNvml, start: Start) -> None:
    """Killed by hand, or ended because it hung on another GPU: at no sample are the others blank."""
    busy(fake)
    source = start(1.0, 60.0)
    tick_until(source, lambda answer: all_ok(answer) and all(map(is_measured, answer[0])), "activity")
    pid = child_pid(source)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), DEADLINE_S, "the child to die")
    seen: list[Answer] = []

    def told(answer: Answer) -> Answer:
        seen.append(answer)
        return answer

    before = source.collect(time.time(), 0.0)[0][0].last_seen_at
    tick_until(source, lambda answer: told(answer)[0][0].last_seen_at != before, "the new child's first answer")
    assert child_pid(source) != pid
    assert all(is_measured(gpu) for answer in seen for gpu in answer[0])
    first = seen[-1][0][0]
    assert (first.sm_active, first.tensor_active, first.fp16_active) == pytest.approx((0.5, 0.4, 0.1))
    assert not [gap for gap in seen[-1][1] if gap.kind == "starting"]


def test_a_gpu_that_hangs_costs_the_others_no_activity(fake: FakeNvml, start: Start) -> None:
    busy(fake)
    source = start(1.0, 60.0)
    tick_until(source, lambda answer: all_ok(answer) and all(map(is_measured, answer[0])), "activity")
    fake.set("gpu.1.call.nvmlDeviceGetClockInfo", "block forever")
    fake.write()
    tick_until(source, lambda answer: "stuck in nvmlDeviceGetClockInfo on GPU 1" in whys(answer), "the hang")
    pid, patience_s = child_pid(source), source._kill_after_s
    hurry(source, 0.1)
    wait_until(lambda: tick(source) and is_gone(pid), DEADLINE_S, "the child that hangs to be ended")
    hurry(source, patience_s)
    seen: list[Answer] = []

    def told(answer: Answer) -> Answer:
        seen.append(answer)
        return answer

    before = source.collect(time.time(), 0.0)[0][0].last_seen_at
    tick_until(source, lambda answer: told(answer)[0][0].last_seen_at != before, "the others' next answer")
    assert states(seen[-1]) == ["ok", "error", "ok"]
    for answer in seen:
        assert all(is_measured(answer[0][index]) for index in (0, 2) if answer[0][index].state == "ok")


def test_the_reader_that_is_made_anew_after_a_failure_has_activity_at_once(fake: FakeNvml, start: Start) -> None:
    """All of NVML fails for a while, and the next answer after that has all that it had before."""
    busy(fake)
    source = start(init_retry_first_s=0.2, init_retry_s=0.2)
    tick_until(source, lambda answer: all_ok(answer) and all(map(is_measured, answer[0])), "activity")
    fake.set("call.nvmlDeviceGetCount", "error 999")
    fake.write()
    tick_until(source, lambda answer: states(answer) == ["error"] * 3, "the failure")
    fake.unset("call.nvmlDeviceGetCount")
    fake.write()
    answer = tick_until(source, all_ok, "three GPUs")
    assert all(map(is_measured, answer[0]))


def test_instances_of_mig_keep_their_activity(fake: FakeNvml, start: Start) -> None:
    """They take turns over many seconds, but after a second child's start."""
    fake.set("gpu.1.mig_enabled", True)
    for place in range(3):
        fake.set(f"gpu.1.mig.{place}", f"1g.10gb gi={place + 3} gpm.2=50 gpm.5=25")
    source = start()
    tick_until(source, lambda answer: all_ok(answer) and len(answer[0][1].mig_instances) == 3, "the instances")
    pid = child_pid(source)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), DEADLINE_S, "the child to die")
    before = source.collect(time.time(), 0.0)[0][0].last_seen_at
    answer = tick_until(source, lambda answer: answer[0][0].last_seen_at != before, "the new child's first answer")
    assert [instance.sm_active for instance in answer[0][1].mig_instances] == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("code", [1, 9, 18, 999])
def test_a_library_that_only_has_to_be_initialised_again_costs_no_sample(
    fake: FakeNvml, start: Start, code: int
) -> None:
    """As after the driver was loaded anew: every call fails, initialising does not."""
    busy(fake)
    source = start()
    tick_until(source, lambda answer: all_ok(answer) and all(map(is_measured, answer[0])), "activity")
    seen: list[Answer] = []

    def told(answer: Answer) -> Answer:
        seen.append(answer)
        return answer

    fake.set("call.nvmlDeviceGetCount", f"error {code} until init")
    fake.set("gpu.*.power_mw", 123_000)
    fake.write()
    tick_until(source, lambda answer: told(answer)[0][0].power_w == 123, "what it says after that")
    assert all(all_ok(answer) and all(map(is_measured, answer[0])) for answer in seen)
    assert not [gap for answer in seen for gap in answer[1] if gap.what == "nvml"]


def library_here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fake library that can be replaced as an upgrade of a driver does it."""
    directory.mkdir()
    path = directory / LIBRARY
    shutil.copy(build() / LIBRARY, path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))
    return path


def mapped_inode(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if LIBRARY in line}


def test_after_an_upgrade_the_new_library_is_loaded(
    fake: FakeNvml, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one would be refused for ever by the new kernel module, however well the two fit that are there now."""
    path = library_here(tmp_path / "lib", monkeypatch)
    source = start(init_retry_first_s=0.2, init_retry_s=0.2)
    tick_until(source, all_ok, "three GPUs")
    pid, old = child_pid(source), mapped_inode(child_pid(source))
    assert old == {path.stat().st_ino}
    fake.set("call.*", "error 18")
    fake.write()
    tick_until(source, lambda answer: "upgraded" in whys(answer), "the mismatch")
    tick_until(source, lambda answer: mapped_inode(pid) == old, "the same library while there is no other")
    fresh = path.with_suffix(".new")
    shutil.copy(path, fresh)
    fresh.replace(path)
    tick_until(source, lambda answer: mapped_inode(pid) == {path.stat().st_ino}, "the new library")
    assert child_pid(source) == pid, "the same process"
    fake.unset("call.*")
    fake.write()
    tick_until(source, all_ok, "three GPUs again")
