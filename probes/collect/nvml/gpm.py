"""GPM (GPU performance monitoring, Hopper and newer): samples, and metrics computed from two of them.

Functions and metric ids: nvml.h, nvmlGpm*. One metric per nvmlGpmMetricsGet: with batches some drivers gave wrong
values (DataDog/datadog-agent#51934; DCGM asks one by one too). Samples are not safe to take from two threads, even of
different GPUs (DataDog/datadog-agent#54458): the reader process has one.
"""

from __future__ import annotations

import math
from ctypes import byref, c_uint
from typing import Any, NamedTuple

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.breadcrumb import NO_GPU
from mltop.probes.collect.nvml.calls import Calls, GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device

METRICS_GET = "nvmlGpmMetricsGet"
NOT_FOUND = 6  # nvml.h NVML_ERROR_NOT_FOUND
# What NVML says of a MIG device or GPU instance that was destroyed.
STALE = frozenset({codes.INVALID_ARGUMENT, NOT_FOUND})
MIB = 1 << 20
# A ratio of two counters read one after the other may come out a little over 100 %.
LARGEST_PERCENT = 110.0
LARGEST_BYTES_PER_S = 1e14

Sample = Any  # pynvml.c_nvmlGpmSample_t, an opaque pointer


class Metric(NamedTuple):
    """One GPM metric. ``name`` is a field of GpuSample, or of our own for rates; ``id`` as in nvml.h."""

    name: str
    id: int
    is_rate: bool = False  # MiB/s, otherwise percent


SM = Metric("sm_active", 2)
OCCUPANCY = Metric("sm_occupancy", 3)
TENSOR = Metric("tensor_active", 5)
DRAM = Metric("dram_active", 10)
FP64 = Metric("fp64_active", 11)
FP32 = Metric("fp32_active", 12)
FP16 = Metric("fp16_active", 13)
PCIE_TX = Metric("pcie_tx", 20, is_rate=True)
PCIE_RX = Metric("pcie_rx", 21, is_rate=True)
NVLINK_RX = Metric("nvlink_rx", 60, is_rate=True)
NVLINK_TX = Metric("nvlink_tx", 61, is_rate=True)


class Gpm:
    """The GPM functions of one library, with the result buffers that all GPUs share."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._support = pynvml.c_nvmlGpmSupport_t()
        self._support_ref = byref(self._support)
        self._get = pynvml.c_nvmlGpmMetricsGet_t()
        self._get_ref = byref(self._get)
        self._metric = self._get.metrics[0]

    def is_supported(self, device: Device) -> bool:
        """Raises NvmlError, e.g. from a driver that has no GPM."""
        self._support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        device.call("nvmlGpmQueryDeviceSupport", self._support_ref)
        return bool(self._support.isSupportedDevice)

    def allocate(self) -> Sample:
        sample = pynvml.c_nvmlGpmSample_t()
        self._calls.system("nvmlGpmSampleAlloc", byref(sample))
        return sample

    def free(self, sample: Sample) -> None:
        """Concerns no GPU, so it is safe for the samples of a lost one. The code does not matter."""
        self._calls("nvmlGpmSampleFree", NO_GPU, sample)

    def take(self, device: Device, into: Sample, gpu_instance: int | None = None) -> None:
        """Read the counters of a GPU, or of one MIG GPU instance on it. Raises NvmlError.

        Not through ``Device.call``, which would not ask again for a minute once permission was refused.
        """
        name = "nvmlGpmSampleGet" if gpu_instance is None else "nvmlGpmMigSampleGet"
        of = () if gpu_instance is None else (c_uint(gpu_instance),)
        code = device.code_now(name, *of, into)
        if code:
            raise NvmlError(name, code)

    def metric(self, device: Device, older: Sample, newer: Sample, metric: Metric) -> float:
        """The average between two samples: a fraction 0..1, or bytes/s. Raises NvmlError and GarbageError."""
        self._get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._get.numMetrics = 1
        self._get.sample1 = older
        self._get.sample2 = newer
        self._metric.metricId = metric.id
        self._metric.nvmlReturn = codes.UNKNOWN
        code = self._calls(METRICS_GET, device.index, self._get_ref)
        if code:
            raise NvmlError(METRICS_GET, code)
        if self._metric.nvmlReturn:
            raise NvmlError(f"{METRICS_GET} {metric.id} ({metric.name})", self._metric.nvmlReturn)
        return plausible(metric, self._metric.value)


def plausible(metric: Metric, value: float) -> float:
    """NVML's percent or MiB/s as a fraction or bytes/s. Raises GarbageError for what cannot be (NaN: geopm#3550)."""
    largest = LARGEST_BYTES_PER_S / MIB if metric.is_rate else LARGEST_PERCENT
    if not math.isfinite(value) or not 0 <= value <= largest:
        unit = "MiB/s" if metric.is_rate else "%"
        raise GarbageError(f"{METRICS_GET} {metric.id} ({metric.name}) answered {value:g} {unit}, which is not a value")
    return value * MIB if metric.is_rate else min(value / 100, 1.0)
