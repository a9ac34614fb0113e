"""What work of this process does to the GPU: its scenario says so from the first piece of work to the end.

Counters go on from where they stand (``A + B/s since T``), and stand still after it. MLTOP_FAKE_TORCH_EFFECTS: JSON by
kind of work, in place of EFFECTS. The process is in the GPU's list, and in the machine's /proc where that is made up.

MLTOP_FAKE_TORCH_PACE: so many seconds for one of the GPU's; then ``time.perf_counter`` is the GPU's clock, so that what
is measured in this process depends on nothing else.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import time
from typing import Any

import pynvml

# Scenario keys by kind; those of RATES are gains a second.
EFFECTS: dict[str, dict[str, float]] = {
    "bf16": {
        "busy_percent": 100,
        "power_mw": 695_000,
        "power_average_mw": 695_000,
        "sm_clock_mhz": 1410,
        "throttle_mask": 0x4,
        "throttle_ns.sw_power_cap": 0.9e9,
        "energy_mj": 695_000,
        "gpm.2": 98,
        "gpm.3": 14,
        "gpm.5": 88,
        "gpm.10": 35,
        "gpm.12": 2,
    },
    "bursts": {
        "busy_percent": 70,
        "power_mw": 400_000,
        "energy_mj": 400_000,
        "sm_clock_mhz": 1980,
        "throttle_mask": 0,
        "gpm.2": 48,
        "gpm.3": 7,
        "gpm.5": 43,
        "gpm.10": 17,
    },
    "fp32": {
        "busy_percent": 100,
        "power_mw": 500_000,
        "energy_mj": 500_000,
        "sm_clock_mhz": 1980,
        "throttle_mask": 0,
        "gpm.2": 99,
        "gpm.3": 25,
        "gpm.10": 12,
        "gpm.12": 82,
    },
    "copy": {
        "busy_percent": 100,
        "power_mw": 400_000,
        "energy_mj": 400_000,
        "sm_clock_mhz": 1980,
        "throttle_mask": 0,
        "gpm.2": 97,
        "gpm.3": 60,
        "gpm.10": 90,
    },
    "memory": {
        "busy_percent": 100,
        "power_mw": 450_000,
        "energy_mj": 450_000,
        "sm_clock_mhz": 1980,
        "throttle_mask": 0,
        "gpm.2": 98,
        "gpm.3": 75,
        "gpm.10": 91,
        "gpm.12": 6,
    },
    "spin": {"busy_percent": 100, "power_mw": 130_000, "energy_mj": 130_000, "sm_clock_mhz": 1980, "gpm.2": 0.8},
    "host": {"power_mw": 120_000, "energy_mj": 120_000, "sm_clock_mhz": 1980, "gpm.20": 500, "gpm.21": 49_000},
}
RATES = ("throttle_ns.", "energy_mj")
HELD_BYTES = 4 << 30
_GEMMS = ("bf16", "fp32")  # what is copied between two of them does not show
_HURRIES = 0.1 if "/plain_" in sys.argv[0] else 1.0  # of whom nobody takes the power
_PACE = float(os.environ.get("MLTOP_FAKE_TORCH_PACE", "1")) * _HURRIES
_RUNS = re.compile(r"(\d+)(?: \+ ([\d.e+]+)/s(?: since ([\d.]+))?)?")
at_s = 0.0  # the GPU's clock
_queued_s = 0.0
_shown = ""
_before: dict[str, str] = {}
if "MLTOP_FAKE_TORCH_PACE" in os.environ:
    time.perf_counter = lambda: at_s  # type: ignore[assignment]


def queue(kind: str, seconds: float) -> None:
    global at_s, _queued_s, _shown
    at_s += seconds
    _queued_s += seconds
    if _shown != kind and not (kind == "copy" and _shown in _GEMMS):
        _shown = kind
        _show(_effects().get(kind, {}))


def finish() -> None:
    """What was queued takes its time."""
    global _queued_s
    time.sleep(_queued_s * _PACE)
    _queued_s = 0.0


def hold() -> None:
    """This process uses the GPU from now on."""
    key, proc = f"gpu.{_index()}.processes", f"{os.environ.get('MLTOP_SYSROOT', '')}/proc/{os.getpid()}"
    if key in _before:
        return
    lines = _read()
    if not _before:
        atexit.register(_undo)
    _before[key] = lines.get(key, "")
    own = f"{os.getpid()}:{HELD_BYTES}:compute"
    lines[key] = f"{lines[key]}, {own}" if lines.get(key) else own
    _write(lines)
    if not os.path.exists(proc):
        os.symlink(f"/proc/{os.getpid()}", proc)
        atexit.register(os.unlink, proc)


def _effects() -> dict[str, dict[str, float]]:
    return json.loads(os.environ["MLTOP_FAKE_TORCH_EFFECTS"]) if "MLTOP_FAKE_TORCH_EFFECTS" in os.environ else EFFECTS


def _show(values: dict[str, float]) -> None:
    lines, now_s = _read(), time.monotonic()
    if not _before:
        atexit.register(_undo)
    for name, value in values.items():
        key = f"gpu.{_index()}.{name}"
        if name.startswith(RATES):
            _before.setdefault(key, lines.get(key, "0"))
            lines[key] = f"{_now(lines.get(key, '0'), now_s)} + {value:.0f}/s since {now_s:.6f}"
        else:
            _before.setdefault(key, lines.get(key, ""))
            lines[key] = f"{int(value):#x}" if name.endswith("_mask") else f"{value:g}"
    _write(lines)


def _undo() -> None:
    lines, now_s = _read(), time.monotonic()
    for key, text in _before.items():
        if any(rate in key for rate in RATES):
            found = _RUNS.fullmatch(text)
            rate = float(found[2] or 0) if found else 0.0
            lines[key] = f"{_now(lines[key], now_s)} + {rate:.0f}/s since {now_s:.6f}"
        elif text:
            lines[key] = text
        else:
            del lines[key]
    _write(lines)


def _now(text: str, now_s: float) -> int:
    found = _RUNS.fullmatch(text)
    assert found, text
    return int(found[1]) + int(float(found[2] or 0) * (now_s - float(found[3] or 0)))


def _index() -> int:
    pynvml.nvmlInit()
    uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    return int(pynvml.nvmlDeviceGetIndex(handle))


def _read() -> dict[str, str]:
    with open(os.environ["MLTOP_FAKE_NVML"]) as file:
        return dict(line.rstrip("\n").split(" = ", 1) for line in file if line.strip())


def _write(lines: dict[str, str]) -> None:
    path = os.environ["MLTOP_FAKE_NVML"]
    with open(f"{path}.torch", "w") as file:
        file.write("".join(f"{key} = {text}\n" for key, text in lines.items()))
    now_ns = time.time_ns()
    os.utime(f"{path}.torch", ns=(now_ns, now_ns))
    os.replace(f"{path}.torch", path)
