"""The PCIe link of a GPU, read while it copies: an idle link trains down, so no other moment tells anything.

Functions of nvml.h: nvmlDeviceGetHandleByUUID, nvmlDeviceGet{Curr,Max}PcieLink{Generation,Width},
nvmlDeviceGetPciInfo_v3.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from mltop.probes.active.phase_nvml import Nvml, NvmlError


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t"""

    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


@dataclass(frozen=True)
class Link:
    """Generation and lanes; None where NVML does not tell."""

    gen: int | None = None
    width: int | None = None

    def best(self, other: Link) -> Link:
        """The higher of both: a link that trains up is low for a moment."""
        return Link(_higher(self.gen, other.gen), _higher(self.width, other.width))


NO_LINK = Link()


class PcieLinks:
    """Of GPUs by their UUID. ``why``: why nothing can be read, "" when it can."""

    def __init__(self) -> None:
        self.why = ""
        self._handles: dict[str, ctypes.c_void_p | None] = {}
        try:
            self._nvml: Nvml | None = Nvml()
        except (OSError, NvmlError) as error:
            self._nvml = None
            self.why = f"NVML: {error}"

    def now(self, uuid: str) -> Link:
        return self._link(uuid, "Curr")

    def most(self, uuid: str) -> Link:
        """What GPU and slot could do together."""
        return self._link(uuid, "Max")

    def address(self, uuid: str) -> str:
        """As sysfs has it: ``0000:9b:00.0``; "" when unknown."""
        info = _PciInfo()
        if not self._call("nvmlDeviceGetPciInfo_v3", uuid, info):
            return ""
        function = info.busId.decode("ascii", "replace").rpartition(".")[2]
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function or 0}"

    def _link(self, uuid: str, which: str) -> Link:
        gen = self._number(f"nvmlDeviceGet{which}PcieLinkGeneration", uuid)
        return Link(gen, self._number(f"nvmlDeviceGet{which}PcieLinkWidth", uuid))

    def _number(self, name: str, uuid: str) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._call(name, uuid, value) else None

    def _call(self, name: str, uuid: str, answer: ctypes.c_uint | _PciInfo) -> bool:
        """Whether NVML has filled ``answer``."""
        handle = self._handle(uuid)
        if self._nvml is None or handle is None:
            return False
        try:
            self._nvml.call(name, handle, ctypes.byref(answer))
        except NvmlError:
            return False
        return True

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        if self._nvml is not None and uuid not in self._handles:
            handle = ctypes.c_void_p()
            try:
                self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
            except NvmlError:
                self._handles[uuid] = None
            else:
                self._handles[uuid] = handle
        return self._handles.get(uuid)


def _higher(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
