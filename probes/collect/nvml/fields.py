"""Power, energy, memory temperature and throttle time in one nvmlDeviceGetFieldValues call per GPU.

Field ids: nvml.h NVML_FI_DEV_*. Layout of one value: nvmlFieldValue_t (40 bytes).
"""

from __future__ import annotations

import math
import struct
from ctypes import byref, c_int

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, not_blank

CALL = "nvmlDeviceGetFieldValues"
MEMORY_TEMPERATURE = 82
ENERGY = 83  # mJ since the driver was loaded
POWER_AVERAGE = 185  # mW over one second
POWER_INSTANT = 186
THROTTLE_NS = {
    74: "sw_power_cap",
    76: "sync_boost",
    77: "board_limit",
    78: "low_utilization",
    79: "reliability",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "power_brake",
}
# Only what has no field in older drivers is asked one by one (nvml.h NVML_PERF_POLICY_*).
VIOLATIONS = {0: "sw_power_cap", 2: "sync_boost", 3: "board_limit", 4: "low_utilization", 5: "reliability"}

_IDS = (POWER_AVERAGE, POWER_INSTANT, MEMORY_TEMPERATURE, ENERGY, *THROTTLE_NS)
_ENTRY = struct.Struct("=I20xIi8s")  # fieldId, valueType, nvmlReturn, value
_VALUE = {  # nvmlValueType_t; thresholds and temperatures may be signed
    0: struct.Struct("=d"),
    1: struct.Struct("=I4x"),
    2: struct.Struct("=Q"),
    3: struct.Struct("=Q"),
    4: struct.Struct("=q"),
    5: struct.Struct("=i4x"),
    6: struct.Struct("=H6x"),
}


class FieldBatch:
    """The request array of all fields, made once and shared by all GPUs."""

    def __init__(self) -> None:
        # NVML may write one entry past the end (XuehaiPan/nvitop 1.7.2): the last one is padding.
        self._array = (pynvml.c_nvmlFieldValue_t * (len(_IDS) + 1))()
        for entry, field_id in zip(self._array, _IDS):
            entry.fieldId = field_id
        self._bytes = memoryview(self._array).cast("B")[: len(_IDS) * _ENTRY.size]
        self._array_ref = byref(self._array)
        self._count = c_int(len(_IDS))

    def read(self, device: Device) -> FieldValues:
        """All fields of one GPU. Raises NvmlError only when the GPU or the library is gone."""
        try:
            device.call(CALL, self._count, self._array_ref)
        except NvmlError as failure:
            if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN:
                raise
            return FieldValues({}, failure.code)
        return FieldValues({field: (code, kind, raw) for field, kind, code, raw in _ENTRY.iter_unpack(self._bytes)})


class FieldValues:
    """One GPU's answer; ``whole_code`` is the code of a call that failed as a whole."""

    def __init__(self, entries: dict[int, tuple[int, int, bytes]], whole_code: int = 0) -> None:
        self._entries = entries
        self.whole_code = whole_code

    def code(self, field: int) -> int:
        """NVML's code for one field. Raises NvmlError when it says that the GPU is gone."""
        if self.whole_code:
            return self.whole_code
        code = self._entries[field][0]
        if code in codes.GONE:
            raise NvmlError(CALL, code)
        return code

    def value(self, field: int, name: str) -> int | float:
        """One value by its declared type. Raises NvmlError and GarbageError."""
        code = self.code(field)
        if code:
            raise NvmlError(CALL if self.whole_code else f"{CALL} {field} {name}", code)
        _, kind, raw = self._entries[field]
        if kind not in _VALUE:
            raise NvmlError(f"{CALL} {field} {name}", codes.NOT_SUPPORTED)
        value: int | float = _VALUE[kind].unpack(raw)[0]
        if not math.isfinite(value):
            raise GarbageError(f"{CALL} {field} {name} answered {value}, which is not a value")
        return not_blank(f"{CALL} {field} {name}", value)


def fallback_needed(failure: NvmlError) -> bool:
    """Old drivers reject a whole batch with INVALID_ARGUMENT for one id that they do not know."""
    return failure.code in codes.UNSUPPORTED or failure.code == codes.INVALID_ARGUMENT


def read_throttle_ns(fields: FieldValues, reading: Reading) -> None:
    """Nanoseconds spent throttled since the driver was loaded; a problem for each reason that is unknown."""
    if fields.whole_code:
        return  # the slow tier asks nvmlDeviceGetViolationStatus instead
    counters: dict[str, int] = {}
    problems: dict[str, int] = {}
    for field, reason in THROTTLE_NS.items():
        code = fields.code(field)
        if code:
            problems[reason] = code
        else:
            counters[reason] = int(fields.value(field, reason))
    reading.values["throttle_ns"] = counters
    if counters:
        for reason, code in problems.items():
            reading.problems[f"throttle_ns.{reason}"] = (CALL, code)
    else:
        reading.problems["throttle_ns"] = (CALL, next(iter(problems.values())))
