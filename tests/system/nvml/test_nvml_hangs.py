"""NVML against the fake library: calls that never return, reader processes that die or stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml.scenario import FakeNvml
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


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 3)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    yield from starter(fake)


def test_a_call_that_never_returns(fake: FakeNvml, start: Start) -> None:
    """Named after a second; its child is replaced, the GPU is tried again and comes back."""
    fake.set("gpu.2.call.nvmlDeviceGetTemperatureV", "block forever")
    source = start(1.0, 60.0, skipped_gpu_s=6.0)
    named = tick_until(source, lambda answer: "stuck" in whys(answer), "the call to be named")
    assert "NVML does not answer: stuck in nvmlDeviceGetTemperatureV on GPU 2 for 1 s" in whys(named)
    assert any(gap.what == "nvml" and "dmesg" in gap.fix for gap in named[1])
    replace_child(source)
    others = tick_until(source, lambda answer: states(answer) == ["ok", "ok", "error"], "the others to answer")
    assert [gpu.power_w for gpu in others[0]] == [70, 70, None]
    assert "stuck in nvmlDeviceGetTemperatureV on GPU 2" in (others[0][2].error or "")
    assert "GPU 2 is left out for now" in whys(others)
    first = others[0][0].last_seen_at
    tick_until(source, lambda answer: answer[0][0].last_seen_at != first, "the others to go on answering")
    fake.unset("gpu.2.call.nvmlDeviceGetTemperatureV")
    fake.write()
    back = tick_until(source, all_ok, "GPU 2 to be tried again")
    assert "left out" not in whys(back)


def is_starting(answer: Answer) -> bool:
    return any(gap.what == "nvml.starting" and "GPUs not read yet" in gap.why for gap in answer[1])


def test_starting_is_said_until_the_first_poll_is_answered(fake: FakeNvml, start: Start) -> None:
    """Also while one GPU's call is stuck from the start: the others are there, only not read yet."""
    fake.set("gpu.2.call.nvmlDeviceGetUtilizationRates", "block forever")
    source = start(0.5, 60.0)
    answers: list[Answer] = []

    def told(answer: Answer) -> Answer:
        answers.append(answer)
        return answer

    tick_until(source, lambda answer: "stuck in nvmlDeviceGetUtil" in whys(told(answer)), "the call to be named")
    replace_child(source)
    tick_until(source, lambda answer: len(told(answer)[0]) == 3, "three GPUs")
    assert all(is_starting(answer) for answer in answers[:-1])
    assert any("stuck" in whys(answer) and is_starting(answer) for answer in answers)
    assert not is_starting(answers[-1])
    assert states(answers[-1]) == ["ok", "ok", "error"]


def test_children_that_keep_ending_are_not_starting_for_ever(
    fake: FakeNvml, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake ends a process whose scenario is missing."""
    source = start()
    monkeypatch.setenv("MLTOP_FAKE_NVML", str(tmp_path / "no such scenario"))
    answer = tick_until(source, lambda answer: "died" in whys(answer) and not is_starting(answer), "giving up")
    assert "SIGABRT" in whys(answer)


def test_values_of_a_stuck_poll_are_kept_and_their_age_is_told(fake: FakeNvml, start: Start) -> None:
    source = start(1.0, 60.0)
    before = tick_until(source, all_ok, "three GPUs")
    fake.set("gpu.1.call.nvmlDeviceGetClockInfo", "block forever")
    fake.write()
    answer = tick_until(source, lambda answer: " s old" in whys(answer), "the age")
    assert states(answer) == ["ok", "error", "ok"]
    assert [gpu.power_w for gpu in answer[0]] == [gpu.power_w for gpu in before[0]]
    assert "stuck in nvmlDeviceGetClockInfo on GPU 1" in (answer[0][1].error or "")


def test_ticks_are_quick_while_a_call_blocks(fake: FakeNvml, start: Start) -> None:
    source = start(0.3, 60.0)
    tick_until(source, all_ok, "three GPUs")
    fake.set("gpu.1.call.*", "block forever")
    fake.write()
    tick_until(source, lambda answer: "stuck" in whys(answer), "the call to be named")
    longest_s = 0.0
    for _ in range(20):
        started = time.perf_counter()
        tick(source)
        longest_s = max(longest_s, time.perf_counter() - started)
    assert longest_s < 10.0, "wait_s is 0.05, the call blocks forever"


@pytest.mark.parametrize("call", ["call.nvmlInitWithFlags", "gpu.0.call.nvmlDeviceGetUtilizationRates"])
def test_close_does_not_wait_for_a_blocked_call(fake: FakeNvml, start: Start, call: str) -> None:
    fake.set(call, "block forever")
    source = start(0.3, 60.0)
    answer = tick_until(source, lambda answer: "stuck" in whys(answer), "the call to be named")
    assert call.rpartition(".")[2].replace("WithFlags", "") in whys(answer)
    pid = child_pid(source)
    started = time.perf_counter()
    source.close()
    assert time.perf_counter() - started < DEADLINE_S, "the call blocks forever"
    wait_until(lambda: is_gone(pid), DEADLINE_S, "the child to end")


def test_a_stuck_initialisation_is_started_anew(fake: FakeNvml, start: Start) -> None:
    fake.set("call.nvmlInitWithFlags", "block forever")
    source = start(0.5, 60.0)
    tick_until(source, lambda answer: "stuck in nvmlInit" in whys(answer), "the call to be named")
    replace_child(source)
    fake.unset("call.nvmlInitWithFlags")
    fake.write()
    tick_until(source, all_ok, "three GPUs")


def test_slow_calls_are_waited_for(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.call.nvmlDeviceGetClockInfo", "block 0.2")
    source = start(5.0, 10.0)
    answer = tick_until(source, all_ok, "three GPUs")
    assert "stuck" not in whys(answer)
    first = answer[0][0].last_seen_at
    answer = tick_until(source, lambda answer: answer[0][0].last_seen_at != first, "the next poll")
    assert states(answer) == ["ok"] * 3
    assert "stuck" not in whys(answer)


def test_a_child_that_dies_is_replaced(fake: FakeNvml, start: Start) -> None:
    source = start()
    tick_until(source, all_ok, "three GPUs")
    first = child_pid(source)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_gone(first), DEADLINE_S, "the child to die")
    source.request(time.time())
    _, gaps = source.collect(time.time(), 0)
    assert "NVML's reader process died (SIGKILL)" in " ".join(gap.why for gap in gaps)
    answer = tick_until(source, lambda answer: "died" not in whys(answer), "a new child")
    assert all_ok(answer)
    assert child_pid(source) != first


def test_a_child_that_crashes_names_the_call(fake: FakeNvml, start: Start) -> None:
    source = start()
    tick_until(source, all_ok, "three GPUs")
    fake.set("gpu.1.call.nvmlDeviceGetClockInfo", "block forever")
    fake.write()
    pid = child_pid(source)
    tick_until(source, lambda answer: "yet" in whys(answer) or "old" in whys(answer), "the poll to be late")
    os.kill(pid, signal.SIGSEGV)
    answer = tick_until(source, lambda answer: "died" in whys(answer), "the crash to be named")
    assert "(SIGSEGV) in nvmlDeviceGetClockInfo on GPU 1" in whys(answer)
    answer = tick_until(source, lambda answer: states(answer) == ["ok", "error", "ok"], "the others")
    assert "SIGSEGV" in (answer[0][1].error or "")


def test_a_stopped_child_is_named_and_replaced(fake: FakeNvml, start: Start) -> None:
    source = start(0.3, 60.0)
    tick_until(source, all_ok, "three GPUs")
    pid = child_pid(source)
    os.kill(pid, signal.SIGSTOP)
    answer = tick_until(source, lambda answer: "in no call" in whys(answer), "the stop to be named")
    assert "state T" in whys(answer)
    replace_child(source)
    tick_until(source, lambda answer: all_ok(answer) and "nvml" not in [gap.what for gap in answer[1]], "a new one")


def test_the_child_dies_with_a_killed_agent(fake: FakeNvml) -> None:
    """Even inside a call that never returns, and even though nobody closes anything."""
    fake.set("gpu.0.call.nvmlDeviceGetUtilizationRates", "block forever")
    fake.write()
    code = """
import sys, time
from mltop.probes.collect.nvml.source import NvmlSource
source = NvmlSource()
while True:
    source.request(time.time())
    _, gaps = source.collect(time.time(), 0.1)
    if "nvmlDeviceGetUtilizationRates" in str(gaps):
        print(open(f"/proc/self/task/{__import__('os').getpid()}/children").read(), flush=True)
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    agent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        assert not is_gone(child)
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
    wait_until(lambda: is_gone(child), DEADLINE_S, "the reader process to die with its parent")


def test_everything_is_told_again_after_a_silence(fake: FakeNvml, start: Start) -> None:
    """What the reader process would not repeat because it has not changed, too."""
    source = start(0.2, 60.0)
    before = tick_until(source, all_ok, "three GPUs")[0][0]
    hurry(source, 0.5)
    fake.set("gpu.*.call.nvmlDeviceGetClockInfo", "block 0.3")
    fake.write()
    answer = tick_until(source, lambda answer: states(answer) == ["error"] * 3, "silence")
    assert "NVML does not answer" in (answer[0][0].error or "")
    fake.unset("gpu.*.call.nvmlDeviceGetClockInfo")
    fake.write()

    def is_back(answer: Answer) -> bool:
        return all_ok(answer) and answer[0][0].sm_clock_max_mhz is not None

    after = tick_until(source, is_back, "the values")[0][0]
    assert after.nvlink.links == before.nvlink.links
    assert (after.ecc, after.fabric, after.persistence) == (before.ecc, before.fabric, before.persistence)


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceRegisterEvents"]
)
def test_any_call_that_never_returns_is_named(fake: FakeNvml, start: Start, call: str) -> None:
    fake.set(f"gpu.1.call.{call}", "block forever")
    source = start(0.3, 60.0)
    answer = tick_until(source, lambda answer: f"stuck in {call} on GPU 1" in whys(answer), "the call to be named")
    assert any(gap.what == "nvml" for gap in answer[1])
    replace_child(source)
    tick_until(source, lambda answer: states(answer) == ["ok", "error", "ok"], "the others")


def test_events_that_never_come_back_are_given_up(fake: FakeNvml, start: Start) -> None:
    """They concern no single GPU, so none is left out: the next reader process does without events."""
    fake.set("call.nvmlEventSetWait", "block forever")
    source = start(0.3, 60.0)
    tick_until(source, lambda answer: "stuck in nvmlEventSetWait_v2" in whys(answer), "the call to be named")
    replace_child(source)
    answer = tick_until(source, all_ok, "three GPUs")
    assert "left out" not in whys(answer)


def test_activity_that_hangs_on_all_gpus_costs_only_activity(fake: FakeNvml, start: Start) -> None:
    """And is asked for again after a pause."""
    fake.set("gpu.*.call.nvmlGpmSampleGet", "block forever")
    source = start(0.5, 60.0, skipped_gpu_s=6.0)
    tick_until(source, lambda answer: "stuck in nvmlGpm" in whys(answer), "the call to be named")
    replace_child(source)
    answer = tick_until(source, lambda answer: "stuck in nvmlGpm" in whys(answer) and all_ok(answer), "the others")
    assert all(gpu.power_w is not None and gpu.sm_active is None for gpu in answer[0])
    assert any("left out" in gap.why and "sm_active" in gap.what for gap in answer[1])
    fake.unset("gpu.*.call.nvmlGpmSampleGet")
    fake.write()
    answer = tick_until(source, lambda answer: all(gpu.sm_active is not None for gpu in answer[0]), "activity")
    assert not [gap for gap in answer[1] if gap.what == "nvml.activity"]
