"""Many values with one nvmlDeviceGetFieldValues call, and rates from counters.

Field ids: nvml.h NVML_FI_DEV_*. Layout of one value: nvmlFieldValue_t (40 bytes).
"""

from __future__ import annotations

import math
import struct
import time
from collections import defaultdict
from collections.abc import Iterable
from ctypes import byref, c_int
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import Failure, Reason, starting
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Reading, as_flag, not_blank
from mltop.probes.collect.timing import LastLook

CALL = "nvmlDeviceGetFieldValues"
ALL_LINKS = 0xFFFFFFFF  # the scope of NVLink counters that sums all links
OF_BATCH = -1  # in place of a value's type: the code is of the call, not of this field alone
# What a field says that this driver does not know, or will not tell; some reject a whole batch so.
REFUSED = codes.REMEMBERED | {codes.INVALID_ARGUMENT}

Entry = tuple[int, int]  # field id and scope: 0, a link, or ALL_LINKS

_LAYOUT = struct.Struct("=24xIi8s")  # fieldId, scopeId, timestamp, latencyUsec; valueType, nvmlReturn, value
_VALUE = {  # nvmlValueType_t; thresholds and temperatures may be signed
    0: struct.Struct("=d"),
    1: struct.Struct("=I4x"),
    2: struct.Struct("=Q"),
    3: struct.Struct("=Q"),
    4: struct.Struct("=q"),
    5: struct.Struct("=i4x"),
    6: struct.Struct("=H6x"),
}


class FieldRequest:
    """One batch for one GPU. What it does not support is left out for a minute, then asked again."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._all = tuple(entries)
        self._make_batch(self._all)
        self._refused: dict[Entry, tuple[Any, ...]] = {}
        self._ask_all_at_s = float("-inf")
        self._last: tuple[list[tuple[Any, ...]], FieldValues] | None = None

    def _make_batch(self, entries: tuple[Entry, ...]) -> None:
        """The entries of the next calls and room for what is answered. NVML may write one entry past the end
        (XuehaiPan/nvitop 1.7.2): the last one is padding.
        """
        self._entries = entries
        array = (pynvml.c_nvmlFieldValue_t * (len(entries) + 1))()
        for value, (field, scope) in zip(array, entries):
            value.fieldId = field
            value.scopeId = scope
        self._bytes = memoryview(array).cast("B")[: len(entries) * _LAYOUT.size]
        self._arguments = c_int(len(entries)), byref(array)

    def read(self, device: Device) -> FieldValues:
        """Reads the batch; returns the same object as before while nothing changes.

        Raises NvmlError only when the GPU or the library is gone.
        """
        now_s = time.monotonic()
        if now_s >= self._ask_all_at_s:
            self._ask_all_at_s = now_s + ASK_AGAIN_S
            if self._refused:
                self._refused.clear()
                self._make_batch(self._all)
            self._last = None
        if not self._entries:
            return FieldValues(self._refused)
        code = device.code_now(CALL, *self._arguments)
        if code and (failure := NvmlError(CALL, code)).is_loss:
            raise failure
        if code:
            failed = dict.fromkeys(self._entries, (OF_BATCH, code, b""))
            if code in REFUSED:
                self._refused.update(failed)
                self._make_batch(())
            return FieldValues({**failed, **self._refused})
        answers = list(_LAYOUT.iter_unpack(self._bytes))
        if self._last is not None and self._last[0] == answers:
            return self._last[1]
        by_entry = dict(zip(self._entries, answers))
        refused = {entry: answer for entry, answer in by_entry.items() if answer[1] in REFUSED}
        values = FieldValues({**by_entry, **self._refused})
        self._last = (answers, values)
        if refused:
            self._refused.update(refused)
            self._make_batch(tuple(entry for entry in self._all if entry not in self._refused))
            self._last = None
        return values


class FieldValues:
    """One GPU's answer."""

    def __init__(self, answers: dict[Entry, tuple[Any, ...]]) -> None:
        self._answers = answers

    def code(self, field: int, scope: int = 0) -> int:
        """NVML's code for one field. Raises NvmlError when it says that the GPU is gone."""
        code: int = self._answers[field, scope][1]
        if code in codes.GONE:
            raise NvmlError(CALL, code)
        return code

    def call(self, field: int, scope: int = 0) -> str:
        """What the code of a field is of: the call, with the field unless the call failed as a whole."""
        return CALL if self._answers[field, scope][0] == OF_BATCH else f"{CALL} {field}"

    def is_refused(self, field: int, scope: int = 0) -> bool:
        return self.code(field, scope) in REFUSED

    def value(self, field: int, name: str, scope: int = 0) -> int | float:
        """One value by its declared type. Raises NvmlError and GarbageError."""
        code = self.code(field, scope)
        if code:
            call = self.call(field, scope)
            raise NvmlError(call if call == CALL else f"{call} {name}", code)
        kind, _, raw = self._answers[field, scope]
        if kind not in _VALUE:
            raise NvmlError(f"{CALL} {field} {name}", codes.NOT_SUPPORTED)
        value: int | float = _VALUE[kind].unpack(raw)[0]
        if not math.isfinite(value):
            raise GarbageError(f"{CALL} {field} {name} answered {value}, which is not a value")
        return not_blank(f"{CALL} {field} {name}", value)

    def flag(self, field: int, name: str) -> bool:
        return as_flag(f"{CALL} {field} {name}", self.value(field, name))

    def count(self, field: int, name: str, scope: int = 0) -> int:
        """A counter. Raises as ``value``."""
        value = int(self.value(field, name, scope))
        if value < 0:
            raise GarbageError(f"{CALL} {field} {name} answered {value}, which is not a count")
        return value


def counters(values: FieldValues, group: str, names: dict[int, str], reading: Reading) -> dict[str, int]:
    """The counters that can be read, by name. Those that cannot are one problem of ``group`` when all are refused
    for lack of support, and otherwise one each.
    """
    counts: dict[str, int] = {}
    failed: dict[str, Reason] = {}
    for field, name in names.items():
        code = values.code(field)
        if code:
            failed[name] = Failure(values.call(field), code)
            continue
        try:
            counts[name] = values.count(field, name)
        except GarbageError as garbage:
            reading.problems[f"{group}.{name}"] = garbage.reason
    if failed and not counts:
        reading.problems[group] = next(iter(failed.values()))
    else:
        reading.problems.update({f"{group}.{name}": problem for name, problem in failed.items()})
    return counts


FIRST_SAMPLE = starting("first sample: a rate needs two")
STARTED_ANEW = starting("the counter started anew: a rate needs two samples")


class Meter:
    """The newest value of every counter of one GPU."""

    def __init__(self) -> None:
        self._last_looks: defaultdict[str, LastLook[int]] = defaultdict(partial(LastLook, shortest_s=0.0))

    def per_s(self, name: str, value: int, at_s: float) -> float:
        """Increase per second since the call before. Raises UnreadError the first time, and after a reset."""
        before = self._last_looks[name].since(at_s, value)
        if before is None:
            raise UnreadError(FIRST_SAMPLE)
        passed_s, value_before = before
        if value < value_before:
            raise UnreadError(STARTED_ANEW)
        return (value - value_before) / passed_s
