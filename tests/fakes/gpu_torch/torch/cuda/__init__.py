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
    effects.queue("spin", cycles / 2e9)
