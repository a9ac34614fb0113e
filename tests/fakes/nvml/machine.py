"""The agent's NVML reader over a fake, polled at times that the test says instead of every second."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from mltop.probes.collect.nvml.registry import Registry
from mltop.probes.collect.nvml.worker import Worker
from mltop.probes.model import Gap, GpuSample

TIMEOUT_S = 20.0


class Machine:
    """A real reader process and the registry that its answers go into. The fake's environment must be set."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.answer: dict[str, Any] = {}
        self.span_s: tuple[float, float] = (0.0, 0.0)  # between the two newest polls: at least and at most
        self._worker = Worker()
        self._polled_s: tuple[float, float] | None = None

    @property
    def pid(self) -> int:
        return self._worker.pid

    def poll(self, at_s: float = 0.0, *, again: bool = False, events: bool = True) -> list[GpuSample]:
        """One poll. ``at_s``: when it is, for what is read every few seconds."""
        started_s = time.monotonic()
        self._worker.ask({"at_s": at_s, "skip": [], "without": [] if events else ["events"], "again": again})
        answer = self._worker.answer(TIMEOUT_S)
        assert answer is not None, f"no answer; the reader is in {self._worker.note()}, {self._worker.last_words()}"
        ended_s = time.monotonic()
        if self._polled_s is not None:
            self.span_s = (started_s - self._polled_s[1], ended_s - self._polled_s[0])
        self._polled_s = (started_s, ended_s)
        self.answer = answer
        assert "gpus" in answer, answer
        self.registry.merge(answer["gpus"], at_s, frozenset())
        return self.registry.samples()

    def gaps(self) -> dict[str, Gap]:
        """By what is missing."""
        gaps = self.registry.gaps()
        found = {gap.what: gap for gap in gaps}
        assert len(found) == len(gaps), gaps
        return found

    def is_rate(self, rate: float | None, gain: float) -> bool:
        """Whether a rate is what a counter's gain between the two newest polls makes."""
        shortest_s, longest_s = self.span_s
        return rate is not None and gain / longest_s <= rate <= gain / shortest_s

    def close(self) -> None:
        self._worker.kill()
        while self._worker.exit_code() is None:
            time.sleep(0.005)
        self._worker.close()


def value_at(sample: GpuSample, path: str) -> Any:
    """``ecc.enabled`` of a sample."""
    value: Any = sample
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def paths_of(sample: GpuSample) -> dict[str, Any]:
    """Every value by its path; lists and dicts are values."""
    return dict(_paths(sample, ""))


def _paths(value: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        path = prefix + field.name
        found += _paths(one, path + ".") if dataclasses.is_dataclass(one) else [(path, one)]
    return found
