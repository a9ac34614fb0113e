"""Xid errors as NVML reports them while we listen: a second source beside the kernel's log, for all users.

NVML keeps no history and does not deliver all of them (79, 119 and 120: NVIDIA/DCGM#162).
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_uint, c_ulonglong
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NO_GPU, Calls
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device

XID = 0x8  # nvml.h nvmlEventTypeXidCriticalError
WAIT_MS = 1  # as short as it can be told without doubt: some bindings say that 0 waits for ever
MAX_PER_POLL = 16


class EventReader:
    """One event set for all GPUs. Where there are no events, or no permission, nothing is reported."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._set: Any = None
        self._index_of: dict[int, int] = {}
        self._data = pynvml.c_nvmlEventData_t()
        self._data_ref = byref(self._data)
        self._try_again_at_s = 0.0

    def listen(self, device: Device) -> None:
        """Register a GPU, once per handle. It goes unheard when the driver does not offer events."""
        if self._set is None and not device.is_heard and time.monotonic() >= self._try_again_at_s:
            created = pynvml.c_nvmlEventSet_t()
            if self._calls("nvmlEventSetCreate", NO_GPU, byref(created)) == 0 and created:
                self._set = created
            else:
                self._try_again_at_s = time.monotonic() + ASK_AGAIN_S
        if self._set is None or device.is_heard:
            return
        device.is_heard = True
        code = device.code_now("nvmlDeviceRegisterEvents", c_ulonglong(XID), self._set)
        if code == 0:
            self._index_of[address(device.handle)] = device.index

    def read(self) -> list[dict[str, int | None]]:
        """Xids since the call before: ``{"index": NVML's index, "code": Xid}``. The index is None when unknown."""
        xids: list[dict[str, int | None]] = []
        if self._set is None or not self._index_of or time.monotonic() < self._try_again_at_s:
            return xids
        for _ in range(MAX_PER_POLL):
            code = self._calls("nvmlEventSetWait_v2", NO_GPU, self._set, self._data_ref, c_uint(WAIT_MS))
            if code == codes.TIMEOUT:
                break
            if code:
                self._try_again_at_s = time.monotonic() + ASK_AGAIN_S
                break
            if self._data.eventType & XID:  # clock events come with data 0 (leptonai/gpud#164)
                xids.append({"index": self._index_of.get(address(self._data.device)), "code": self._data.eventData})
        return xids

    def shut_down(self) -> None:
        """Before the library is shut down."""
        if self._set is not None:
            self._calls("nvmlEventSetFree", NO_GPU, self._set)
            self._set = None


def address(handle: Any) -> int:
    """Handles are pointers to what only the library knows."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
