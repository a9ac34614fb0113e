"""Thermal limits: the temperatures at which the GPU slows itself down, and how many degrees are left until then.

Two ways of telling, by nvml.h and by nvidia-smi's reports of boards:

- absolute, nvmlDeviceGetTemperatureThreshold: up to Ampere. For Ada and newer "support … would be removed from this API
  in future releases", so it is asked everywhere and may be refused there by any driver;
- T.Limit, Ada and newer: nvmlDeviceGetMarginTemperature (driver 570) says how many degrees are left to the nearer of
  the GPU's and the memory's maximum; fields 193 to 196 (driver 525.125) at which value of that something happens: 0 for
  both maxima, -2 for the hardware's slowdown. These offsets alone tell nothing.

T.Limit names neither of the two, so what it says of the memory is this: at least so much is left; and when less than
nothing is left, it is the memory's fault if the GPU itself is cooler than it was when something was left.
"""

from __future__ import annotations

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import unsupported
from mltop.probes.collect.nvml.device import Device, Reading, Structure

MEMORY_OFFSET = 195  # NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: of a board whose memory has a sensor
MARGIN, MEMORY_MARGIN = "temperature_margin_c", "memory_temperature_margin_c"
# Current temperature and T.Limit add up to 82 (RTX 4090) to 87 (H100, L40S) in reports of boards.
LOWEST_GPU_MAX_C = 75.0
ROUNDING_C = 2.0  # two whole numbers, and a moment between them
NO_MEMORY_LIMIT = unsupported("this GPU or driver reports no limit of the memory's temperature")


class Limits:
    """What is known of one GPU's limits; temperatures as of the newest poll."""

    def __init__(self) -> None:
        self.slowdown_c: float | None = None
        self.memory_max_c: float | None = None
        self.memory_offset_c: float | None = None
        self.lacks_margin = False  # nvmlDeviceGetMarginTemperature is refused
        self._gpu_c: float | None = None
        self._memory_c: float | None = None
        self._gpu_max_at_least_c = LOWEST_GPU_MAX_C

    def learn(self, static: Reading) -> None:
        """After it was sifted."""
        self.slowdown_c = static.values.get("temperature_slowdown_c")
        self.memory_max_c = static.values.get("memory_temperature_max_c")

    def add_to(self, fast: Reading) -> None:
        """The margins to absolute limits, fresh at every poll, after it was sifted."""
        self._gpu_c, self._memory_c = fast.values.get("temperature_c"), fast.values.get("memory_temperature_c")
        fast.values.update(self.to_thresholds())

    def to_thresholds(self) -> dict[str, float]:
        """Where the board tells its margin itself, that counts: it may know a hotter sensor."""
        margins = {}
        if self.lacks_margin and self._gpu_c is not None and self.slowdown_c is not None:
            margins[MARGIN] = self.slowdown_c - self._gpu_c
        if self._memory_c is not None and self.memory_max_c is not None:
            margins[MEMORY_MARGIN] = self.memory_max_c - self._memory_c
        return margins

    def memory_left(self, left_c: float) -> float:
        """By T.Limit. Raises UnreadError."""
        if self.memory_offset_c is None:
            raise UnreadError(NO_MEMORY_LIMIT)
        memory_left_c = left_c - self.memory_offset_c
        if self._gpu_c is not None:
            # No more is left than to the GPU's own maximum, so that is at least this.
            reference_c = self._gpu_c + left_c
            if memory_left_c < 0 and reference_c >= self._gpu_max_at_least_c - ROUNDING_C:
                raise UnreadError(codes.GPU_OR_MEMORY)
            self._gpu_max_at_least_c = max(self._gpu_max_at_least_c, reference_c)
        elif memory_left_c < 0:
            raise UnreadError(codes.GPU_OR_MEMORY)
        return memory_left_c


_MARGIN = Structure("nvmlDeviceGetMarginTemperature", "c_nvmlMarginTemperature_v1_t", "nvmlMarginTemperature_v1")


def read_margins(device: Device) -> Reading:
    """``temperature_margin_c`` and ``memory_temperature_margin_c``."""
    reading, limits = Reading(), device.state(Limits)

    def margin() -> dict[str, float]:
        try:
            left_c = float(_MARGIN.read(device).marginTemperature)
        except NvmlError as failure:
            limits.lacks_margin = failure.code in codes.UNSUPPORTED
            if failure.code == codes.FUNCTION_NOT_FOUND and limits.memory_offset_c is not None:
                raise UnreadError(codes.T_LIMIT_ALONE) from None
            raise
        limits.lacks_margin = False
        return {MARGIN: left_c}

    reading.attempt((MARGIN, MEMORY_MARGIN), margin)
    left_c = reading.values.get(MARGIN)
    if left_c is not None:
        reading.take(MEMORY_MARGIN, lambda: limits.memory_left(left_c))
    absolute = limits.to_thresholds()
    reading.values.update(absolute)
    for field in absolute:
        reading.problems.pop(field, None)
    return reading
