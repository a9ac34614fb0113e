"""GPM as NVML itself tells it, without anything of mltop's: `gpm_child.py UUID INTERVAL_S`, until its input ends.

Lines of JSON; a code is NVML's return code. First {"event": "support", "code", "supported"} and {"event": "memory",
"bytes_per_s"} (what the memory could do at its highest clock, null where NVML does not tell it), then once an interval
{"event": "metrics", "code", "began_s", "ended_s" (CLOCK_MONOTONIC), "metrics": {id: [code, value or null]}}.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

METRICS = (2, 3, 5, 10, 12, 20, 21)
MEMORY_CLOCK = 2
DOUBLE_DATA_RATE = 2


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def ask(call: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """(code, what it gave)"""
    try:
        return 0, call(*args)
    except pynvml.NVMLError as error:
        return error.value, None


def take(handle: Any) -> tuple[int, Any, float]:
    """(code, sample, when)"""
    code, sample = ask(pynvml.nvmlGpmSampleAlloc)
    if code:
        return code, None, time.monotonic()
    code, _ = ask(pynvml.nvmlGpmSampleGet, handle, sample)
    if code:
        ask(pynvml.nvmlGpmSampleFree, sample)
    return code, None if code else sample, time.monotonic()


def metric(before: Any, after: Any, number: int) -> list[Any]:
    """[code, value]: one at a time, as batches were wrong under some drivers."""
    get = pynvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    get.sample1, get.sample2 = before, after
    get.metrics[0].metricId = number
    code, _ = ask(pynvml.nvmlGpmMetricsGet, get)
    code = code or get.metrics[0].nvmlReturn
    value = get.metrics[0].value
    return [code, value if not code and math.isfinite(value) else None]


def memory_bytes_per_s(handle: Any) -> float | None:
    width = ask(pynvml.nvmlDeviceGetMemoryBusWidth, handle)[1]
    clock = ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, MEMORY_CLOCK)[1]
    return width / 8 * clock * 1e6 * DOUBLE_DATA_RATE if width and clock else None


def has_ended(wait_s: float) -> bool:
    return bool(select.select([0], [], [], wait_s)[0]) and not os.read(0, 4096)


def main(uuid: str, interval_s: float) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    code, support = ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
    say(event="support", code=code, supported=None if code else bool(support.isSupportedDevice))
    say(event="memory", bytes_per_s=memory_bytes_per_s(handle))
    before, began_s = None, 0.0
    while True:
        code, after, ended_s = take(handle)
        if code or before is not None:
            found = {} if code else {number: metric(before, after, number) for number in METRICS}
            say(event="metrics", code=code, began_s=began_s, ended_s=ended_s, metrics=found)
        if before is not None:
            ask(pynvml.nvmlGpmSampleFree, before)
        before, began_s = after, ended_s
        if has_ended(interval_s):
            return


main(sys.argv[1], float(sys.argv[2]))
