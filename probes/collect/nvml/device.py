"""One GPU as the child sees it: its handle, what it does not support, and the shared result buffers."""

from __future__ import annotations

import time
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer
from typing import Any, Callable, TypeVar, Union

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import Calls, GarbageError, NvmlError

ASK_AGAIN_S = 60.0  # a driver update or a MIG change can bring support back
_BLANK = 1 << 62  # NVML's "no value" for 64-bit counters is at or above 9.2e18

# Why one field could not be read: the call that failed with its code, or a sentence.
Number = TypeVar("Number", int, float)
Problem = Union[tuple[str, int], str]


class Reading:
    """What one tier read of one GPU: values by field name, and a problem for each field that is unknown."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: dict[str, Problem] = {}

    def attempt(self, fields: tuple[str, ...], reader: Callable[[], dict[str, Any]]) -> None:
        """Run a reader; its failure becomes the problem of its fields. A lost GPU or library is raised."""
        try:
            self.values.update(reader())
        except NvmlError as failure:
            if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN:
                raise
            self.problems.update(dict.fromkeys(fields, (failure.call, failure.code)))
        except GarbageError as garbage:
            self.problems.update(dict.fromkeys(fields, str(garbage)))


class Buffers:
    """Result buffers, made once: each is read right after the call that fills it, so all GPUs share them."""

    def __init__(self) -> None:
        self.uint = c_uint()
        self.uint_ref = byref(self.uint)
        self.other_uint_ref = byref(c_uint())
        self.ulonglong = c_ulonglong()
        self.ulonglong_ref = byref(self.ulonglong)
        self.text = create_string_buffer(96)  # the longest of NVML's strings (NVML_DEVICE_UUID_V2_BUFFER_SIZE)
        self.utilization = pynvml.c_nvmlUtilization_t()
        self.utilization_ref = byref(self.utilization)
        self.memory = pynvml.c_nvmlMemory_t()
        self.memory_ref = byref(self.memory)
        self.memory_v2 = pynvml.c_nvmlMemory_v2_t()
        self.memory_v2_ref = byref(self.memory_v2)


class Device:
    """A GPU with a valid handle. ``call`` raises NvmlError; unsupported calls are not repeated."""

    def __init__(self, index: int, handle: Any, calls: Calls, buffers: Buffers) -> None:
        self.index = index
        self.uuid: str | None = None
        self.buffers = buffers
        self.static_is_read = False
        self.needs_violation_status = False
        self._handle = handle
        self._calls = calls
        self._unsupported: dict[str, tuple[int, float]] = {}

    def call(self, name: str, *args: Any) -> None:
        if name in self._unsupported:
            code, until_s = self._unsupported[name]
            if time.monotonic() < until_s:
                raise NvmlError(name, code)
            del self._unsupported[name]
        code = self._calls(name, self.index, self._handle, *args)
        if code:
            if code in codes.REMEMBERED:
                self._unsupported[name] = (code, time.monotonic() + ASK_AGAIN_S)
            raise NvmlError(name, code)

    def code(self, name: str, *args: Any) -> int:
        """As ``call``, for callers that tell the codes apart."""
        try:
            self.call(name, *args)
        except NvmlError as failure:
            return failure.code
        return 0

    def uint(self, name: str, *args: Any) -> int:
        """A call whose result is one unsigned int."""
        self.call(name, *args, self.buffers.uint_ref)
        return not_blank(name, self.buffers.uint.value, 0xFFFFFFFF)

    def ulonglong(self, name: str, *args: Any) -> int:
        self.call(name, *args, self.buffers.ulonglong_ref)
        return not_blank(name, self.buffers.ulonglong.value, _BLANK)

    def text(self, name: str) -> str | None:
        """A call whose result is a string; None when it is empty."""
        self.call(name, self.buffers.text, c_uint(96))
        return self.buffers.text.value.decode("utf-8", "replace") or None


def is_unsupported(failure: NvmlError) -> bool:
    return failure.code in codes.UNSUPPORTED


def first_supported(*readers: Callable[[], Any], moves_on: Callable[[NvmlError], bool] = is_unsupported) -> Any:
    """The first reader that is supported. When none is, the failure of the first (the newest call)."""
    failures: list[NvmlError] = []
    for reader in readers:
        try:
            return reader()
        except NvmlError as failure:
            if not moves_on(failure):
                raise
            failures.append(failure)
    raise failures[0]


def not_blank(name: str, value: Number, blank: int = _BLANK) -> Number:
    """NVML marks missing numbers with values near the end of the type's range."""
    if value >= blank:
        raise GarbageError(f"{name} answered {value}, which is not a value")
    return value
