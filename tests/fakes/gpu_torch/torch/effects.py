"""What work of this process does to the GPU: its scenario says so from the first piece of work to the end.

Counters go on from where they stand (``A + B/s since T``), and are stuck after it. MLTOP_FAKE_TORCH_EFFECTS: JSON by
kind of work, in place of EFFECTS. The process is in the GPU's list, and in the machine's /proc where that is made up.

MLTOP_FAKE_TORCH_PACE: so many seconds for one of the GPU's; then ``time.perf_counter`` is the GPU's clock, so that what
is measured in this process depends on nothing else.

Of a training job (RANK is set) only rank 0's work shows, and only while it lasts: such a process is ended by SIGTERM
while it is stuck.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    # A kernel of one thread, and a collective's that waits for its peer.
    "spin": {
        "busy_percent": 100,
        "power_mw": 180_000,
        "power_average_mw": 180_000,
        "energy_mj": 180_000,
        "sm_clock_mhz": 1980,
        "gpm.2": 0.8,
        "gpm.5": 0,
        "gpm.10": 0,
    },
    "nccl": {
        "busy_percent": 100,
        "power_mw": 190_000,
        "power_average_mw": 190_000,
        "energy_mj": 190_000,
        "gpm.2": 12,
        "gpm.5": 0,
        "gpm.10": 0.1,
    },
    "host": {"power_mw": 120_000, "energy_mj": 120_000, "sm_clock_mhz": 1980, "gpm.20": 500, "gpm.21": 49_000},
}
RATES = ("throttle_ns.", "energy_mj")
HELD_BYTES = 4 << 30
_IS_RANK = "RANK" in os.environ
_GEMMS = ("bf16", "fp32")  # what is copied between two of them does not show
_HURRIES = 0.1 if "/plain_" in sys.argv[0] else 1.0  # of whom nobody takes the power
_PACE = float(os.environ.get("MLTOP_FAKE_TORCH_PACE", "1")) * _HURRIES
_RUNS = re.compile(r"(\d+)(?: \+ ([\d.e+]+)/s(?: since ([\d.]+))?)?")
HOLD_S = 0.2  # a rank's GPU has nothing to do for so long: what shows is undone
at_s = 0.0  # the GPU's clock
_queued_s = 0.0
_busy_until_s = 0.0
_later: list[Callable[[], None]] = []
_shown = ""
_held = ""
_before: dict[str, str] = {}
_lock = threading.RLock()
if "MLTOP_FAKE_TORCH_PACE" in os.environ:
    time.perf_counter = lambda: at_s  # type: ignore[assignment]


def queue(kind: str, seconds: float) -> None:
    global at_s, _queued_s, _busy_until_s, _shown
    at_s += seconds
    _queued_s += seconds
    if os.environ.get("RANK", "0") != "0":
        return
    with _lock:
        _busy_until_s = max(_busy_until_s, time.monotonic()) + seconds
        if _shown != kind and not (kind == "copy" and _shown in _GEMMS):
            if _IS_RANK:
                _undo()
                _undo_when_done()
            _shown = kind
            _show(_effects().get(kind, {}))


def wait_later(kind: str, wait: Callable[[], None]) -> None:
    """A kernel that ends when ``wait`` returns: called by whoever waits for the GPU."""
    queue(kind, 0.0)
    _later.append(wait)


def meet(peers: list[socket.socket], late: Callable[[], None] | None = None) -> None:
    """Every one of them comes to the same point. ``late``: what happens when one does not come in time."""
    for peer in peers:
        peer.sendall(b".")
    for peer in peers:
        try:
            told = peer.recv(1)
        except TimeoutError:
            if late is None:
                raise
            late()
        else:
            if not told:
                raise ConnectionError("Connection closed by peer")


def taken_s() -> float:
    """How long what is queued takes, which is waited for now."""
    global _queued_s
    seconds, _queued_s = _queued_s * _PACE, 0.0
    return seconds


def finish() -> None:
    """What was queued takes its time."""
    time.sleep(taken_s())
    while _later:
        _later[0]()
        _later.pop(0)


def _undo_when_done() -> None:
    """Of a rank: it never gets to its end."""
    if threading.active_count() == 1:
        threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    global _shown
    while True:
        time.sleep(HOLD_S / 2)
        with _lock:
            if _shown and not _later and time.monotonic() > _busy_until_s + HOLD_S:
                _shown = ""
                _undo()


def hold() -> None:
    """This process uses the GPU from now on: NVML lists it, and the machine's /proc where that is made up."""
    global _held
    if _held:
        return
    _held = f"{os.getpid()}:{HELD_BYTES}:compute"
    if _IS_RANK:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    atexit.register(_release)
    with _scenario() as lines:
        lines[_processes()] = ", ".join(filter(None, [lines.get(_processes()), _held]))
    proc = f"{os.environ.get('MLTOP_SYSROOT', '')}/proc/{os.getpid()}"
    if not os.path.exists(proc):
        os.symlink(f"/proc/{os.getpid()}", proc)
        atexit.register(os.unlink, proc)


def leave() -> None:
    """Nothing of this process shows any more, as when it has ended."""
    _undo()
    _release()


def _release() -> None:
    if not _held.startswith(f"{os.getpid()}:"):
        return  # a fork of who holds it
    atexit.unregister(_release)
    with _scenario() as lines:
        left = ", ".join(one for one in lines.pop(_processes()).split(", ") if one != _held)
        lines.update({_processes(): left} if left else {})


def _processes() -> str:
    return f"gpu.{_index()}.processes"


def _effects() -> dict[str, dict[str, float]]:
    return json.loads(os.environ["MLTOP_FAKE_TORCH_EFFECTS"]) if "MLTOP_FAKE_TORCH_EFFECTS" in os.environ else EFFECTS


def _show(values: dict[str, float]) -> None:
    now_s = time.monotonic()
    if not _before:
        atexit.unregister(_undo)
        atexit.register(_undo)
    with _scenario() as lines:
        for name, value in values.items():
            key = f"gpu.{_index()}.{name}"
            if name.startswith(RATES):
                _before.setdefault(key, lines.get(key, "0"))
                lines[key] = f"{_now(lines.get(key, '0'), now_s)} + {value:.0f}/s since {now_s:.6f}"
            else:
                _before.setdefault(key, lines.get(key, ""))
                lines[key] = f"{int(value):#x}" if name.endswith("_mask") else f"{value:g}"


def _undo() -> None:
    if not _before:
        return
    now_s = time.monotonic()
    with _scenario() as lines:
        for key, text in _before.items():
            if any(rate in key for rate in RATES):
                found = _RUNS.fullmatch(text)
                rate = float(found[2] or 0) if found else 0.0
                lines[key] = f"{_now(lines[key], now_s)} + {rate:.0f}/s since {now_s:.6f}"
            elif text:
                lines[key] = text
            else:
                del lines[key]
    _before.clear()


def _now(text: str, now_s: float) -> int:
    found = _RUNS.fullmatch(text)
    assert found, text
    return int(found[1]) + int(float(found[2] or 0) * (now_s - float(found[3] or 0)))


def _index() -> int:
    pynvml.nvmlInit()
    uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    return int(pynvml.nvmlDeviceGetIndex(handle))


@contextmanager
def _scenario() -> Iterator[dict[str, str]]:
    """Its lines, to be changed by one process at a time."""
    path = os.environ["MLTOP_FAKE_NVML"]
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(path) as file:
            lines = dict(line.rstrip("\n").split(" = ", 1) for line in file if line.strip())
        yield lines
        with open(f"{path}.torch", "w") as file:
            file.write("".join(f"{key} = {text}\n" for key, text in lines.items()))
        now_ns = time.time_ns()
        os.utime(f"{path}.torch", ns=(now_ns, now_ns))
        os.replace(f"{path}.torch", path)
