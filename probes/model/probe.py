"""What active probes say: events while they run, results, and the verdict.

Rates are bytes/s, times s, FLOP rates TFLOP/s (10^12, a multiply-add counts 2). ``None`` is unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from mltop.probes.model.vocabulary import DeviceKind, ProbeKind, RefusalCode

Result = TypeVar("Result")


@dataclass
class ProbeDevice:
    """What one probe process measures.

    ``uuid``: NVML's GPU-UUID or MIG-UUID, or "cpu" for the processors of the node.
    ``index``: the GPU's, None for the CPUs. ``pci_device``: PCI device id as hex ("2330"), "" if unknown.
    """

    uuid: str
    index: int | None = None
    name: str = ""
    kind: DeviceKind = "gpu"
    pci_device: str = ""
    memory_total_bytes: int | None = None


@dataclass
class ProbeEvent:
    """One line of a running probe, from its process to whoever asked.

    ``event``: devices (``data``: python, torch, cuda, devices) | stage (begins; ``fraction`` 0..1 of it is done) |
    result (``data``: a result's fields) | failed (``why`` and ``fix``, of ``device`` or of the node) |
    refused (like failed: it was not started) | note (``text``) and what a kind of probe says beside these (all_reduce:
    see active/all_reduce/node.py). ``device`` is a uuid, "" for the whole node; ``rank`` is set in collectives.
    """

    event: str
    device: str = ""
    rank: int | None = None
    stage: str = ""
    fraction: float | None = None
    deadline_s: float | None = None
    text: str = ""
    why: str = ""
    fix: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Phase:
    """One stretch of load and what the GPU did meanwhile; differences of counters, not polled flags.

    ``throttle_share``: share of the phase's time by reason (the names of GpuSample.throttle_reasons).
    """

    name: str
    seconds: float
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    temperature_c: float | None = None
    throttle_share: dict[str, float] = field(default_factory=dict)
    pcie_gen: int | None = None
    pcie_width: int | None = None


@dataclass
class DeviceResult:
    """What results of one device share. ``versions``: torch, cuda, driver, cublas, …; ``gaps``: {what: why unknown}.

    ``KEPT``: the figures that later runs compare themselves with: the word in their key, and the field.
    """

    KIND: ClassVar[ProbeKind]
    KEPT: ClassVar[Mapping[str, str]] = {}
    node: str = ""
    gpu: int | None = None
    uuid: str = ""
    name: str = ""
    kind: DeviceKind = "gpu"
    pci_device: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """Which figure of KEPT is judged and ordered by: the first that is known."""
        return next((what for what in self.KEPT if self.figure(what) is not None), "")

    @property
    def rate(self) -> float | None:
        """The main figure; higher is better."""
        return self.figure(self.main) if self.main else None

    def figure(self, what: str) -> float | None:
        """The figure ``what`` of KEPT."""
        value: float | None = getattr(self, self.KEPT[what])
        return value

    @property
    def is_wrong(self) -> bool:
        """Whether bits were not as they should be."""
        return getattr(self, "intact", None) is False

    def key(self, what: str) -> str:
        """The name under which the figure ``what`` of KEPT is kept."""
        raise NotImplementedError

    @property
    def subject(self) -> str:
        """``PastResult.uuid`` of the device: its UUID; processors have none and are those of their node."""
        return self.uuid if self.kind != "cpu" and self.uuid not in ("", "cpu") else cpu_subject(self.node)

    @property
    def _threads(self) -> str:
        threads = getattr(self, "threads", None)
        return f"{threads} threads" if self.kind == "cpu" and threads else ""


def shape_text(shape: Sequence[int]) -> str:
    """ "8192x8192x8192"."""
    return "x".join(map(str, shape))


def cpu_subject(node: str) -> str:
    """``PastResult.uuid`` of a node's processors."""
    return f"cpu of {node}"


@dataclass
class MatmulResult(DeviceResult):
    """One device's GEMM rates. ``burst``: with a flush between GEMMs (mamf-finder's method); ``sustained``: back to
    back, up to the power limit.

    ``shape``: M, N, K of burst: that of mamf-finder's figure for the model, else the best of ``shapes_tried``;
    ``tflops_*`` of burst: mean, median, 5th percentile and best of ``iterations`` fresh ones. ``code_path``: the
    library and instruction set that did the work.
    ``burst_efficiency``, ``sustained_efficiency``: share of SMs x FLOP/clock x mean clock, filled in by the judge.
    ``corrupt_iterations`` of ``checked_iterations`` (``checked_pflop`` 10^15 FLOP) gave other bits than the first.
    ``still_heating``: in the warm-up's last third the clock was more than 2 % below that of its first.
    """

    KIND = "matmul"
    KEPT: ClassVar[Mapping[str, str]] = {"sustained": "sustained_tflops", "burst": "burst_tflops"}
    dtype: str = "bf16"
    shape: list[int] = field(default_factory=list)
    iterations: int = 0
    burst_tflops: float | None = None
    burst_median_tflops: float | None = None
    burst_p5_tflops: float | None = None
    burst_best_tflops: float | None = None
    sustained_shape: list[int] = field(default_factory=list)
    sustained_tflops: float | None = None
    burst_efficiency: float | None = None
    sustained_efficiency: float | None = None
    shapes_tried: int = 0
    code_path: str = ""
    threads: int | None = None
    multiprocessors: int | None = None
    still_heating: bool | None = None
    checked_iterations: int = 0
    corrupt_iterations: int = 0
    checked_pflop: float = 0.0
    checksum: str = ""
    upload_intact: bool | None = None

    @property
    def efficiency(self) -> float | None:
        """Of the load without a pause, where that was measured."""
        return self.sustained_efficiency or self.burst_efficiency

    @property
    def is_wrong(self) -> bool:
        return self.corrupt_iterations > 0 or self.upload_intact is False

    @property
    def share_wrong(self) -> float | None:
        return self.corrupt_iterations / self.checked_iterations if self.checked_iterations else None

    def key(self, what: str) -> str:
        """``matmul bf16 sustained 8192x8192x8192``, ``matmul bf16 burst``: of any shape."""
        shape = shape_text(self.sustained_shape) if what == "sustained" else ""
        return " ".join(filter(None, (self.KIND, self.dtype, what, shape, self._threads)))


@dataclass
class MemoryResult(DeviceResult):
    """Copy within the device's memory; a byte that is copied counts twice (read and written).

    ``code_path``: what copies; ``threads``: of processors.
    """

    KIND = "memory"
    KEPT: ClassVar[Mapping[str, str]] = {"copy": "copy_bytes_per_s"}
    size_bytes: int = 0
    iterations: int = 0
    copy_bytes_per_s: float | None = None
    copy_best_bytes_per_s: float | None = None
    intact: bool | None = None
    threads: int | None = None
    code_path: str = ""

    def key(self, what: str) -> str:
        return f"{self.KIND} {what} {self.size_bytes} {self._threads}".rstrip()


COPY_WAYS = ("to_device", "to_host", "to_device_together", "to_host_together")


@dataclass
class CopiesResult(DeviceResult):
    """Host to device and back through pinned memory: each device alone, then all at once (``_together``).

    The PCIe link's state during the copies is in ``phases`` ("to device", "to host"); ``pcie_gen_max``,
    ``pcie_width_max``: what GPU and slot could do. ``numa_node``: the GPU's; ``near``: the host memory was allocated
    there (False: the process may not use the CPUs beside the GPU).
    """

    KIND = "copies"
    KEPT: ClassVar[Mapping[str, str]] = {way: f"{way}_bytes_per_s" for way in COPY_WAYS}
    size_bytes: int = 0
    iterations: int = 0
    to_device_bytes_per_s: float | None = None
    to_host_bytes_per_s: float | None = None
    to_device_together_bytes_per_s: float | None = None
    to_host_together_bytes_per_s: float | None = None
    peers: list[PeerCopy] = field(default_factory=list)
    intact: bool | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    near: bool | None = None

    @property
    def main(self) -> str:
        """The slower direction."""
        rates = {what: rate for what in COPY_WAYS[:2] if (rate := self.figure(what)) is not None}
        return min(rates, key=rates.__getitem__, default="")

    def key(self, what: str) -> str:
        return f"{self.KIND} {what} {self.size_bytes}"


@dataclass
class PeerCopy:
    """A copy from this device to another of the same node. ``direct``: over NVLink or PCIe without host memory.

    ``why``: it was not measured, or did not end. ``intact``: what arrived is what was sent.
    """

    to_gpu: int
    bytes_per_s: float | None = None
    direct: bool | None = None
    intact: bool | None = None
    why: str = ""


# What a device's "result" event holds, by the kind of probe.
DEVICE_RESULTS: Mapping[str, type[DeviceResult]] = {of.KIND: of for of in (MatmulResult, MemoryResult, CopiesResult)}


@dataclass
class RankTimes:
    """What one rank measured for one collective of one size in one group of one round.

    ``times_s``: every timed iteration, in order; ``rank`` counts within the group. ``work_s``: median of the local
    work that the rank does between two collectives (None: none was done). ``wrong``: iterations with a wrong result.
    """

    round: int
    group: int
    collective: str
    size_bytes: int
    rank: int
    ranks: int
    node: str = ""
    gpu: int | None = None
    uuid: str = ""
    times_s: list[float] = field(default_factory=list)
    work_s: float | None = None
    wrong: int = 0


@dataclass
class RankState:
    """What a rank was doing when its round failed. ``rank``: of all ranks.

    ``kind``: absent (its node has not begun the round) | waits | done | died | killed (SIGKILL) | stopped (state T) |
    stuck (state D) | aborted | raised (an exception of its own) | disconnected (because of others).
    ``begun``: steps begun in this round, the same order in all ranks; ``in_stage`` of them in ``stage``.
    ``printed``: its last lines.
    """

    rank: int
    node: str
    kind: str
    stage: str = ""
    begun: int = 0
    in_stage: int = 0
    why: str = ""
    printed: str = ""


@dataclass
class RankArrival:
    """``lag_s``: median over iterations of how much shorter this rank's collective was than the longest: who comes
    last waits least. ``median_s``: of its collective; ``work_s``: of its own work between two.
    ``late_share``: of the iterations in which it came among the last (with more than half of the greatest lag).
    """

    rank: int
    node: str
    gpu: int | None
    median_s: float
    lag_s: float
    work_s: float | None = None
    late_share: float | None = None


@dataclass
class CollectiveResult:
    """One size of one collective. ``time_s``: median over iterations of the slowest rank's; ``p95_s`` likewise.

    ``algbw`` is size/time, ``busbw`` that times 2(n-1)/n (all-reduce) or (n-1)/n (others): nccl-tests' factors.
    ``path``: "NCCL" or "gloo over TCP: not the training path". ``expected_busbw_bytes_per_s``: what this hardware
    gives at this size, None where no measured figure is known; ``expected_source``: whose; ``expected_certain``: it may
    be used to say that something is slow. ``wrong_ranks``: who got wrong results, ``wrong`` how many of them in all.
    ``gaps``: {what: why unknown}, as ranks that gave no times.
    """

    collective: str
    backend: str
    size_bytes: int
    ranks: int
    nodes: list[str] = field(default_factory=list)
    iterations: int = 0
    time_s: float | None = None
    best_s: float | None = None
    p95_s: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    wrong: int = 0
    arrivals: list[RankArrival] = field(default_factory=list)
    path: str = ""
    expected_busbw_bytes_per_s: float | None = None
    expected_source: str = ""
    expected_certain: bool = False
    wrong_ranks: list[int] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)

    @property
    def share_of_expected(self) -> float | None:
        if self.busbw_bytes_per_s is None or not self.expected_busbw_bytes_per_s:
            return None
        return self.busbw_bytes_per_s / self.expected_busbw_bytes_per_s

    @property
    def over(self) -> str:
        return self.path or self.backend


@dataclass
class PairResult:
    """One pair of nodes in one round of the search: busbw of ``size_bytes``, None and ``why`` when it failed."""

    round: int
    nodes: list[str]
    size_bytes: int = 0
    busbw_bytes_per_s: float | None = None
    why: str = ""


@dataclass
class Suspect:
    """Who is accused, and why. ``gpu`` or ``rank`` where it is known."""

    node: str
    reason: str
    gpu: int | None = None
    rank: int | None = None
    uuid: str = ""
    action: str = ""


@dataclass
class ProbeFailure:
    """What was not measured: which stage was not passed, why, and what would help. ``refused``: not started.

    ``why`` does not name the GPU or rank. ``code`` is alike where only figures in ``why`` differ; where processes are
    why, these are ``pids``, the first of them run by ``who`` ("ada: train.py").
    """

    node: str
    why: str
    gpu: int | None = None
    rank: int | None = None
    stage: str = ""
    fix: str = ""
    refused: bool = False
    code: RefusalCode = ""
    who: str = ""
    pids: list[int] = field(default_factory=list)


@dataclass
class ProbeVerdict:
    """``text``: one plain sentence; ``details``: what else is worth saying, a sentence each."""

    text: str
    suspects: list[Suspect] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


@dataclass
class PastResult:
    """One earlier result of a device, for comparison. ``key``: probe, dtype or size; ``value`` higher is better."""

    uuid: str
    key: str
    value: float
    at: float
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class ProbeReport:
    """Everything of one probe run. ``probe``: matmul | memory | copies | all-reduce | pairs.

    ``results``: MatmulResult, MemoryResult, CopiesResult, CollectiveResult or PairResult. ``command``: the torchrun
    line that does the same. ``settings``: what NCCL or gloo took, in plain words. ``simulated``: of a demo.
    """

    probe: ProbeKind
    started_at: float
    took_s: float = 0.0
    results: list[Any] = field(default_factory=list)
    failures: list[ProbeFailure] = field(default_factory=list)
    verdict: ProbeVerdict = field(default_factory=lambda: ProbeVerdict(""))
    settings: list[str] = field(default_factory=list)
    command: str = ""
    simulated: bool = False

    def of(self, kind: type[Result]) -> list[Result]:
        """The results of this type."""
        return [result for result in self.results if isinstance(result, kind)]
