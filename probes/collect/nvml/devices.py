"""Which GPUs there are: handles by index, identities by UUID, and what became of those that are lost."""

from __future__ import annotations

from ctypes import byref, c_uint
from functools import partial

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import Calls, NvmlError
from mltop.probes.collect.nvml.device import Buffers, Device, Reading
from mltop.probes.collect.nvml.versions import numbering, read_cuda, read_driver

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
