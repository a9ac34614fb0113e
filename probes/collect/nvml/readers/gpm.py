"""GPM (GPU performance monitoring, Hopper and newer): what the GPU's units really do.

Functions and metric ids: nvml.h, nvmlGpm*. A metric is computed from two samples. One metric per nvmlGpmMetricsGet:
with batches some drivers gave wrong values (DataDog/datadog-agent#51934; DCGM asks one by one too). Samples are not
safe to take from two threads, even of different GPUs (DataDog/datadog-agent#54458): the reader process has one.

The second poll computes everything, so that no value is missing for longer. From then on never more than four calls per
GPU and poll: three polls in four take a sample (one call) and compute SM, tensor and DRAM activity (three). The fourth
computes up to four of the others from the sample of the poll before: occupancy and FP pipes in one such poll, PCIe in
the next, and NVLink with it where its own counters do not work. At one poll per second the first three are averages
over one second (two after such a poll) and at most one second old; the others are averages over eight seconds, renewed
every eight.
"""

from __future__ import annotations

import time
from ctypes import byref, c_uint
from functools import partial
from typing import Any, NamedTuple

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NO_GPU, Calls, NvmlError
from mltop.probes.collect.nvml.codes import Problem, Reason, is_unsupported, starting, unsupported
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Reading, Structure
from mltop.probes.collect.nvml.readers.nvlink import Links
from mltop.probes.collect.nvml.readers.values import Modes

METRICS_GET = "nvmlGpmMetricsGet"
# What NVML says of a MIG device or GPU instance that was destroyed.
STALE = frozenset({codes.INVALID_ARGUMENT, codes.NOT_FOUND})
MIB = 1 << 20
LARGEST_RATIO = 1.1  # of two counters read one after the other: a little over 100 % is 100 %; more is for the sieve
STARTING = starting("an average between two samples: it comes with one of the next")
LEFT_OUT = Problem("GPM got stuck and is left out for now")
NEEDS_HOPPER = unsupported("GPM needs Hopper or newer: GPU-Util only says that a kernel was resident")
# Fields 197 and 198 count bytes to 2^32 (nvml.h: "Value can be wrapped"): of a rate above 4.3 GB/s one would see only
# what remains beyond the wraps. nvmlDeviceGetPcieThroughput blocks for 20 ms. GPM's counters tell it.
PCIE_TRAFFIC_NEEDS_GPM = unsupported(
    "NVML's PCIe byte counters have 32 bits and wrap within a second at full speed; needs GPM (Hopper)"
)
SHORTEST_S = 0.11  # samples of one GPU must be more than 100 ms apart (nvml.h)
RETRY_S = 3.0  # after a refusal: permission is a state that comes and goes (NVIDIA/DCGM#214)

Sample = Any  # pynvml.c_nvmlGpmSample_t, an opaque pointer
_SUPPORT = Structure("nvmlGpmQueryDeviceSupport", "c_nvmlGpmSupport_t", "NVML_GPM_SUPPORT_VERSION")


class Metric(NamedTuple):
    """One GPM metric. ``name``: the field of GpuSample; ``id`` as in nvml.h."""

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
PCIE_TX = Metric("pcie.tx_bytes_per_s", 20, is_rate=True)
PCIE_RX = Metric("pcie.rx_bytes_per_s", 21, is_rate=True)
NVLINK_RX = Metric("nvlink.rx_bytes_per_s", 60, is_rate=True)
NVLINK_TX = Metric("nvlink.tx_bytes_per_s", 61, is_rate=True)


class Gpm:
    """The GPM functions of one library, with the result buffers that all GPUs share."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._get = pynvml.c_nvmlGpmMetricsGet_t()
        self._get_ref = byref(self._get)
        self._metric = self._get.metrics[0]

    def why_not(self, device: Device) -> Reason | None:
        """Why there are no metrics of this GPU, None where there may be. Raises NvmlError when the GPU is gone."""
        try:
            return None if _SUPPORT.read(device).isSupportedDevice else NEEDS_HOPPER
        except NvmlError as failure:
            if failure.is_loss:
                raise
            if failure.code == codes.NOT_SUPPORTED:
                return NEEDS_HOPPER
            # Without permission: sampling will say so, and is asked again sooner.
            return failure.reason if failure.code in codes.UNSUPPORTED else None

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
        """The average between two samples: a fraction, or bytes/s. Raises NvmlError. Of what some drivers answer (NaN:
        geopm#3550) nothing is left in the sieve.
        """
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
        value: float = self._metric.value
        if metric.is_rate:
            return value * MIB
        return 1.0 if 100 < value <= 100 * LARGEST_RATIO else value / 100


class Group(NamedTuple):
    """Metrics that are computed together, each as the average since this group's turn before.

    ``takes_sample``: False: computed from the sample of the poll before.
    """

    metrics: tuple[Metric, ...]
    takes_sample: bool = True


class Plan:
    """Which group has its turn at which poll: all at the second, then ``cycle`` again and again."""

    def __init__(self, *cycle: Group) -> None:
        self.cycle = cycle
        self.groups = tuple(dict.fromkeys(cycle))
        self.metrics = [metric for group in self.groups for metric in group.metrics]


class Track:
    """The samples of one GPU, or of one MIG GPU instance on it, and what its metrics are made of.

    ``values`` by metric name, as of each metric's last turn; ``problems`` of single metrics; ``problem`` of all.

    Buffers: one for the newest sample, one for each group's last turn, and one to write the next into.
    """

    def __init__(self, gpm: Gpm, device: Device, plan: Plan, gpu_instance: int | None = None) -> None:
        self._gpm = gpm
        self._device = device
        self.plan = plan
        self._gpu_instance = gpu_instance
        self._buffers: list[Sample] = []
        self._not_before_s = 0.0
        self._restart(STARTING)

    def _restart(self, problem: Reason) -> None:
        self.values: dict[str, float] = {}
        self.problems: dict[str, Reason] = {}
        self.problem: Reason | None = problem
        self._newest: int | None = None  # index of a buffer, as those in _before
        self._before: dict[Group, int] = {}
        self._unsupported_until_s: dict[Metric, float] = {}
        self._turn = 0

    def poll(self, now_s: float, pace_s: float = SHORTEST_S) -> bool:
        """One turn, unless the last one is newer than ``pace_s``: then False. Monotonic seconds.

        Raises NvmlError when the GPU or the library is gone, or when a GPU instance's id is stale.
        """
        if now_s < self._not_before_s:
            return False
        try:
            self._take_turn(now_s)
        except NvmlError as failure:
            if failure.is_loss:
                raise
            self._not_before_s = now_s + (ASK_AGAIN_S if failure.code in codes.UNSUPPORTED else RETRY_S)
            self._restart(failure.reason)
            if self._gpu_instance is not None and failure.code in STALE:
                raise
        else:
            self._not_before_s = now_s + max(SHORTEST_S, pace_s if self._turn > 1 else 0.0)
        return True

    def release(self) -> None:
        """Free the buffers. The track must not be polled again."""
        for sample in self._buffers:
            self._gpm.free(sample)
        self._buffers = []

    def _take_turn(self, now_s: float) -> None:
        cycle = self.plan.cycle
        groups = (cycle[(self._turn - 2) % len(cycle)],) if self._turn > 1 else self.plan.groups
        if self._turn < 2 or groups[0].takes_sample:
            self._newest = self._take()
        assert self._newest is not None
        if self._turn == 0:
            self._before = dict.fromkeys(groups, self._newest)
            self.problem = STARTING
        else:
            for group in groups:
                for metric in group.metrics:
                    self._compute(metric, self._before[group], self._newest, now_s)
                self._before[group] = self._newest
            self.problem = None
        self._turn += 1

    def _take(self) -> int:
        """A new sample in a buffer that nothing refers to."""
        used = {self._newest, *self._before.values()}
        index = next((index for index in range(len(self._buffers)) if index not in used), len(self._buffers))
        if index == len(self._buffers):
            self._buffers.append(self._gpm.allocate())
        self._gpm.take(self._device, self._buffers[index], self._gpu_instance)
        return index

    def _compute(self, metric: Metric, before: int, newest: int, now_s: float) -> None:
        if now_s < self._unsupported_until_s.get(metric, 0.0):
            return
        self.values.pop(metric.name, None)
        self.problems.pop(metric.name, None)
        try:
            value = self._gpm.metric(self._device, self._buffers[before], self._buffers[newest], metric)
        except NvmlError as failure:
            if failure.is_loss or failure.code == codes.NO_PERMISSION:
                raise
            self.problems[metric.name] = failure.reason
            if failure.code in codes.UNSUPPORTED:
                self._unsupported_until_s[metric] = now_s + ASK_AGAIN_S
        else:
            self.values[metric.name] = value


MAIN = Group((SM, TENSOR, DRAM))
PIPES = Group((OCCUPANCY, FP64, FP32, FP16), takes_sample=False)
PCIE = Group((PCIE_RX, PCIE_TX), takes_sample=False)
ALL_TRAFFIC = Group((PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX), takes_sample=False)


PLAN = Plan(MAIN, MAIN, MAIN, PIPES, MAIN, MAIN, MAIN, ALL_TRAFFIC)
PLAN_WITHOUT_NVLINK = Plan(MAIN, MAIN, MAIN, PIPES, MAIN, MAIN, MAIN, PCIE)
ACTIVITY_FIELDS = tuple(metric.name for metric in PLAN.metrics if not metric.is_rate)
ALL_ACTIVITY = ",".join(ACTIVITY_FIELDS)
PCIE_RATES = tuple(metric.name for metric in PCIE.metrics)
# A GPU in MIG mode is sampled less often: its instances take their share of the calls.
MIG_PACE_S = 3.9


class Activity:
    """What is kept of one GPU."""

    def __init__(self) -> None:
        self.track: Track | None = None
        self.support_known_until_s = 0.0
        self.without_gpm: Reason | None = None

    def release(self) -> None:
        if self.track is not None:
            self.track.release()
            self.track = None


class ActivityReader:
    """Reads the activity of any GPU. For one thread."""

    def __init__(self, calls: Calls) -> None:
        self._gpm = Gpm(calls)

    def read(self, device: Device) -> Reading:
        """``sm_active`` … and ``activity_source`` ("gpm"), as fractions 0..1, None with a problem where unknown.

        Also ``pcie.rx_bytes_per_s`` and ``tx``, and those of ``nvlink`` where its own counters, which are a second
        fresh, do not tell them.
        """
        reading = Reading()
        reading.attempt((ALL_ACTIVITY,), partial(self._read, device, reading))
        if ALL_ACTIVITY in reading.problems:
            problem = pcie_problem(reading.problems[ALL_ACTIVITY])
            reading.problems.update(dict.fromkeys(PCIE_RATES, problem))
        return reading

    def _read(self, device: Device, reading: Reading) -> dict[str, Any]:
        activity = device.state(Activity)
        now_s = time.monotonic()
        if now_s >= activity.support_known_until_s:
            activity.without_gpm = self._gpm.why_not(device)
            activity.support_known_until_s = now_s + ASK_AGAIN_S
        track = self._track(device, activity)
        problem = activity.without_gpm
        if problem is None:
            track.poll(now_s, MIG_PACE_S if device.state(Modes).mig_enabled else SHORTEST_S)
            problem = track.problem
        if problem is not None:
            reading.problems[ALL_ACTIVITY] = problem
            return {}
        return take_values(track, reading)

    def _track(self, device: Device, activity: Activity) -> Track:
        """A new one where NVLink's own counters have started or stopped working."""
        links = device.state(Links)
        plan = PLAN_WITHOUT_NVLINK if links.counts_traffic or links.count == 0 else PLAN
        if activity.track is None or activity.track.plan is not plan:
            activity.release()
            activity.track = Track(self._gpm, device, plan)
        return activity.track


def take_values(track: Track, reading: Reading) -> dict[str, Any]:
    """The values of a track by field; problems of single fields go into ``reading``."""
    values: dict[str, Any] = {}
    for metric in track.plan.metrics:
        name = metric.name
        if name in track.values:
            values[name] = track.values[name]
        else:
            problem = track.problems[name]
            reading.problems[name] = pcie_problem(problem) if name in PCIE_RATES else problem
    if any(name in values for name in ACTIVITY_FIELDS):
        values["activity_source"] = "gpm"
    return values


def left_out() -> Reading:
    """Where GPM got stuck: nothing of it is called for now."""
    reading = Reading()
    reading.problems.update(dict.fromkeys((ALL_ACTIVITY, *PCIE_RATES), LEFT_OUT))
    return reading


def pcie_problem(problem: Reason) -> Reason:
    """Why PCIe traffic is unknown where GPM does not tell it: nothing else does."""
    return PCIE_TRAFFIC_NEEDS_GPM if is_unsupported(problem) else problem
