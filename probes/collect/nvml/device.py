"""GPUs as the child sees them: which there are, what one supports, the result buffers that all share.

Buffers and structures are made once: each is read right after the call that fills it, by the child's only thread.
"""

from __future__ import annotations

import time
from ctypes import byref, c_int, c_uint, c_ulonglong, create_string_buffer
from functools import partial
from typing import Any, Callable, TypeVar

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import TEXT_BYTES, Calls, GarbageError, NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import Reason
from mltop.probes.model.nvml_fields import OLDEST_DRIVER, as_numbers

ASK_AGAIN_S = 60.0  # a driver update or a MIG change can bring support back
TEXT_SIZE = c_uint(TEXT_BYTES)
_BLANK = 1 << 62  # NVML's "no value" for 64-bit counters is at or above 9.2e18

Number = TypeVar("Number", int, float)
State = TypeVar("State")


class Reading:
    """What one tier read of one GPU: values by field name, and a problem for each field that is unknown.

    A field of a part of GpuSample is named with a dot: "ecc.enabled", "remap.banks.max". Several fields with the same
    problem are one: "sm_active,tensor_active".
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: dict[str, Reason] = {}

    def attempt(self, fields: tuple[str, ...], reader: Callable[[], dict[str, Any]]) -> None:
        """Run a reader; its failure becomes the problem of its fields. A lost GPU or library is raised."""
        try:
            self.values.update(reader())
        except UnreadError as error:
            if isinstance(error, NvmlError) and error.is_loss:
                raise
            self.problems.update(dict.fromkeys(fields, error.reason))

    def take(self, field: str, read: Callable[[], Any]) -> None:
        """One field by its own reader."""
        self.attempt((field,), lambda: {field: read()})


_UINT, _OTHER_UINT, _ULONGLONG = c_uint(), c_uint(), c_ulonglong()
_UINT_REF, _OTHER_UINT_REF, _ULONGLONG_REF = byref(_UINT), byref(_OTHER_UINT), byref(_ULONGLONG)
_TEXT = create_string_buffer(TEXT_BYTES)


class Device:
    """A GPU with a valid handle. ``call`` raises NvmlError; unsupported calls are not repeated."""

    def __init__(self, index: int, handle: Any, calls: Calls) -> None:
        self.index = index
        self.uuid: str | None = None
        self.handle = handle
        self.numbering: tuple[int, ...] = (0,)  # the version that field ids go by, e.g. (570, 86, 15)
        self.calls = calls
        self.is_heard = False  # of its events
        self._unsupported: dict[tuple[Any, ...], tuple[int, float]] = {}
        self._states: dict[type, Any] = {}

    def state(self, kind: type[State]) -> State:
        """What a reader keeps about this GPU: made at its first use, gone with the handle."""
        if kind not in self._states:
            self._states[kind] = kind()
        state: State = self._states[kind]
        return state

    def forget(self, kind: type) -> None:
        """Drop what a reader keeps about this GPU; what has a ``release`` gives it back to the library, without a call
        on the GPU.
        """
        state: Any = self._states.pop(kind, None)
        if hasattr(state, "release"):
            state.release()

    def release(self) -> None:
        """Drop all that readers keep: the handle is not used any more."""
        for kind in list(self._states):
            self.forget(kind)

    def call(self, name: str, *args: Any, version: int = 0) -> None:
        """Calls a function on this GPU. Support is remembered per call and argument: a GB10 has an SM clock and no
        memory clock. ``version``: of the structure that an argument points to.
        """
        key = (name, version, *(arg.value for arg in args if isinstance(arg, (c_int, c_uint))))
        if key in self._unsupported:
            code, until_s = self._unsupported[key]
            if time.monotonic() < until_s:
                raise NvmlError(name, code)
            del self._unsupported[key]
        code = self.calls(name, self.index, self.handle, *args)
        if code:
            if code in codes.REMEMBERED:
                self._unsupported[key] = (code, time.monotonic() + ASK_AGAIN_S)
            raise NvmlError(name, code)

    def code_now(self, name: str, *args: Any) -> int:
        """NVML's code; calls whatever was said before, for callers that remember support themselves."""
        return self.calls(name, self.index, self.handle, *args)

    def uint(self, name: str, *args: Any) -> int:
        """A call whose result is one unsigned int."""
        self.call(name, *args, _UINT_REF)
        return not_blank(name, _UINT.value, 0xFFFFFFFF)

    def ulonglong(self, name: str, *args: Any) -> int:
        self.call(name, *args, _ULONGLONG_REF)
        return not_blank(name, _ULONGLONG.value, _BLANK)

    def text(self, name: str, *args: Any) -> str | None:
        """A call whose result is a string; None when it is empty. ``args``: what follows the buffer."""
        self.call(name, _TEXT, *args)
        return _TEXT.value.decode("utf-8", "replace") or None

    def flag(self, name: str) -> bool:
        return as_flag(name, self.uint(name))

    def two_flags(self, name: str) -> tuple[bool, bool]:
        """A call whose results are the mode now and the one that is pending."""
        self.call(name, _UINT_REF, _OTHER_UINT_REF)
        return as_flag(name, _UINT.value), as_flag(name, _OTHER_UINT.value)


def first_supported(*readers: Callable[[], Any]) -> Any:
    """The first reader that is supported, the newest call first. When none is, the first one's failure.

    INVALID_ARGUMENT is what some drivers say of a field or a version of a structure that they do not know.
    """
    failures: list[NvmlError] = []
    for reader in readers:
        try:
            return reader()
        except NvmlError as failure:
            if failure.code not in codes.UNSUPPORTED and failure.code != codes.INVALID_ARGUMENT:
                raise
            failures.append(failure)
    raise failures[0]


def not_blank(name: str, value: Number, blank: int = _BLANK) -> Number:
    """NVML marks missing numbers with values near the end of the type's range."""
    if value >= blank:
        raise GarbageError(f"{name} answered {value}, which is not a value")
    return value


def as_flag(name: str, number: int | float) -> bool:
    """NVML's nvmlEnableState_t and its like. Raises GarbageError: all ones is no yes."""
    if number not in (0, 1):
        raise GarbageError(f"{name} answered {number}, which is neither 0 nor 1")
    return bool(number)


class Structure:
    """A structure of pynvml's that a call fills. Older releases of pynvml lack some.

    ``version``: the name of pynvml's number for it, "" where the structure brings its own, or has none.
    """

    def __init__(self, call: str, kind: str, version: str = "") -> None:
        self._call = call
        structure = getattr(pynvml, kind, None)
        self.content: Any = None if structure is None else structure()
        self._version = getattr(pynvml, version, None) if version else getattr(self.content, "version", None)
        if self.content is not None:
            self._reference = byref(self.content)

    def read(self, device: Device, *args: Any) -> Any:
        """The content, filled; ``args``: what comes before it. Raises NvmlError."""
        if self.content is None:
            raise NvmlError(self._call, codes.FUNCTION_NOT_FOUND)
        if self._version is not None:
            self.content.version = self._version  # the driver may write its own into it
        device.call(self._call, *args, self._reference, version=self._version or 0)
        return self.content


def bus_id_of(info: Any) -> str:
    """The bus id in an nvmlPciInfo_t, as NVML prints it, with an eight-digit domain ("00000000:18:00.0")."""
    bus_id = info.busId
    return bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)


def read_cuda(calls: Calls) -> str:
    """The newest CUDA that the driver supports: NVML says 13000 for 13.0."""
    version = c_int()
    calls.system("nvmlSystemGetCudaDriverVersion_v2", byref(version))
    if not 1000 <= version.value < 1_000_000:
        raise GarbageError(f"the driver answered {version.value}, which is not a CUDA version")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def numbering(calls: Calls, driver: str | None) -> tuple[int, ...]:
    """The version whose field ids hold: the driver's, else that of NVML, which is CUDA's version and the driver's."""
    numbers = as_numbers(driver)
    if len(numbers) > 1:
        return numbers
    try:
        version = calls.text("nvmlSystemGetNVMLVersion")
    except NvmlError as failure:
        if failure.code in codes.LIBRARY_DOWN:
            raise
        return numbers
    return max(numbers, as_numbers(version.partition(".")[2]))


COUNT_CALL = "nvmlDeviceGetCount_v2"
LOOKUP_CALL = "nvmlDeviceGetHandleByIndex_v2"


class Lost:
    """A GPU that cannot be read at present, with the failure that said so."""

    def __init__(self, index: int, uuid: str | None, failure: NvmlError, gone: bool) -> None:
        self.index = index
        self.uuid = uuid
        self.failure = failure
        self.gone = gone  # False: it is there, but we may not or cannot open it


class Devices:
    """All GPUs by NVML index. ``update`` is called once per poll; skipped indexes are never touched."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._count = 0
        self._by_index: dict[int, Device | Lost] = {}
        self.system = Reading()  # what is the same for all GPUs
        self.system.take("driver", lambda: calls.text("nvmlSystemGetDriverVersion") or None)
        self.system.take("cuda", partial(read_cuda, calls))
        self._numbering = numbering(calls, self.system.values.get("driver"))
        # The version of a driver that mltop does not read, "" for any other. One whose version nobody tells is read.
        self.too_old = ""
        if 0 < self._numbering[0] < OLDEST_DRIVER:
            self.too_old = self.system.values.get("driver") or ".".join(map(str, self._numbering))

    def update(self, skip: frozenset[int], retry_lost: bool) -> list[Device | Lost]:
        """The GPUs to read now. A changed count may have shifted the indexes: all are looked up again."""
        count = c_uint()
        self._calls.system(COUNT_CALL, byref(count))
        if count.value != self._count:
            self.release()
            self._count = count.value
        for index in range(self._count):
            if index in skip:
                self._drop(index)
                continue
            entry = self._by_index.get(index)
            if entry is None or (retry_lost and isinstance(entry, Lost)):
                self._by_index[index] = self._look_up(index, entry.uuid if entry else None)
        return [self._by_index[index] for index in sorted(self._by_index)]

    def lose(self, device: Device, failure: NvmlError) -> Lost:
        """Remember why a GPU cannot be read; its handle is dropped and looked up again later."""
        self._drop(device.index)
        lost = Lost(device.index, device.uuid, failure, gone=failure.code in codes.GONE)
        self._by_index[device.index] = lost
        return lost

    def release(self) -> None:
        """Drop all handles: before the library is shut down, and when the number of GPUs has changed."""
        for index in list(self._by_index):
            self._drop(index)

    def _drop(self, index: int) -> None:
        device = self._by_index.pop(index, None)
        if isinstance(device, Device):
            device.release()

    def readable(self) -> list[Device]:
        """Those that are neither lost nor skipped."""
        return [entry for entry in self._by_index.values() if isinstance(entry, Device)]

    def any_lost(self) -> bool:
        return any(isinstance(entry, Lost) for entry in self._by_index.values())

    def _look_up(self, index: int, last_uuid: str | None) -> Device | Lost:
        handle = pynvml.c_nvmlDevice_t()
        code = self._calls(LOOKUP_CALL, index, c_uint(index), byref(handle))
        if code == 0 and not handle:
            code = codes.UNKNOWN  # NVML dereferences a NULL handle (XuehaiPan/nvitop#145)
        if code in codes.LIBRARY_DOWN:
            raise NvmlError(LOOKUP_CALL, code)
        if code:
            failure = NvmlError(LOOKUP_CALL, code)
            return Lost(index, last_uuid, failure, gone=code in codes.GONE_ON_LOOKUP)
        device = Device(index, handle, self._calls)
        device.numbering = self._numbering
        try:
            device.uuid = device.text("nvmlDeviceGetUUID", TEXT_SIZE)
        except NvmlError as failure:
            if failure.code in codes.LIBRARY_DOWN:
                raise
            if failure.code in codes.GONE:
                return Lost(device.index, last_uuid, failure, gone=True)
        return device
