"""The child process: one JSON line per request on stdin, one JSON line per answer on stdout, one thread.

Request: ``{"slow": bool, "skip": [NVML indexes]}``. Answer: ``{"at": CLOCK_MONOTONIC, "gpus": [...]}`` with
``{"index", "uuid", "read": {tier: {"values": {field: value}, "problems": {field: [[call, code]] or text}}}}`` or
``{"index", "uuid", "lost": [call, code], "gone": bool}`` for each GPU; or ``{"at", "down": {...}}`` when the library
cannot be used: ``{"kind": "nvml", "call", "code"}``, ``{"kind": "pynvml" | "library", "text"}``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Optional

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.breadcrumb import Breadcrumb
from mltop.probes.collect.nvml.calls import Calls, NvmlFailure, load

if TYPE_CHECKING:
    from mltop.probes.collect.nvml.device import Device
    from mltop.probes.collect.nvml.devices import Devices, Lost

# Some drivers find a GPU again after a reset only when the library is initialised anew. That takes seconds and may
# hang, so it is tried rarely.
REINIT_FIRST_S = 60.0
REINIT_LONGEST_S = 600.0


def main() -> None:
    """Argument: the file descriptor of the breadcrumb. Ends at end-of-file on stdin."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a driver library prints must not end up between our answers
    poller = Poller(Breadcrumb(int(sys.argv[1])))
    for line in sys.stdin.buffer:
        answer = poller.poll(json.loads(line))
        answer["at"] = time.monotonic()
        answers.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")


class Poller:
    """The library as far as it is initialised, and its devices."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self._crumb = crumb
        self._reader: Optional[Reader] = None
        self._reinit_pause_s = REINIT_FIRST_S
        self._lost_since_s: Optional[float] = None

    def poll(self, request: dict[str, Any]) -> dict[str, Any]:
        """One answer, without its time."""
        try:
            if self._reinit_is_due():
                self._shut_down()
            if self._reader is None:
                self._reader = Reader(load(self._crumb))
            gpus = self._reader.read(bool(request.get("slow")), frozenset(request.get("skip", ())))
            self._watch_lost(self._reader.devices)
            return {"gpus": gpus}
        except ImportError as error:
            return {"down": {"kind": "pynvml", "text": str(error)}}
        except OSError as error:
            return {"down": {"kind": "library", "text": str(error)}}
        except NvmlFailure as failure:
            self._shut_down()
            return {"down": {"kind": "nvml", "call": failure.call, "code": failure.code}}
        finally:
            self._crumb.clear()

    def _watch_lost(self, devices: Devices) -> None:
        if not devices.any_lost():
            self._lost_since_s = None
            self._reinit_pause_s = REINIT_FIRST_S
        elif self._lost_since_s is None:
            self._lost_since_s = time.monotonic()

    def _reinit_is_due(self) -> bool:
        if self._reader is None or self._lost_since_s is None:
            return False
        if time.monotonic() - self._lost_since_s < self._reinit_pause_s:
            return False
        self._reinit_pause_s = min(2 * self._reinit_pause_s, REINIT_LONGEST_S)
        self._lost_since_s = time.monotonic()
        return True

    def _shut_down(self) -> None:
        """The code of nvmlShutdown does not matter: what follows is an initialisation, which says what is wrong."""
        if self._reader is not None:
            self._reader.calls("nvmlShutdown", -1)
            self._reader = None


class Reader:
    """Reads all GPUs of one initialised library."""

    def __init__(self, calls: Calls) -> None:
        # Only here: without pynvml the child still answers, with the reason.
        from mltop.probes.collect.nvml.devices import Devices
        from mltop.probes.collect.nvml.fast import FastReader
        from mltop.probes.collect.nvml.slow import SlowReader

        self.calls = calls
        self.devices = Devices(calls)
        self._fast = FastReader()
        self._slow = SlowReader()

    def read(self, slow: bool, skip: frozenset[int]) -> list[dict[str, Any]]:
        """One entry per GPU that is not skipped. Raises NvmlFailure when the library as a whole is down."""
        return [self._entry(device, slow) for device in self.devices.update(skip, retry_lost=slow)]

    def _entry(self, device: Device | Lost, slow: bool) -> dict[str, Any]:
        from mltop.probes.collect.nvml.devices import Lost

        if isinstance(device, Lost):
            return lost_entry(device)
        try:
            return {"index": device.index, "uuid": device.uuid, "read": self._read(device, slow)}
        except NvmlFailure as failure:
            if failure.code not in codes.GONE:
                raise
            return lost_entry(self.devices.lose(device, failure))

    def _read(self, device: Device, slow: bool) -> dict[str, Any]:
        tiers = {}
        if not device.static_is_read:
            from mltop.probes.collect.nvml.static import read_static

            tiers["static"] = vars(read_static(device, self.devices.driver))
            device.static_is_read = True
        if slow or "static" in tiers:
            tiers["slow"] = vars(self._slow.read(device))
        tiers["fast"] = vars(self._fast.read(device))
        return tiers


def lost_entry(lost: Lost) -> dict[str, Any]:
    return {
        "index": lost.index,
        "uuid": lost.uuid,
        "lost": [lost.failure.call, lost.failure.code],
        "gone": lost.gone,
    }
