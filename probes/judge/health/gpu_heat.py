"""Whether a GPU is really held back by heat: a bit of the driver's alone flickers on cool GPUs at full clock."""

from __future__ import annotations

from operator import itemgetter

from mltop.probes.model import GpuSample

NARROW_C = 5.0
NEAR_C = 10.0  # of a limit: near enough for what the driver says of heat to be believed
HOT_ANYWHERE_C = 80.0  # whatever its limits are
HELD_BELOW = 0.97  # of its highest clock
_THERMAL = frozenset({"hw_thermal", "sw_thermal", "hw_slowdown"})
_IDLE_BUSY = 0.05


def left_c(gpu: GpuSample) -> tuple[float, str] | None:
    """Degrees to the temperature at which it slows itself down, and what tells so; None where nothing does.

    Margins of 0 and less are wrong on some H100 boards: believed only of a GPU that is hot, or has a thermal bit set.
    """
    found = []
    if gpu.temperature_slowdown_c is not None and gpu.temperature_c is not None:
        found.append((gpu.temperature_slowdown_c - gpu.temperature_c, "temperature and slowdown threshold"))
    if gpu.temperature_margin_c is not None:
        believed = not _THERMAL.isdisjoint(gpu.throttle_reasons or ()) or (gpu.temperature_c or 0.0) >= HOT_ANYWHERE_C
        if gpu.temperature_margin_c > 0 or believed:
            found.append((gpu.temperature_margin_c, "nvmlDeviceGetMarginTemperature"))
    return min(found, key=itemgetter(0), default=None)


def is_hot(gpu: GpuSample, near_c: float = NEAR_C) -> bool | None:
    """Whether the GPU or its memory is near a limit of its own, by any of them; None where no limit is known."""
    left = left_c(gpu)
    known = [left[0]] if left is not None else []
    pairs = (
        (gpu.temperature_c, gpu.temperature_slowdown_c),
        (gpu.memory_temperature_c, gpu.memory_temperature_max_c),
    )
    known += [most - now for now, most in pairs if now is not None and most is not None]
    known += [gpu.memory_temperature_margin_c] if gpu.memory_temperature_margin_c is not None else []
    return min(known) <= near_c if known else None


def is_held(gpu: GpuSample) -> bool | None:
    """Whether its clock is below what it could be while it works; None where its clocks are not known."""
    clock, top = gpu.sm_clock_mhz, gpu.sm_clock_max_mhz
    if clock is None or not top:
        return None
    idle = gpu.busy < _IDLE_BUSY if gpu.busy is not None else "gpu_idle" in (gpu.throttle_reasons or ())
    return clock < HELD_BELOW * top and not idle


def heat_matters(gpu: GpuSample, near_c: float = NEAR_C) -> bool:
    """Its clock is held down, or it is near a limit. What cannot be known speaks neither for nor against it."""
    held, hot = is_held(gpu), is_hot(gpu, near_c)
    return bool(held or hot) or (held is None and hot is None)
