"""One GPU as the child sees it: its handle, what it does not support, and the shared result buffers.

Versions: of the driver, of the CUDA that it supports, of the GPU's firmware.

Which GPUs there are: handles by index, identities by UUID, and what became of those that are lost.
"""

from __future__ import annotations

import time
from ctypes import byref, c_int, c_uint, c_ulonglong, create_string_buffer
from functools import partial
from typing import Any, Callable, TypeVar, Union

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import Calls, GarbageError, NvmlError
from mltop.probes.model.nvml_fields import as_numbers

ASK_AGAIN_S = 60.0  # a driver update or a MIG change can bring support back
_BLANK = 1 << 62  # NVML's "no value" for 64-bit counters is at or above 9.2e18

Number = TypeVar("Number", int, float)
State = TypeVar("State")
# Why one field has no value: the call that failed with its code; a gap's kind, or "implausible", with a sentence; or a
# sentence.
Problem = Union[tuple[str, int], tuple[str, str], str]


def unsupported(why: str) -> Problem:
    """This GPU or driver has no such thing: nothing is missed."""
    return ("unsupported", why)


def starting(why: str) -> Problem:
    """It comes with one of the next samples."""
    return ("starting", why)


def implausible(why: str) -> Problem:
    """The driver answered with what cannot be; ``why`` says with what."""
    return (codes.IMPLAUSIBLE, why)


class UntoldError(Exception):
    """There is no value now, and no call that failed; ``problem`` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class Reading:
    """What one tier read of one GPU: values by field name, and a problem for each field that is unknown.

    A field of a part of GpuSample is named with a dot: "ecc.enabled", "remap.banks.max".
    """

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
            self.problems.update(dict.fromkeys(fields, implausible(str(garbage))))
        except UntoldError as untold:
            self.problems.update(dict.fromkeys(fields, untold.problem))


class Buffers:
    """Result buffers, made once: each is read right after the call that fills it, so all GPUs share them."""

    def __init__(self) -> None:
        self.uint = c_uint()
        self.uint_ref = byref(self.uint)
        self.other_uint = c_uint()
        self.other_uint_ref = byref(self.other_uint)
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
        self.handle = handle
        self.buffers = buffers
        self.numbering: tuple[int, ...] = (0,)  # the version that field ids go by, e.g. (570, 86, 15)
        self._calls = calls
        self._unsupported: dict[str, tuple[int, float]] = {}
        self._states: dict[type, Any] = {}

    def state(self, kind: type[State]) -> State:
        """What a reader keeps about this GPU: made at its first use, gone with the handle."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind()
        kept: State = found
        return kept

    def call(self, name: str, *args: Any, part: str = "") -> None:
        """``part``: what support is remembered for where it depends on an argument."""
        key = name + part
        if key in self._unsupported:
            code, until_s = self._unsupported[key]
            if time.monotonic() < until_s:
                raise NvmlError(name, code)
            del self._unsupported[key]
        code = self._calls(name, self.index, self.handle, *args)
        if code:
            if code in codes.REMEMBERED:
                self._unsupported[key] = (code, time.monotonic() + ASK_AGAIN_S)
            raise NvmlError(name, code)

    def code(self, name: str, *args: Any) -> int:
        """As ``call``, for callers that tell the codes apart."""
        try:
            self.call(name, *args)
        except NvmlError as failure:
            return failure.code
        return 0

    def code_now(self, name: str, *args: Any) -> int:
        """NVML's code; calls whatever was said before, for callers that remember support themselves."""
        return self._calls(name, self.index, self.handle, *args)

    def uint(self, name: str, *args: Any, part: str = "") -> int:
        """A call whose result is one unsigned int."""
        self.call(name, *args, self.buffers.uint_ref, part=part)
        return not_blank(name, self.buffers.uint.value, 0xFFFFFFFF)

    def ulonglong(self, name: str, *args: Any) -> int:
        self.call(name, *args, self.buffers.ulonglong_ref)
        return not_blank(name, self.buffers.ulonglong.value, _BLANK)

    def text(self, name: str, *args: Any) -> str | None:
        """A call whose result is a string; None when it is empty. ``args``: what follows the buffer."""
        self.call(name, self.buffers.text, *args)
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


def as_flag(name: str, number: int | float) -> bool:
    """NVML's nvmlEnableState_t and its like. Raises GarbageError: all ones is no yes."""
    if number not in (0, 1):
        raise GarbageError(f"{name} answered {number}, which is neither 0 nor 1")
    return bool(number)


def structure(name: str) -> Any:
    """A structure of pynvml by its name, None in releases that came before it."""
    kind = getattr(pynvml, name, None)
    return None if kind is None else kind()


def read_driver(calls: Calls) -> dict[str, Any]:
    """The driver's version, the same for all GPUs."""
    buffer: Any = create_string_buffer(96)
    calls.system("nvmlSystemGetDriverVersion", buffer, c_uint(96))
    return {"driver": buffer.value.decode("utf-8", "replace") or None}


def read_cuda(calls: Calls) -> dict[str, Any]:
    """The newest CUDA that the driver supports: NVML says 13000 for 13.0."""
    version = c_int()
    try:
        calls.system("nvmlSystemGetCudaDriverVersion_v2", byref(version))
    except NvmlError as failure:
        if failure.code not in codes.UNSUPPORTED:
            raise
        calls.system("nvmlSystemGetCudaDriverVersion", byref(version))
    if not 1000 <= version.value < 1_000_000:
        raise GarbageError(f"the driver answered {version.value}, which is not a CUDA version")
    return {"cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def read_gsp(device: Device) -> dict[str, Any]:
    """The firmware of the GPU's system processor. NOT_SUPPORTED where the driver runs without it."""
    return {"gsp_firmware": device.text("nvmlDeviceGetGspFirmwareVersion")}


def numbering(calls: Calls, driver: str | None) -> tuple[int, ...]:
    """The version whose field ids hold: the driver's, else that of NVML, which is CUDA's version and the driver's."""
    numbers = as_numbers(driver)
    if len(numbers) > 1:
        return numbers
    buffer: Any = create_string_buffer(96)
    try:
        calls.system("nvmlSystemGetNVMLVersion", buffer, c_uint(96))
    except NvmlError as failure:
        if failure.code in codes.LIBRARY_DOWN:
            raise
        return numbers
    _, _, of_driver = buffer.value.decode("utf-8", "replace").partition(".")
    return max(numbers, as_numbers(of_driver))


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
        self._buffers = Buffers()
        self._count = 0
        self._by_index: dict[int, Device | Lost] = {}
        self.system = Reading()  # what is the same for all GPUs
        self.system.attempt(("driver",), partial(read_driver, calls))
        self.system.attempt(("cuda",), partial(read_cuda, calls))
        self._numbering = numbering(calls, self.system.values.get("driver"))

    def update(self, skip: frozenset[int], retry_lost: bool) -> list[Device | Lost]:
        """The GPUs to read now. A changed count may have shifted the indexes: all are looked up again."""
        count = self._read_count()
        if count != self._count:
            self._by_index.clear()
            self._count = count
        for index in range(count):
            if index in skip:
                self._by_index.pop(index, None)
                continue
            entry = self._by_index.get(index)
            if entry is None or (retry_lost and isinstance(entry, Lost)):
                self._by_index[index] = self._look_up(index, entry.uuid if entry else None)
        return [self._by_index[index] for index in sorted(self._by_index)]

    def lose(self, device: Device, failure: NvmlError) -> Lost:
        """Remember why a GPU cannot be read; its handle is dropped and looked up again later."""
        lost = Lost(device.index, device.uuid, failure, gone=failure.code in codes.GONE)
        self._by_index[device.index] = lost
        return lost

    def readable(self) -> list[Device]:
        """Those that are neither lost nor skipped."""
        return [entry for entry in self._by_index.values() if isinstance(entry, Device)]

    def any_lost(self) -> bool:
        return any(isinstance(entry, Lost) for entry in self._by_index.values())

    def _read_count(self) -> int:
        count = c_uint()
        self._calls.system(COUNT_CALL, byref(count))
        return count.value

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
        return self._identify(Device(index, handle, self._calls, self._buffers), last_uuid)

    def _identify(self, device: Device, last_uuid: str | None) -> Device | Lost:
        device.numbering = self._numbering
        try:
            device.uuid = device.text("nvmlDeviceGetUUID", c_uint(96))
        except NvmlError as failure:
            if failure.code in codes.LIBRARY_DOWN:
                raise
            if failure.code in codes.GONE:
                return Lost(device.index, last_uuid, failure, gone=True)
        return device
