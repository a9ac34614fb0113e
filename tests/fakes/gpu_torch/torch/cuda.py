"""``torch.cuda``: what the fake NVML says of its GPUs, but for what MLTOP_FAKE_TORCH_LIES replaces (JSON, a path)."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pynvml

from torch import effects

_RESERVED = 600 << 20  # torch leaves out what the driver keeps


def _lies() -> dict[str, object]:
    path = os.environ.get("MLTOP_FAKE_TORCH_LIES", "")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        found: dict[str, object] = json.load(file)
    return found


def device_count() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    return int(pynvml.nvmlDeviceGetCount())


def is_available() -> bool:
    return device_count() > 0


def get_device_properties(index: int) -> SimpleNamespace:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    known = {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-"),
        "total_memory": pynvml.nvmlDeviceGetMemoryInfo(handle).total - _RESERVED,
        "multi_processor_count": 132,
        "major": 9,
        "minor": 0,
    }
    return SimpleNamespace(**{**known, **_lies()})


def init() -> None:
    pynvml.nvmlInit()


def synchronize() -> None:
    effects.finish()


def _sleep(cycles: int) -> None:
    effects.queue("spin", cycles / 1.98e9)


class Event:
    """At the GPU's own clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self._at_s = 0.0

    def record(self) -> None:
        self._at_s = effects.at_s

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other._at_s - self._at_s)
