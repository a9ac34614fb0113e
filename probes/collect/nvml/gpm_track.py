"""The samples of one GPU or GPU instance over time, and the newest value of each metric."""

from __future__ import annotations

from functools import partial
from typing import Callable

from mltop.probes.collect.nvml import codes, gpm_words
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Problem, implausible
from mltop.probes.collect.nvml.gpm import STALE, Gpm, Metric, Sample

SHORTEST_S = 0.11  # samples of one GPU must be more than 100 ms apart (nvml.h)
RETRY_S = 3.0  # after a refusal: permission is a state that comes and goes (NVIDIA/DCGM#214)


class Group:
    """Metrics that are computed together, each as the average since this group's turn before.

    ``takes_sample``: False: computed from the sample of the poll before.
    """

    def __init__(self, metrics: tuple[Metric, ...], takes_sample: bool = True) -> None:
        self.metrics = metrics
        self.takes_sample = takes_sample


class Plan:
    """Which group has its turn at which poll: ``first``, then ``cycle`` again and again."""

    def __init__(self, first: tuple[Group, ...], cycle: tuple[Group, ...]) -> None:
        self.first = first
        self.cycle = cycle

    def turn(self, number: int) -> Group:
        if number < len(self.first):
            return self.first[number]
        return self.cycle[(number - len(self.first)) % len(self.cycle)]

    def metrics(self) -> list[Metric]:
        return list(dict.fromkeys(metric for group in self.first + self.cycle for metric in group.metrics))


class Track:
    """``values`` by metric name, as of each metric's last turn; ``problems`` of single metrics; ``problem`` of all.

    Buffers: one for the newest sample, one for each group's last turn, and one to write the next into.
    """

    def __init__(self, gpm: Gpm, device: Device, plan: Plan, gpu_instance: int | None = None) -> None:
        self._gpm = gpm
        self._device = device
        self._plan = plan
        self._gpu_instance = gpu_instance
        self._buffers: list[Sample] = []
        self._not_before_s = 0.0
        self._restart(gpm_words.STARTING)

    def _restart(self, problem: Problem) -> None:
        self.values: dict[str, float] = {}
        self.problems: dict[str, Problem] = {}
        self.problem: Problem | None = problem
        self._newest: int | None = None  # index of a buffer, as those in _before
        self._before: dict[Group, int] = {}
        self._unsupported_until_s: dict[Metric, float] = {}
        self._turn = 0

    @property
    def is_starting(self) -> bool:
        """Whether some metric has not had its first turn yet."""
        return self._turn < len(self._plan.first)

    def poll(self, now_s: float, pace_s: float = SHORTEST_S) -> bool:
        """One turn, unless the last one is newer than ``pace_s``: then False. Monotonic seconds.

        Raises NvmlError when the GPU or the library is gone, or when a GPU instance's id is stale.
        """
        return self._careful(partial(self._take_turn, now_s), now_s, pace_s)

    def catch_up(self, now_s: float) -> bool:
        """All first turns at once, from two samples, with as many calls as there are metrics. Otherwise as ``poll``."""
        if self._newest is None or not self.is_starting:
            return False
        return self._careful(partial(self._take_first_turns, now_s), now_s, SHORTEST_S)

    def _careful(self, turn: Callable[[], None], now_s: float, pace_s: float) -> bool:
        if now_s < self._not_before_s:
            return False
        try:
            turn()
        except NvmlError as failure:
            if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN:
                raise
            unsupported = failure.code in codes.UNSUPPORTED
            self._not_before_s = now_s + (ASK_AGAIN_S if unsupported else RETRY_S)
            self._restart((failure.call, failure.code))
            if self._gpu_instance is not None and failure.code in STALE:
                raise
        else:
            self._not_before_s = now_s + max(SHORTEST_S, 0.0 if self.is_starting else pace_s)
        return True

    def pending(self) -> list[Metric]:
        """Metrics without a value or a problem: their turn comes."""
        return [m for m in self._plan.metrics() if m.name not in self.values and m.name not in self.problems]

    def release(self) -> None:
        """Free the buffers. The track must not be polled again."""
        for sample in self._buffers:
            self._gpm.free(sample)
        self._buffers = []

    def _take_turn(self, now_s: float) -> None:
        if self._newest is None:
            self._newest = self._take()
            self._before = dict.fromkeys(self._plan.first + self._plan.cycle, self._newest)
            self.problem = gpm_words.STARTING
            return
        group = self._plan.turn(self._turn)
        if group.takes_sample:
            self._newest = self._take()
        self._compute_all(group, now_s)
        self._turn += 1

    def _take_first_turns(self, now_s: float) -> None:
        self._newest = self._take()
        for group in dict.fromkeys(self._plan.first):
            self._compute_all(group, now_s)
        self._turn = len(self._plan.first)

    def _compute_all(self, group: Group, now_s: float) -> None:
        assert self._newest is not None
        for metric in group.metrics:
            self._compute(metric, self._before[group], self._newest, now_s)
        self._before[group] = self._newest
        self.problem = None

    def _take(self) -> int:
        """A new sample in a buffer that nothing refers to."""
        used = {self._newest, *self._before.values()}
        index = next((index for index in range(len(self._buffers)) if index not in used), len(self._buffers))
        if index == len(self._buffers):
            self._buffers.append(self._gpm.allocate())
        self._gpm.take(self._device, self._buffers[index], self._gpu_instance)
        return index

    def _compute(self, metric: Metric, before: int, newest: int, now_s: float) -> None:
        if now_s < self._unsupported_until_s.get(metric, 0.0):
            return
        self.values.pop(metric.name, None)
        self.problems.pop(metric.name, None)
        try:
            value = self._gpm.metric(self._device, self._buffers[before], self._buffers[newest], metric)
        except GarbageError as garbage:
            self.problems[metric.name] = implausible(str(garbage))
        except NvmlError as failure:
            if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN | {codes.NO_PERMISSION}:
                raise
            self.problems[metric.name] = (failure.call, failure.code)
            if failure.code in codes.UNSUPPORTED:
                self._unsupported_until_s[metric] = now_s + ASK_AGAIN_S
        else:
            self.values[metric.name] = value
