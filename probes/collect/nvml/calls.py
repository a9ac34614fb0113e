"""Calling NVML from the child. Each call is noted first, in a shared page that survives a hung or killed child."""

from __future__ import annotations

import mmap
import os
import struct
import time
from ctypes import c_uint, create_string_buffer
from typing import Any, Callable, NamedTuple

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.codes import Failure, Reason, implausible
from mltop.probes.system.blobs import NOEXEC_SEAL, memory_fd

_LAYOUT = struct.Struct("=qd64s")  # GPU index, CLOCK_MONOTONIC at the start of the call, name of the call
NO_GPU = -1
TEXT_BYTES = 96  # the longest of NVML's strings (NVML_DEVICE_UUID_V2_BUFFER_SIZE)


class Note(NamedTuple):
    """A call under way: ``gpu`` is NVML's index or None, ``started_s`` is CLOCK_MONOTONIC of this machine."""

    call: str
    gpu: int | None
    started_s: float

    def where(self) -> str:
        """E.g. "nvmlDeviceGetTemperatureV on GPU 3"."""
        return self.call if self.gpu is None else f"{self.call} on GPU {self.gpu}"


class Breadcrumb:
    """One note. The child writes it before each call; the parent reads it when no answer comes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> Breadcrumb:
        """A new page; pass ``fd`` on to the child."""
        fd = memory_fd("mltop-nvml", NOEXEC_SEAL)
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def note(self, call: bytes, gpu: int) -> None:
        _LAYOUT.pack_into(self._page, 0, gpu, time.monotonic(), call)

    def clear(self) -> None:
        _LAYOUT.pack_into(self._page, 0, NO_GPU, 0.0, b"")

    def read(self) -> Note | None:
        """The call under way, None between polls."""
        gpu, started_s, call = _LAYOUT.unpack_from(self._page, 0)
        name = call.rstrip(b"\0").decode("ascii", "replace")
        if not name:
            return None
        return Note(name, None if gpu == NO_GPU else gpu, started_s)

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)


class UnreadError(Exception):
    """There is no value now; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class GarbageError(UnreadError):
    """A call that succeeded with a value that cannot be; the text says call and value."""

    def __init__(self, why: str) -> None:
        super().__init__(implausible(why))


class NvmlError(UnreadError):
    """A call that did not return success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(Failure(call, code))
        self.call = call
        self.code = code

    @property
    def is_loss(self) -> bool:
        """The GPU or the library is gone: there is nothing more to read of it."""
        return self.code in codes.GONE or self.code in codes.LIBRARY_DOWN


class OldDriverError(Exception):
    """The driver is older than what mltop reads; the text is its version."""


class Calls:
    """The functions of one loaded library. ``calls(name, gpu, *args)`` returns NVML's code."""

    def __init__(self, library: Any, crumb: Breadcrumb) -> None:
        self._library = library
        self._crumb = crumb
        self._functions: dict[str, tuple[Callable[..., int] | None, bytes]] = {}

    def __call__(self, name: str, gpu: int, *args: Any) -> int:
        entry = self._functions.get(name)
        if entry is None:
            entry = self._functions[name] = (getattr(self._library, name, None), name.encode())
        function, encoded = entry
        if function is None:
            return codes.FUNCTION_NOT_FOUND
        self._crumb.note(encoded, gpu)
        return function(*args)

    def system(self, name: str, *args: Any) -> None:
        """A call that concerns no single GPU; raises NvmlError."""
        code = self(name, NO_GPU, *args)
        if code:
            raise NvmlError(name, code)

    def text(self, name: str) -> str:
        """One of the library's strings; raises NvmlError."""
        buffer = create_string_buffer(TEXT_BYTES)
        self.system(name, buffer, c_uint(TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")


def load(crumb: Breadcrumb) -> Calls:
    """Load libnvidia-ml.so.1 and initialise it.

    Raises NvmlError("nvmlInit", code), ImportError when pynvml is missing, OSError when the library is there
    but cannot be loaded.
    """
    import pynvml

    crumb.note(b"nvmlInit", NO_GPU)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == codes.LIBRARY_NOT_FOUND:
            from mltop.probes.collect.nvml.library import explain_missing

            explain_missing()
        raise NvmlError("nvmlInit", error.value) from None
    return Calls(pynvml.nvmlLib, crumb)
