"""The matmul probe: how many TFLOPS one device does, in bursts and sustained, and whether it computes right.

A process of its own with the Python that has torch: order on stdin, events on stdout (``probes/active/child.py``). The
device is the only one that CUDA_VISIBLE_DEVICES shows, or the CPUs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.active import host
from mltop.probes.active.child import Order, end_with_stdin, failed, read_order, say, stage
from mltop.probes.active.device import GPU_CAP_BYTES, Cpu, Cuda, Device
from mltop.probes.active.matmul import shapes
from mltop.probes.active.matmul.corruption import Checker
from mltop.probes.active.matmul.gemm import Buffers, cpu_versions, kernel, of_cpu, of_gpu, refusal
from mltop.probes.active.matmul.shapes import Room, Shape
from mltop.probes.active.matmul.timing import Gemms, Scan, rates
from mltop.probes.active.phase_meter import PhaseMeter, still_heating
from mltop.probes.active.torch_support import Unusable, gemm_versions, in_words
from mltop.probes.model.probe import MatmulResult, ProbeEvent
from mltop.probes.model.probe_kinds import DTYPE_OF, DTYPES
from mltop.probes.model.units import tflops_words

FLUSH_BYTES = 256 << 20  # mamf-finder's: more than any L2
_LOOK_S = 0.1  # at each cube: the best of several GEMMs, as threads of others hold one up for milliseconds
_PAUSE_S = 0.2
_SECONDS = {"warm": 2.0, "scan": 3.0, "burst": 1.0, "sustained": 3.0}
# Before a burst that is compared with mamf-finder's figure: its warm-ups, and the time in which the clock rises from
# where the load without a pause held it (an H100 by some 100 MHz in 0.2 s) to where it stays between flushes.
_WARM_UPS, _SETTLE_S = 50, 1.0
_LONGEST_OF_CPUS_S = {"warm": 1.0, "scan": 1.5, "burst": 1.5, "sustained": 2.0}


@dataclass
class Plan:
    """``published``: the shape of mamf-finder's figure for this GPU; without one, a scan that begins with
    ``first_shapes`` finds the best. ``least_burst``: GEMMs of the burst at least; ``scan_iterations``: of each shape.
    """

    dtype: str = DTYPES[0].name
    published: Sequence[int] = ()
    first_shapes: Sequence[Sequence[int]] = ()
    seconds: dict[str, float] = field(default_factory=lambda: dict(_SECONDS))
    memory_cap_bytes: int = GPU_CAP_BYTES
    seed: int = 1
    least_burst: int = 100
    scan_iterations: int = 10


def plan(order: Order) -> Plan:
    """Raises ValueError and TypeError for options that are none."""
    options, device = order.options, order.devices[0]
    is_cpu = device.kind == "cpu"
    published = dict(options.get("published") or {}) if device.kind == "gpu" else {}  # no figure is of a MIG instance
    seconds = {**_SECONDS, **{name: float(value) for name, value in (options.get("seconds") or {}).items()}}
    if is_cpu:
        seconds = {name: min(value, _LONGEST_OF_CPUS_S.get(name, value)) for name, value in seconds.items()}
    return Plan(
        dtype=str(options.get("dtype") or DTYPES[0].name),
        published=published.get(device.pci_device) or (),
        # Shapes known from GPUs would keep processors busy for minutes.
        first_shapes=options.get("shapes" if is_cpu else "first_shapes") or (),
        seconds=seconds,
        memory_cap_bytes=int(options.get("memory_cap_bytes") or GPU_CAP_BYTES),
        seed=int(options.get("seed") or 1),
        least_burst=10 if is_cpu else 100,
        scan_iterations=3 if is_cpu else 10,
    )


class Progress:
    """``deadlines_s``: of the stages, as the order has them."""

    def __init__(self, device: str, deadlines_s: dict[str, float]) -> None:
        self._device = device
        self._deadlines_s = deadlines_s
        self._told_s = 0.0
        self.stage = ""

    def begin(self, name: str, text: str = "") -> None:
        self.stage = name
        self._told_s = time.monotonic()
        stage(name, self._device, text=text, deadline_s=self._deadlines_s.get(name))

    def tell(self, fraction: float, text: str = "") -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _PAUSE_S:
            self._told_s = now_s
            stage(self.stage, self._device, fraction=round(fraction, 3), text=text)


def main() -> None:
    order = read_order()
    end_with_stdin()
    device = order.devices[0]
    meter = PhaseMeter(device)  # NVML starts while torch is imported
    progress = Progress(device.uuid, order.deadlines_s)
    try:
        result = _measure(order, plan(order), meter, progress)
    # What torch raises: RuntimeError for nearly all, out of memory included; AssertionError without CUDA.
    except (Unusable, ImportError, RuntimeError, ValueError, TypeError, AssertionError, MemoryError, OSError) as error:
        why, fix = in_words(error)
        if progress.stage == "import torch":
            why, fix = f"{sys.executable} cannot import torch: {why}", fix or "--torch-python with torch"
    else:
        say(ProbeEvent("result", device=device.uuid, data=asdict(result)))
        return
    failed(why, device.uuid, progress.stage, fix)
    sys.exit(1)


def _measure(order: Order, plan: Plan, meter: PhaseMeter, progress: Progress) -> MatmulResult:
    """Raises Unusable, and what torch raises."""
    progress.begin("import torch")
    import torch

    torch.set_grad_enabled(False)
    started_s = time.monotonic()
    progress.begin("device")
    wanted, cores = order.devices[0], host.cores()
    is_cpu = wanted.kind == "cpu"
    if is_cpu and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)
    device: Device = Cpu(torch, host.cpu_info("model name"))
    if not is_cpu:
        device = Cuda(torch, plan.memory_cap_bytes, flush_bytes=FLUSH_BYTES)
    refused = refusal(torch, plan.dtype, device.capability, wanted.name or device.name)
    if refused is not None:
        raise Unusable(*refused)
    result = (measure_cpus if is_cpu else measure_gpu)(device, plan, meter, progress)
    vars(result).update(order.about(wanted), name=wanted.name or device.name)
    if is_cpu:
        result.code_path = of_cpu(torch, plan.dtype, cores)
        result.threads = torch.get_num_threads()
        result.versions = cpu_versions(torch)
    else:
        result.versions = gemm_versions(torch, meter.driver)
    result.seconds = time.monotonic() - started_s
    result.phases, result.gaps = meter.phases, meter.gaps
    return result


def measure_gpu(device: Device, plan: Plan, meter: PhaseMeter, progress: Progress) -> MatmulResult:
    room = _room(device, plan)
    steady, published = shapes.sustained(room), shapes.known([plan.published], room)
    named = published or shapes.known(plan.first_shapes, room)
    first = [] if published else shapes.first_round(device.multiprocessors or 1, room)
    tried = [steady, *named, *first]
    tried += [] if published else shapes.second_round(tried, room, len(tried))
    stages = _Stages(device, plan, meter, progress, tried)
    progress.begin("warm")
    flop_per_s = steady.flop / stages.warm(steady)
    best, library = (published[0], "") if published else stages.best(named, first, steady, room, flop_per_s)
    stages.result.code_path = of_gpu(device.torch, plan.dtype, library)
    stages.burst(best, _SETTLE_S if published else 0.0)
    if library:  # the choice is a matter of 1 %: GPUs are compared with one library
        device.torch.backends.cuda.preferred_blas_library("cublas")
    stages.sustain(steady)
    return stages.checked()


def measure_cpus(device: Device, plan: Plan, meter: PhaseMeter, progress: Progress) -> MatmulResult:
    progress.begin("warm")
    named = shapes.known(plan.first_shapes, _room(device, plan))
    side: int | None = shapes.CUBES_OF_CPUS[0]
    while side is not None:  # until one GEMM takes 20 to 100 ms here
        cube = Shape(side, side, side)
        tried = [*shapes.of_cpus(cube), *named]
        stages = _Stages(device, plan, meter, progress, tried)
        side = shapes.next_cube(side, stages.least_time(cube))
    stages.warm(cube)
    progress.begin("scan")
    candidates = named or shapes.of_cpus(cube)
    with meter.phase("scan"):
        scan = Scan(stages.gemms, plan.seconds["scan"])
        stages.try_shapes(scan, candidates, len(candidates))
    stages.burst(scan.ranking()[0])
    stages.sustain(cube)
    return stages.checked()


def _room(device: Device, plan: Plan) -> Room:
    row = DTYPE_OF[plan.dtype]
    return Room(device.room_bytes(plan.memory_cap_bytes), row.bytes, row.output_bytes)


class _Stages:
    """The stages that CPUs and GPUs share; ``result`` is filled by one after the other."""

    def __init__(
        self, device: Device, plan: Plan, meter: PhaseMeter, progress: Progress, tried: Sequence[Shape]
    ) -> None:
        self._device, self._plan, self._meter, self._progress = device, plan, meter, progress
        self._buffers = Buffers(device, plan.dtype, plan.seed, tried)
        self.result = MatmulResult(dtype=plan.dtype, multiprocessors=device.multiprocessors)
        self.result.upload_intact = self._buffers.intact
        self._run = kernel(device.torch, plan.dtype)
        self._checkers: list[Checker] = []

    def gemms(self, shape: Shape, is_checked: bool = False) -> Gemms:
        checker = Checker(self._device.torch, shape.flop) if is_checked else None
        self._checkers += [checker] if checker is not None else []
        return Gemms(self._device, self._run, self._buffers.operands(shape), checker)

    def least_time(self, shape: Shape) -> float:
        """Seconds of the fastest of some GEMMs."""
        gemms = self.gemms(shape)
        gemms.warm_up(1)
        return min(gemms.times_for(_LOOK_S, least=3))

    def warm(self, shape: Shape) -> float:
        """Seconds of one GEMM."""
        with self._meter.phase("warm"):
            took_s = self.gemms(shape).warm(self._plan.seconds["warm"], self._progress.tell)
        self.result.still_heating = still_heating(self._meter.clocks_mhz.get("warm", ()))
        return took_s

    def best(
        self, named: list[Shape], first: list[Shape], steady: Shape, room: Room, flop_per_s: float
    ) -> tuple[Shape, str]:
        """The fastest shape in the time for it, and the library that is better for it, "" for torch's choice."""
        self._progress.begin("scan")
        each_s = self._plan.seconds["scan"] / shapes.TRIED_ABOUT / (self._plan.scan_iterations + 2)
        with self._meter.phase("scan"):
            scan, count = Scan(self.gemms, self._plan.seconds["scan"]), len(named) + shapes.TRIED_ABOUT
            self.try_shapes(scan, (named + shapes.affordable(first, flop_per_s, each_s)) or [steady], count)
            second = shapes.second_round(scan.ranking(), room)
            self.try_shapes(scan, shapes.affordable(second, flop_per_s, each_s), count)
            best = scan.ranking()[0]
            return best, self.better_library(best)

    def try_shapes(self, scan: Scan, tried: list[Shape], of: int) -> None:
        def tell() -> None:
            done = len(scan.tried)
            text = f"scan {done}/{max(of, done)}, best {tflops_words(max(scan.tried.values()))}"
            self._progress.tell(done / max(of, done), text)

        scan.try_all(tried, self._plan.scan_iterations, tell)
        self.result.shapes_tried = len(scan.tried)

    def better_library(self, shape: Shape) -> str:
        """cuBLASLt where it is there and faster (fp8 has no other), which stays chosen; "" is torch's choice."""
        if self._plan.dtype == "fp8":
            return ""
        prefer = self._device.torch.backends.cuda.preferred_blas_library
        default = self._median(shape)
        try:
            prefer("cublaslt")
            if self._median(shape) > default * 1.01:
                return "cublaslt"
        except RuntimeError:  # this torch was built without it, or it cannot do this GEMM
            pass
        prefer("cublas")
        return ""

    def _median(self, shape: Shape) -> float:
        gemms = self.gemms(shape)
        gemms.warm_up(2)
        return rates(shape.flop, gemms.times(self._plan.scan_iterations)).median

    def burst(self, shape: Shape, settle_s: float = 0.0) -> None:
        """With fresh iterations: the best of many tries is partly luck. ``settle_s``: of the same load before it."""
        self._progress.begin("burst", str(shape))
        gemms = self.gemms(shape, is_checked=True)

        def tell(fraction: float, times_s: Any) -> None:
            self._progress.tell(fraction, f"burst {tflops_words(rates(shape.flop, times_s).median)}")

        gemms.warm_up(2)
        if settle_s:
            self.gemms(shape).times_for(settle_s, _WARM_UPS)
        with self._meter.phase("burst"):
            times_s = gemms.times_for(self._plan.seconds["burst"], self._plan.least_burst, tell)
        measured, result = rates(shape.flop, times_s), self.result
        result.shape, result.iterations = list(shape), measured.iterations
        result.burst_tflops, result.burst_median_tflops = measured.mean, measured.median
        result.burst_p5_tflops, result.burst_best_tflops = measured.p5, measured.best

    def sustain(self, shape: Shape) -> None:
        self._progress.begin("sustained", str(shape))

        def tell(fraction: float, per_s: float) -> None:
            self._progress.tell(fraction, f"sustained {tflops_words(per_s * shape.flop / 1e12)}")

        with self._meter.phase("sustained"):
            done = self.gemms(shape, is_checked=True).sustain(self._plan.seconds["sustained"], tell)
        self.result.sustained_shape = list(shape)
        self.result.sustained_tflops = done.tflops(shape.flop)

    def checked(self) -> MatmulResult:
        """``checksum`` is of the sustained shape's output: equal on all GPUs that round alike."""
        self._progress.begin("check")
        for checker in self._checkers:
            self.result.checked_iterations += checker.checked
            self.result.corrupt_iterations += checker.corrupt
            self.result.checked_pflop += checker.checked_pflop
        self.result.checksum = self._checkers[-1].checksum()
        return self.result
