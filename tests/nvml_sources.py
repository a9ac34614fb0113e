"""NVML sources over the fake library, ticked as the agent does, and what their answers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.collect.nvml.worker import Pauses
from mltop.probes.model import Gap, GpuSample
from tests.fakes.nvml.scenario import FakeNvml
from tests.processes import command_of, is_gone, own_children
from tests.waiting import wait_until

Start = Callable[..., NvmlSource]
Answer = tuple[list[GpuSample], list[Gap]]
DEADLINE_S = 60.0


def fake_here(directory: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> FakeNvml:
    """A scenario that the children of this process find."""
    made = FakeNvml(directory, count=count)
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    return made


def starter(fake: FakeNvml) -> Iterator[Start]:
    """For a fixture: starts sources, and ends them after the test."""
    sources: list[NvmlSource] = []

    def make(stuck_after_s: float = 5.0, kill_after_s: float = 10.0, **pauses: float) -> NvmlSource:
        fake.write()
        sources.append(NvmlSource(stuck_after_s, kill_after_s, Pauses(**pauses)))  # type: ignore[arg-type]
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def tick(source: NvmlSource) -> Answer:
    source.request(time.time())
    return source.collect(time.time(), 0.05)


def tick_until(
    source: NvmlSource, wanted: Callable[[Answer], object], what: str, timeout_s: float = DEADLINE_S
) -> Answer:
    """Ticks as the agent does, until an answer is as wanted."""

    def step() -> Answer | None:
        answer = tick(source)
        return answer if wanted(answer) else None

    return wait_until(step, timeout_s, what, pause_s=0.01)


def hurry(source: NvmlSource, kill_after_s: float) -> None:
    """How long calls may take from now on: the child has started, which takes long on a busy machine."""
    source._kill_after_s = kill_after_s


def replace_child(source: NvmlSource) -> None:
    """The child hangs and is ended for it; the next one has as long to start as the first had."""
    pid, patience_s = child_pid(source), source._kill_after_s
    hurry(source, 0.1)
    wait_until(lambda: tick(source) and is_gone(pid), DEADLINE_S, "the child that hangs to be ended")
    hurry(source, patience_s)


def all_ok(answer: Answer) -> bool:
    """Of a scenario of three GPUs."""
    return len(answer[0]) == 3 and all(gpu.state == "ok" for gpu in answer[0])


def states(answer: Answer) -> list[str]:
    return [gpu.state for gpu in answer[0]]


def whys(answer: Answer) -> str:
    return "\n".join(gap.why for gap in answer[1])


def child_pid(source: NvmlSource) -> int:
    """The reader process, found as an operator would: a child of this process that runs our module."""
    found = [pid for pid in own_children() if "collect.nvml.child" in command_of(pid)]
    assert found, "no reader process"
    return found[0]
