"""The few NVML calls that probes need, by ctypes: the Python that has torch may have no pynvml.

Names, field ids and structures are those of nvml.h; newer calls are tried before the older ones that they replace.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import byref, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from mltop.probes.model.nvml_fields import OLDEST_DRIVER, as_numbers, throttle_ns_fields

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK = c_int(1)  # NVML_CLOCK_SM
_TEXT_SIZE = 96


class NvmlError(Exception):
    """Which call failed, and why: in NVML's own words where it has some."""


class _Value(ctypes.Union):
    _fields_ = (("unsigned", c_uint), ("long", c_ulonglong), ("signed", c_longlong))


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", c_uint),
        ("scope", c_uint),
        ("timestamp", c_longlong),
        ("latency_us", c_longlong),
        ("value_type", c_uint),
        ("result", c_int),
        ("value", _Value),
    )


class _Temperature(ctypes.Structure):
    _fields_ = (("version", c_uint), ("sensor", c_uint), ("celsius", c_int))


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


class Nvml:
    """The library, initialised. ``calling``: the call that runs now, "" when none does; ``driver``: its version.

    Raises OSError when the library cannot be loaded, NvmlError when it does not start, or is older than mltop reads.
    """

    def __init__(self) -> None:
        self.calling = ""
        self._library = ctypes.CDLL(LIBRARY)
        self.call("nvmlInit_v2")
        text = (c_char * _TEXT_SIZE)()
        self.call("nvmlSystemGetDriverVersion", text, c_uint(_TEXT_SIZE))
        self.driver = text.value.decode(errors="replace")
        if 0 < as_numbers(self.driver)[0] < OLDEST_DRIVER:
            raise NvmlError(f"driver {self.driver} is older than {OLDEST_DRIVER}: mltop does not read it")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises NvmlError for any other answer than success."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(f"{name}: this driver does not have it") from None
        self.calling = name
        code = function(*arguments)
        self.calling = ""
        if code != 0:
            error_string = self._library.nvmlErrorString
            error_string.restype = ctypes.c_char_p
            raise NvmlError(f"{name}: {error_string(c_int(code)).decode(errors='replace')}")

    def gpu(self, uuid: str) -> Gpu:
        """The GPU of a GPU-UUID; of a MIG-UUID the one that has the instance: clocks and power are its own alone."""
        handle = c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(handle))
        if uuid.startswith("MIG-"):
            self.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, byref(handle))
        return Gpu(self, handle)


# Unsigned numbers: the call, its arguments, and how many of its units make one of ours.
VALUES: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "temperature_c": ("nvmlDeviceGetTemperature", (c_int(0),), 1),  # where the driver lacks nvmlDeviceGetTemperatureV
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (_SM_CLOCK,), 1),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", (_SM_CLOCK,), 1),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1000),
    "power_limit_default_w": ("nvmlDeviceGetPowerManagementDefaultLimit", (), 1000),
    "pcie_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", (), 1),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), 1),
    "pcie_gen_max": ("nvmlDeviceGetMaxPcieLinkGeneration", (), 1),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", (), 1),
}


class Gpu:
    """What one GPU says. Everything raises NvmlError."""

    def __init__(self, nvml: Nvml, handle: c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    def energy_mj(self) -> int:
        """Since the driver was loaded; Volta and newer."""
        energy = c_ulonglong()
        self._nvml.call("nvmlDeviceGetTotalEnergyConsumption", self._handle, byref(energy))
        return energy.value

    def throttle_ns(self) -> dict[str, int]:
        """Time that each reason has held the clock down since the driver was loaded, by the model's names."""
        names = throttle_ns_fields(as_numbers(self._nvml.driver))
        values = (_FieldValue * (len(names) + 1))()  # one more than asked for: NVML may write past the end
        for value, field in zip(values, names):
            value.field = field
        self._nvml.call("nvmlDeviceGetFieldValues", self._handle, c_int(len(names)), values)
        counters = {name: value.value.long for value, name in zip(values, names.values()) if value.result == 0}
        if not counters:
            raise NvmlError("nvmlDeviceGetFieldValues: no counter of throttle time is supported")
        return counters

    def value(self, what: str) -> float:
        """One of VALUES."""
        number, units = self.number(what), VALUES[what][2]
        return number if units == 1 else number / units

    def number(self, what: str) -> int:
        """One of VALUES in NVML's own unit."""
        if what == "temperature_c":
            reading = _Temperature(version=sizeof(_Temperature) | 1 << 24, sensor=0)
            with suppress(NvmlError):
                self._nvml.call("nvmlDeviceGetTemperatureV", self._handle, byref(reading))
                return int(reading.celsius)
        name, arguments, _ = VALUES[what]
        value = c_uint()
        self._nvml.call(name, self._handle, *arguments, byref(value))
        return value.value

    def pci_address(self) -> str:
        """The PCI address as sysfs has it: ``0000:9b:00.0``."""
        info = _PciInfo()
        self._nvml.call("nvmlDeviceGetPciInfo_v3", self._handle, byref(info))
        function = info.busId.decode("ascii", "replace").rpartition(".")[2]
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function or 0}"


@dataclass(frozen=True)
class Link:
    """Generation and lanes; None where NVML does not tell."""

    gen: int | None = None
    width: int | None = None

    def best(self, other: Link) -> Link:
        """The higher of both: a link that trains up is low for a moment."""
        return Link(max(self.gen or 0, other.gen or 0) or None, max(self.width or 0, other.width or 0) or None)


class PcieLinks:
    """The PCIe links of GPUs by UUID, read while they copy: an idle link trains down, no other moment tells anything.

    ``why``: why nothing can be read, "" when it can.
    """

    def __init__(self) -> None:
        self.why = ""
        self._gpus: dict[str, Gpu | None] = {}  # None: there is none
        self._nvml: Nvml | None = None
        try:
            self._nvml = Nvml()
        except (OSError, NvmlError) as error:
            self.why = f"NVML: {error}"

    def now(self, uuid: str) -> Link:
        return Link(self._read(uuid, Gpu.number, "pcie_gen"), self._read(uuid, Gpu.number, "pcie_width"))

    def most(self, uuid: str) -> Link:
        """What GPU and slot could do together."""
        return Link(self._read(uuid, Gpu.number, "pcie_gen_max"), self._read(uuid, Gpu.number, "pcie_width_max"))

    def address(self, uuid: str) -> str:
        """The PCI address as sysfs has it, "" when unknown."""
        return self._read(uuid, Gpu.pci_address) or ""

    def _read(self, uuid: str, read: Callable[..., T], *arguments: str) -> T | None:
        try:
            if uuid not in self._gpus and self._nvml is not None:
                self._gpus[uuid] = None
                self._gpus[uuid] = self._nvml.gpu(uuid)
            gpu = self._gpus.get(uuid)
            return None if gpu is None else read(gpu, *arguments)
        except NvmlError:
            return None
