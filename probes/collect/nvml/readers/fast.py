"""What is read from every GPU at every poll, with seven calls in the usual case: load, memory, temperature, clocks,
power, and why clocks are low.
"""

from __future__ import annotations

import time
from ctypes import c_int
from functools import lru_cache, partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import Problem, Reason, implausible, unsupported
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Reading, Structure, first_supported, not_blank
from mltop.probes.collect.nvml.fields import ALL_LINKS, FieldRequest, FieldValues, Meter, counters
from mltop.probes.collect.nvml.readers import nvlink
from mltop.probes.collect.sysfile import number_after, read_known
from mltop.probes.model.nvml_fields import GAIN_FACTOR, GAIN_SLACK_S, NEWER, throttle_ns_fields
from mltop.probes.system import paths

CLOCK_SM = c_int(1)  # nvml.h NVML_CLOCK_SM
CLOCK_MEMORY = c_int(2)
SENSOR_GPU = c_int(0)  # nvml.h NVML_TEMPERATURE_GPU

MEMORY_TEMPERATURE = 82
NO_MEMORY_SENSOR = unsupported("the driver answered 0 °C, as of a board whose memory has no sensor (dcgm-exporter#460)")
SAME_MEMORY = 0.001  # of the total: no two memories are so equal
UNIFIED_MEMORY = unsupported("the GPU has no memory of its own: it shares the host's (unified memory)")
ENERGY = 83  # mJ since the driver was loaded
POWER_AVERAGE = 185  # mW over one second
POWER_INSTANT = 186

# nvml.h nvmlClocksEventReason*. Applications clocks are no longer reported by new drivers.
REASONS = (  # by bit, from the lowest
    *("gpu_idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal"),
    *("power_brake", "display_clocks"),
)
UNKNOWN_NUMBERS = Problem("which fields of NVML are these counters depends on the driver's version, which is not known")
_UTILIZATION = Structure("nvmlDeviceGetUtilizationRates", "c_nvmlUtilization_t")
# Its sensor stays 0: SENSOR_GPU.
_TEMPERATURE = Structure("nvmlDeviceGetTemperatureV", "c_nvmlTemperature_v1_t", "nvmlTemperature_v1")
_MEMORY = Structure("nvmlDeviceGetMemoryInfo_v2", "c_nvmlMemory_v2_t", "nvmlMemory_v2")


class Batch:
    """The batch of one GPU and what is kept of its traffic. Whether it has NVLinks is known before the first read."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._request: FieldRequest | None = None

    def request(self, device: Device) -> FieldRequest:
        if self._request is None:
            fields = [POWER_AVERAGE, POWER_INSTANT, MEMORY_TEMPERATURE, ENERGY, *throttle_ns_fields(device.numbering)]
            scoped = [(field, 0) for field in fields]
            if device.state(nvlink.Links).count:
                scoped += [(field, ALL_LINKS) for field in nvlink.TRAFFIC_FIELDS]
            self._request = FieldRequest(scoped)
        return self._request


def read_fast(device: Device) -> Reading:
    """The fast tier."""
    reading = Reading()
    # The share of the last sample period in which a kernel was resident (nvmlUtilization_t).
    reading.take("busy", lambda: _UTILIZATION.read(device).gpu, divisor=100)
    reading.attempt(("memory_used_bytes", "memory_total_bytes"), partial(read_memory, device))
    reading.take(
        "temperature_c",
        lambda: float(_TEMPERATURE.read(device).temperature),
        lambda: float(device.uint("nvmlDeviceGetTemperature", SENSOR_GPU)),
    )
    read_fields(device, reading)
    reading.take("sm_clock_mhz", partial(device.uint, "nvmlDeviceGetClockInfo", CLOCK_SM))
    reading.take("memory_clock_mhz", partial(device.uint, "nvmlDeviceGetClockInfo", CLOCK_MEMORY))
    reading.take("throttle_reasons", partial(read_throttle_reasons, device))
    return reading


def read_memory(device: Device) -> dict[str, Any]:
    """Without what the driver reserves for itself (which version 1 of the call counts as used).

    GPUs with memory of their own support it: integrated ones (GB10, Thor, Orin) have none to report, or report the
    host's (XuehaiPan/nvitop#208).
    """
    try:
        memory = _MEMORY.read(device)
    except NvmlError as failure:
        if failure.code == codes.NOT_SUPPORTED:
            raise UnreadError(UNIFIED_MEMORY) from None
        raise
    if abs(memory.total - host_memory_bytes()) <= SAME_MEMORY * memory.total:
        raise UnreadError(UNIFIED_MEMORY)
    return {
        "memory_used_bytes": not_blank("used memory", memory.used),
        "memory_total_bytes": not_blank("total memory", memory.total),
    }


@lru_cache(maxsize=1)
def host_memory_bytes() -> int:
    """0 where it is not known."""
    return 1024 * (number_after(read_known(paths.proc("meminfo")) or b"", b"MemTotal:") or 0)


def read_fields(device: Device, reading: Reading) -> None:
    """The batch: power, energy, memory temperature, throttle time, and NVLink's traffic."""
    state, links = device.state(Batch), device.state(nvlink.Links)
    batch = state.request(device).read(device)
    at_s = time.monotonic()
    reading.take(  # averaged over a second where the driver has it, like nvmlDeviceGetPowerUsage on most GPUs
        "power_w",
        partial(batch.value, POWER_AVERAGE, "POWER_AVERAGE"),
        partial(batch.value, POWER_INSTANT, "POWER_INSTANT"),
        partial(device.uint, "nvmlDeviceGetPowerUsage"),
        divisor=1000,
    )
    reading.take(
        "energy_j",
        partial(batch.value, ENERGY, "TOTAL_ENERGY_CONSUMPTION"),
        divisor=1000,
    )

    def memory_temperature_c() -> float:
        celsius = batch.value(MEMORY_TEMPERATURE, "MEMORY_TEMP")
        if celsius == 0:
            raise UnreadError(NO_MEMORY_SENSOR)
        return float(celsius)

    reading.take("memory_temperature_c", memory_temperature_c)
    reading.attempt(("throttle_ns",), partial(read_throttle_ns, device, batch, reading))
    if links.count:
        links.counts_traffic = nvlink.read_traffic(state.meter, batch, at_s, reading)


def read_throttle_reasons(device: Device) -> list[str]:
    """Why clocks are low; the call has a new name since driver 535; the old name goes away with CUDA 14 (pynvml)."""
    bits = first_supported(
        partial(device.ulonglong, "nvmlDeviceGetCurrentClocksEventReasons"),
        partial(device.ulonglong, "nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
    return [reason for bit, reason in enumerate(REASONS) if bits >> bit & 1]


class Throttle:
    """What is kept about one GPU's counters of throttle time."""

    def __init__(self) -> None:
        self.meter = Meter()
        # By reason, monotonic s: what it counted when it was first trusted; until when it is not trusted, and why.
        self._since: dict[str, tuple[int, float]] = {}
        self._doubted: dict[str, tuple[float, Problem]] = {}

    def timed(self, counts_ns: dict[str, int], reading: Reading) -> dict[str, Any]:
        """``throttle_ns`` and ``throttle_share``, of the time since the read before, by reason, 0..1."""
        at_s = time.monotonic()
        share: dict[str, float] = {}
        pending: dict[str, Reason] = {}
        for reason, nanoseconds in list(counts_ns.items()):
            self._doubt(reason, nanoseconds, at_s)
            until_s, problem = self._doubted.get(reason, (0.0, None))
            if problem is not None and at_s < until_s:
                del counts_ns[reason]
                reading.problems[f"throttle_ns.{reason}"] = problem
                continue
            try:
                share[reason] = min(1.0, self.meter.per_s(reason, nanoseconds, at_s) / 1e9)
            except UnreadError as error:
                pending[reason] = error.reason
        if counts_ns and not share:  # one problem instead of one for each
            reading.problems["throttle_share"] = next(iter(pending.values()))
        else:
            reading.problems.update({f"throttle_share.{reason}": problem for reason, problem in pending.items()})
        return {"throttle_ns": counts_ns, "throttle_share": share}

    def _doubt(self, reason: str, nanoseconds: int, at_s: float) -> None:
        """Stop trusting a counter that has gained more than time has passed since it was first trusted."""
        first_ns, since_s = self._since.setdefault(reason, (nanoseconds, at_s))
        if nanoseconds < first_ns:
            self._since[reason] = (nanoseconds, at_s)  # it started anew
            return
        gain_s, passed_s = (nanoseconds - first_ns) / 1e9, at_s - since_s
        if gain_s > GAIN_FACTOR * passed_s + GAIN_SLACK_S:
            why = f"the driver answered {nanoseconds} ns, {gain_s:.1f} s more than {passed_s:.1f} s before"
            self._doubted[reason] = (at_s + ASK_AGAIN_S, implausible(f"{why}, which is not a time"))
            del self._since[reason]


def read_throttle_ns(device: Device, batch: FieldValues, reading: Reading) -> dict[str, Any]:
    """Nanoseconds since the driver was loaded; a problem for each reason that is unknown."""
    fields = throttle_ns_fields(device.numbering)
    counts_ns = counters(batch, "throttle_ns", fields, reading)
    if counts_ns:
        unknown = set(NEWER) - set(fields.values())
        reading.problems.update({f"throttle_ns.{reason}": UNKNOWN_NUMBERS for reason in unknown})
    return device.state(Throttle).timed(counts_ns, reading)
