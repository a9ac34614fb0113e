"""What mltop says: the agent's own NVML source, polled when a slice wants it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import Gap, GpuGaps, GpuSample
from tests.hardware.checks import NotTriedError

WAIT_S = 60.0  # nvmlInit without persistence mode


class NoAnswer(NotTriedError):
    """mltop's NVML reader has not answered in time; the text says what it says."""


class Mltop:
    """with Mltop() as mltop: gpus = mltop.poll()"""

    def __init__(self) -> None:
        self._source = NvmlSource()
        self.gpus: list[GpuSample] = []
        self.gaps: list[Gap] = []

    def __enter__(self) -> Mltop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()

    def poll(self, wait_s: float = WAIT_S) -> list[GpuSample]:
        """A poll that was begun after this was called. NoAnswer when no GPU tells anything within ``wait_s``."""
        asked_at, deadline_s = time.time(), time.monotonic() + wait_s
        while time.monotonic() < deadline_s:
            now = time.time()
            self._source.request(now)
            self.gpus, self.gaps = self._source.collect(now, 0.2)
            if any((gpu.last_seen_at or 0) >= asked_at for gpu in self.gpus):
                return self.gpus
        raise NoAnswer("; ".join(gap.why for gap in self.gaps) or f"no answer within {wait_s:g} s")

    def gap(self, index: int, path: str) -> Gap | None:
        """Why ``path`` ("ecc.enabled") of a GPU has no value: its own gap, of what it is part of, or of all of NVML."""
        return gap_of(self.gaps, index, path)


def gap_of(gaps: list[Gap], index: int, path: str) -> Gap | None:
    whole = next((gap for gap in gaps if gap.what in ("nvml", "gpu")), None)
    return GpuGaps(gaps, index).of(path) or whole


def value_at(sample: GpuSample, path: str) -> Any:
    """``ecc.enabled`` of a sample; None where a dict has no such key."""
    value: Any = sample
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value
