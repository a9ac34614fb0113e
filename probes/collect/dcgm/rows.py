"""What DCGM says of one GPU or MIG GPU instance, and which of our GPUs that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mltop.probes.collect.sysfile import same_bus
from mltop.probes.model import GpuSample

# By GpuSample's field, in the order in which dcgmi is asked: DCGM's id (dcgm_fields.h), and what the exporter calls it,
# behind its prefix: before DCGM 4.6 and since.
PROFILING = {
    "sm_active": (1002, "SM_ACTIVE", "SM_UTIL_RATIO"),
    "sm_occupancy": (1003, "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
    "tensor_active": (1004, "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO"),
    "dram_active": (1005, "DRAM_ACTIVE", "DRAM_UTIL_RATIO"),
    "fp64_active": (1006, "PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO"),
    "fp32_active": (1007, "PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO"),
    "fp16_active": (1008, "PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO"),
}
FIELDS = tuple(PROFILING)
MAIN_FIELDS = ("sm_active", "tensor_active", "dram_active")
# DCGM_FP64_BLANK; those after it say why (not found, not supported, no permission). 64-bit integers have larger ones.
BLANK = 140737488355328.0
LARGEST = 1.1  # a ratio of two counters may come out a little over 1


@dataclass
class Row:
    """One GPU, or one GPU instance on it (``gpu_instance``: NVML's id). Empty strings: not said.

    ``values``: fractions 0..1 by field name, None where DCGM has none; ``garbage``: values that cannot be.
    ``taken_s``: when it was read, monotonic.
    """

    uuid: str = ""
    bus_id: str = ""
    index: int | None = None
    gpu_instance: int | None = None
    taken_s: float = 0.0
    values: dict[str, float | None] = field(default_factory=dict)
    garbage: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, value: float) -> None:
        """A value as DCGM gave it."""
        if not math.isfinite(value) or value >= BLANK:
            self.values.setdefault(name, None)
        elif 0 <= value <= LARGEST:
            self.values[name] = min(value, 1.0)
        else:
            self.values.setdefault(name, None)
            self.garbage[name] = value

    def is_of(self, gpu: GpuSample) -> bool:
        """Whether the row is of this GPU: by UUID, else by PCI address, by index only where it names neither."""
        if self.uuid and gpu.uuid:
            return self.uuid.lower() == gpu.uuid.lower()
        if self.bus_id and gpu.pci_bus_id:
            return same_bus(self.bus_id, gpu.pci_bus_id)
        return not self.uuid and not self.bus_id and self.index == gpu.index


@dataclass
class Snapshot:
    """The newest row of every GPU and GPU instance. ``where``: who said it, for sentences."""

    rows: list[Row]
    where: str

    def of(self, gpu: GpuSample) -> list[Row]:
        return [row for row in self.rows if row.is_of(gpu)]
