"""``torch.cuda``: what the fake NVML says of its GPUs, but for what MLTOP_FAKE_TORCH_LIES replaces (JSON, a path)."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pynvml

from torch import effects
from torch.cuda.streams import Stream
from torch.rates import lies

_RESERVED = 600 << 20  # torch leaves out what the driver keeps


def device_count() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    shown = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return len(shown) or int(pynvml.nvmlDeviceGetCount())


def is_available() -> bool:
    return device_count() > 0


def get_device_properties(index: int) -> SimpleNamespace:
    pynvml.nvmlInit()
    shown = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    find = pynvml.nvmlDeviceGetHandleByUUID if shown else pynvml.nvmlDeviceGetHandleByIndex
    handle = find(shown[index] if shown else index)
    known = {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-"),
        "total_memory": pynvml.nvmlDeviceGetMemoryInfo(handle).total - _RESERVED,
        "multi_processor_count": 132,
        "major": 9,
        "minor": 0,
    }
    return SimpleNamespace(**{**known, **lies()})


def capability() -> tuple[int, int]:
    found = get_device_properties(0)
    return int(found.major), int(found.minor)


def get_device_capability(index: int = 0) -> tuple[int, int]:
    return capability()


def init() -> None:
    pynvml.nvmlInit()
    effects.hold()


def synchronize(index: int = 0) -> None:
    time.sleep(effects.taken_s())  # here, as torch's call into C is: a stack ends with this function
    effects.finish()


def current_stream() -> Stream:
    return Stream()


def _sleep(cycles: int) -> None:
    effects.queue("spin", cycles / 1.98e9)


def set_per_process_memory_fraction(fraction: float, index: int) -> None:
    assert 0 < fraction <= 1
    init()


def mem_get_info(index: int = 0) -> tuple[int, int]:
    return 70 << 30, 80 << 30


def can_device_access_peer(source: int, target: int) -> bool:
    return bool(lies().get("direct", True))


def device(index: int) -> AbstractContextManager[None]:
    return nullcontext()


class Event:
    """At the GPU's own clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self._at_s: float | None = None

    def record(self) -> None:
        self._at_s = effects.at_s

    def query(self) -> bool:
        effects.finish()
        return True

    def synchronize(self) -> None:
        effects.finish()

    def elapsed_time(self, other: Event) -> float:
        assert self._at_s is not None and other._at_s is not None
        return 1e3 * (other._at_s - self._at_s)
