"""What a value can be at all: one table for everybody who reads hardware, and for whoever judges what was read.

A driver that answers 255 °C, or a device whose registers read all ones, tells nothing about heat or errors. Such a
value is unknown, with what was answered in the reason; it is never clipped into its range and never becomes 0.

Ends are generous: they part what hardware can be from what it cannot, not good from bad. ``*`` in a path stands for
any key of a dict or any member of a list. Imports nothing of ours and no ``dataclasses``: NVML's reader process, which
has to stay small, reads it too.
"""

from __future__ import annotations

from typing import NamedTuple

ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
# nvml.h, nvmlDeviceGetMaxClockInfo: "Current P0 clocks … can differ from max clocks by a few MHz"; and an offset that
# a user sets (nvmlDeviceSetClockOffsets) is not part of the maximum. Five percent of an H100's 1980 MHz are 99 MHz.
CLOCK_OVER_MAX = 1.05
CLOCK_MAXIMA = {"sm_clock_mhz": "sm_clock_max_mhz", "memory_clock_mhz": "memory_clock_max_mhz"}


class Range(NamedTuple):
    """``low`` and ``high`` are still plausible. ``noun``: what a number outside is not. ``source``: why these ends.

    ``unit`` is printed behind the number, "%" for fractions of 1. ``only``: the numbers in between that exist.
    """

    low: float
    high: float
    unit: str = ""
    noun: str = "value"
    source: str = ""
    only: frozenset[int] | None = None

    def holds(self, value: object) -> bool:
        """False for what is no number, and for NaN."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (self.only is None or value in self.only)

    def shown(self, value: float) -> str:
        """The number as a reader would write it: "255 °C", "37100 %"."""
        if self.unit == "%":
            return f"{_digits(value * 100)} %"
        return f"{_digits(value)} {self.unit}".rstrip()

    @property
    def between(self) -> str:
        """ "1 to 125 °C", "1, 2, 4, 8, 12, 16 or 32"."""
        if self.only is not None:
            *others, last = (f"{number}" for number in sorted(self.only))
            return f"{', '.join(others)} or {last}"
        low, high = self.low * (100 if self.unit == "%" else 1), self.high * (100 if self.unit == "%" else 1)
        return f"{_digits(low)} to {_digits(high)} {self.unit}".rstrip()


def _digits(number: float) -> str:
    return str(int(number)) if isinstance(number, int) or number.is_integer() else f"{number:.10g}"


_TIB = 1 << 40
_FRACTION = Range(0.0, 1.0, "%", source="a share of time; a little over 100 % is cut off where it is read")
_MEMORY = Range(0, 8 * _TIB, "bytes", source="a B300 has 288 GB; an eighth of a rack's memory is far beyond any GPU")
# 0 is what a missing sensor answers (NVIDIA/dcgm-exporter#460), 127 and 255 what a dead one does
# (NVIDIA/nvidia-settings#34); boards shut down below 110 °C.
_HEAT = Range(1, 125, "°C", source="a missing sensor reads 0, a dead one 127 or 255; boards shut down below 110 °C")
_HEAT_LIMIT = Range(
    40, 126, "°C", "limit", "shutdown, slowdown and memory limits are 83 to 105 °C on boards; 127 is none"
)
_LEFT = Range(-60, 125, "°C", "margin", "between a slowdown limit of 126 °C and the hottest and coldest plausible GPU")
_POWER = Range(0, 5_000, "W", source="a GB300 may draw 1400 W, announced boards 3600 W")
_POWER_LIMIT = Range(1, 5_000, "W", "limit", "as power; no board works at 0 W")
_SM_CLOCK = Range(0, 10_000, "MHz", source="boards reach 3200 MHz")
_MEMORY_CLOCK = Range(0, 30_000, "MHz", source="GDDR7 is reported as 14000 MHz and more")
_COUNT = Range(0, 4_000_000_000, "", "count", "32 bits, and all of them set is what a device says that is gone")
_COUNT_64 = Range(0, 1 << 62, "", "count", "64 bits: NVML's blanks and all ones are near their end")
_ROWS = Range(0, 100_000, "rows", "count", "an H100 has 3072 banks of 8 spare rows")
_BANKS = Range(0, 100_000, "banks", "count", "an H100 has 3072 banks")
_PAGES = Range(0, 1_024, "pages", "count", "a GPU can retire 64 pages for each of two causes")
_PCIE_GEN = Range(1, 8, "", "PCIe generation", "6 is sold, 7 and 8 are announced (PCI-SIG)")
_PCIE_WIDTH = Range(1, 32, "lanes", "PCIe width", "PCI Express Base Specification", frozenset({1, 2, 4, 8, 12, 16, 32}))
_PCIE_SPEED = Range(2.5, 256, "GT/s", "PCIe speed", "2.5 is generation 1, 256 generation 8")
_PCIE_RATE = Range(0, 1e12, "bytes/s", source="generation 7 with 16 lanes moves 0.25e12 in a direction")
_NVLINK_RATE = Range(0, 1e13, "bytes/s", source="all links of NVLink 6 together move 1.8e12 in a direction")
_PORT_RATE = Range(0, 1.25e12, "bytes/s", "rate", "several times what a port of 1.6 Tb/s moves")
_GPU_INSTANCE = Range(0, 255, "", "GPU instance", "a GPU has at most seven")
_TIME_NS = Range(0, 10 * 365 * 86_400 * 10**9, "ns", "time", "ten years with one load of the driver")


def _each(range_: Range, paths: str, below: str = "") -> dict[str, Range]:
    return {f"{below}{path}": range_ for path in paths.split()}


_ACTIVITY = "sm_active sm_occupancy tensor_active dram_active"
# By path of GpuSample, in its units.
GPU: dict[str, Range] = {
    **_each(_FRACTION, f"busy {_ACTIVITY} fp64_active fp32_active fp16_active"),
    "memory_used_bytes": _MEMORY,
    "memory_total_bytes": Range(1, 8 * _TIB, "bytes", source="a GPU has memory"),
    **_each(_HEAT, "temperature_c memory_temperature_c"),
    **_each(_LEFT, "temperature_margin_c memory_temperature_margin_c"),
    **_each(_HEAT_LIMIT, "temperature_slowdown_c memory_temperature_max_c"),
    "power_w": _POWER,
    **_each(_POWER_LIMIT, "power_limit_w power_limit_default_w"),
    "energy_j": Range(0, 2e12, "J", source="5 kW for ten years"),
    "sm_clock_mhz": _SM_CLOCK,
    "sm_clock_max_mhz": _SM_CLOCK._replace(low=1),
    "memory_clock_mhz": _MEMORY_CLOCK,
    "memory_clock_max_mhz": _MEMORY_CLOCK._replace(low=1),
    "throttle_ns.*": _TIME_NS,
    "throttle_share.*": _FRACTION,
    **_each(_COUNT, "corrected_volatile uncorrected_volatile corrected_aggregate uncorrected_aggregate", "ecc."),
    "ecc.sram_uncorrected_aggregate": _COUNT,
    **_each(_ROWS, "corrected uncorrected", "remap."),
    **_each(_BANKS, "max high partial low none", "remap.banks."),
    **_each(_PAGES, "retired_pages retired_pages_double_bit"),
    **_each(_PCIE_GEN, "gen gen_max", "pcie."),
    **_each(_PCIE_WIDTH, "width width_max", "pcie."),
    "pcie.replay_count": _COUNT,
    **_each(_PCIE_RATE, "rx_bytes_per_s tx_bytes_per_s", "pcie."),
    "pcie.errors.*": _COUNT,
    **_each(_NVLINK_RATE, "rx_bytes_per_s tx_bytes_per_s", "nvlink."),
    "nvlink.links.*.index": Range(0, 71, "", "link", "nvml.h NVML_NVLINK_MAX_LINKS and GPM's metrics: 72 links"),
    "nvlink.links.*.version": Range(1, 16, "", "NVLink version", "6 is the newest that nvml.h names"),
    "nvlink.links.*.speed_bytes_per_s": Range(0, 1e12, "bytes/s", "speed", "a link of NVLink 5 moves 53e9"),
    "nvlink.links.*.errors.*": _COUNT_64,
    "fabric.clique_id": Range(0, 4_000_000_000, "", "clique", "all ones is no id"),
    "minor": Range(0, 255, "", "minor number", "NV_MINOR_DEVICE_NUMBER_REGULAR_MAX is 247"),
    "performance_state": Range(0, 15, "", "performance state", "nvml.h NVML_PSTATE_0 to NVML_PSTATE_15"),
    "processes.*.pid": Range(1, 1 << 22, "", "process", "the kernel's PID_MAX_LIMIT"),
    "processes.*.memory_bytes": _MEMORY,
    "processes.*.gpu_instance": _GPU_INSTANCE,
    "mig_instances.*.index": Range(0, 15, "", "MIG device", "a GPU has at most seven"),
    "mig_instances.*.gpu_instance": _GPU_INSTANCE,
    "mig_instances.*.compute_instance": Range(0, 255, "", "compute instance", "a GPU instance has at most seven"),
    "mig_instances.*.memory_used_bytes": _MEMORY,
    "mig_instances.*.memory_total_bytes": Range(1, 8 * _TIB, "bytes", source="an instance has memory"),
    **_each(_FRACTION, _ACTIVITY, "mig_instances.*."),
}

# By lane of a row: what all of a node comes to.
NODE: dict[str, Range] = {
    "cpu_fraction": _FRACTION,
    "network_bytes_per_s": Range(0, 6e12, "bytes/s", "rate", "half floats of 1e8 bytes/s: 60 ports of 0.8 Tb/s"),
    "power_w": Range(0, 600_000, "W", source="half floats of 10 W: a rack of 72 GPUs draws 132 kW"),
}

# By field of PciDevice, in its units.
PCI: dict[str, Range] = {
    **_each(_PCIE_SPEED, "link_speed_gt_per_s link_speed_max_gt_per_s"),
    **_each(_PCIE_WIDTH, "link_width link_width_max"),
    "aer.*": _COUNT,
}

# By field of LinkSample, in its units.
# Width of the counters in the PortCounters attribute that the kernel's files show (drivers/infiniband/core/sysfs.c):
# they stop at their maximum, they do not wrap.
NARROW_MAXIMA = {
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}
LINKS: dict[str, Range] = {
    "rate_bits_per_s": Range(1e6, 1e13, "bit/s", "rate", "10 Mb/s Ethernet to several times 1.6 Tb/s"),
    "rx_bytes_per_s": _PORT_RATE,
    "tx_bytes_per_s": _PORT_RATE,
    "counters.*": Range(0, ALL_ONES_64 - 1, "", "count", "all ones is what a device says that does not answer"),
}


def ranges_below(table: dict[str, Range], prefix: str) -> dict[str, Range]:
    """The rows "prefix.NAME" by NAME: of one record, without what is deeper."""
    below = {path[len(prefix) :]: limits for path, limits in table.items() if path.startswith(prefix)}
    return {name: limits for name, limits in below.items() if "." not in name and name != "*"}
