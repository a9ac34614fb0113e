"""What is to be measured, and for how long: from the order, with everything that it leaves out.

Says how far a probe is, a few times a second at most.

The stages of the matmul probe, one after the other, on whatever device it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.active import host, torch_support
from mltop.probes.active.child import Order, failed, say, stage
from mltop.probes.active.device import Cpu, Cuda, Device
from mltop.probes.active.matmul import code_path, shapes
from mltop.probes.active.matmul.corruption import Checker
from mltop.probes.active.matmul.gemm import BYTES, KERNELS, OUTPUT_BYTES, Buffers, Inputs, Run, refusal
from mltop.probes.active.matmul.shapes import Room, Shape
from mltop.probes.active.matmul.timing import Burst, Rates, Scan, Sustained, Tried, rates, sustain, warm
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.model.probe import MatmulResult, ProbeEvent

GIB = 2**30
_SECONDS = {"warm": 2.0, "scan": 3.0, "burst": 1.0, "sustained": 3.0}
_LONGEST_OF_CPUS_S = {"warm": 1.0, "scan": 1.5, "burst": 1.5, "sustained": 2.0}


@dataclass
class Plan:
    """``least_burst``: GEMMs of the burst at least; ``scan_iterations``: of each shape."""

    dtype: str = "bf16"
    first_shapes: Sequence[Sequence[int]] = ()
    seconds: dict[str, float] = field(default_factory=lambda: dict(_SECONDS))
    memory_cap_bytes: int = 4 * GIB
    seed: int = 1
    least_burst: int = 100
    scan_iterations: int = 10


def plan(order: Order) -> Plan:
    """Raises ValueError and TypeError for options that are none."""
    options: dict[str, Any] = order.options
    is_cpu = order.devices[0].kind == "cpu"
    seconds = {**_SECONDS, **{name: float(value) for name, value in (options.get("seconds") or {}).items()}}
    if is_cpu:
        seconds = {name: min(value, _LONGEST_OF_CPUS_S.get(name, value)) for name, value in seconds.items()}
    return Plan(
        dtype=str(options.get("dtype") or "bf16"),
        # Shapes known from GPUs would keep processors busy for minutes.
        first_shapes=options.get("shapes" if is_cpu else "first_shapes") or (),
        seconds=seconds,
        memory_cap_bytes=int(options.get("memory_cap_bytes") or 4 * GIB),
        seed=int(options.get("seed") or 1),
        least_burst=10 if is_cpu else 100,
        scan_iterations=3 if is_cpu else 10,
    )


_PAUSE_S = 0.2


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


_LOOK_S = 0.1  # at each cube: the best of several GEMMs, as threads of others hold one up for milliseconds


def measure(torch: Any, order: Order, plan: Plan, meter: PhaseMeter, progress: Progress) -> bool:
    """Says the result, or why there is none. Raises what torch raises."""
    started_s = time.monotonic()
    wanted = order.devices[0]
    progress.begin("device")
    is_cpu = wanted.kind == "cpu"
    allowed = host.allowed()
    if is_cpu and torch.get_num_threads() > allowed:
        torch.set_num_threads(allowed)
    device = Cpu(torch, code_path.cpu_info("model name")) if is_cpu else Cuda(torch, plan.memory_cap_bytes)
    refused = refusal(torch, plan.dtype, getattr(device, "capability", None), wanted.name or device.name)
    if refused is not None:
        failed(refused[0], wanted.uuid, progress.stage, refused[1])
        return False
    probe = (OnCpus if is_cpu else OnGpu)(device, plan, meter, progress)
    probe.run_all()
    result = probe.result
    result.node, result.gpu, result.uuid, result.kind = order.node, wanted.index, wanted.uuid, wanted.kind
    result.name, result.pci_device = wanted.name or device.name, wanted.pci_device
    if is_cpu:
        result.code_path = code_path.of_cpu(torch, plan.dtype, allowed)
        result.threads = torch.get_num_threads()
        result.versions = code_path.versions(torch)
    else:
        result.versions = torch_support.gemm_versions(torch, meter.driver)
    result.seconds = time.monotonic() - started_s
    result.phases, result.gaps = meter.phases, meter.gaps
    say(ProbeEvent("result", device=wanted.uuid, data=asdict(result)))
    return True


class _Probe:
    """The stages that CPUs and GPUs share. ``result`` is filled stage by stage."""

    buffers: Buffers

    def __init__(self, device: Device, plan: Plan, meter: PhaseMeter, progress: Progress) -> None:
        self.device = device
        self.plan = plan
        self.meter = meter
        self.progress = progress
        self.run: Run = KERNELS[plan.dtype](device.torch)
        self.room = Room(device.room_bytes(plan.memory_cap_bytes), BYTES[plan.dtype], OUTPUT_BYTES[plan.dtype])
        self.result = MatmulResult(dtype=plan.dtype, multiprocessors=device.multiprocessors)
        self._checkers: list[Checker] = []

    def run_all(self) -> None:
        raise NotImplementedError

    def inputs(self, most: int) -> Inputs:
        made = Inputs(self.device, self.plan.dtype, self.plan.seed, most)
        self.result.upload_intact = made.intact
        return made

    def warm(self, shape: Shape) -> float:
        """Seconds of one GEMM."""
        with self.meter.phase("warm"):
            operands = self.buffers.operands(shape)
            took_s = warm(self.device, self.run, operands, self.plan.seconds["warm"], self.progress.tell)
        self.result.still_heating = self.meter.still_heating("warm")
        return took_s

    def scanning(self) -> Scan:
        return Scan(self.device, self.run, self.buffers.operands, self.plan.seconds["scan"])

    def try_shapes(self, scan: Scan, tried: list[Shape], of: int) -> None:
        def tell(best: Tried) -> None:
            done = len(scan.tried)
            self.progress.tell(done / max(of, done), f"scan {done}/{max(of, done)}, best {words(best.median_tflops)}")

        scan.try_all(tried, self.plan.scan_iterations, tell)
        self.result.shapes_tried = len(scan.tried)

    def burst(self, shape: Shape) -> None:
        """The winner again, with fresh iterations: the best of many tries is partly luck."""
        self.progress.begin("burst", str(shape))
        checker = self._checker(shape)
        burst = Burst(self.device, self.run, self.buffers.operands(shape), checker)

        def tell(fraction: float, times_s: Any) -> None:
            self.progress.tell(fraction, f"burst {words(rates(shape.flop, times_s).median)}")

        burst.warm_up(2)
        with self.meter.phase("burst"):
            times_s = burst.times_for(self.plan.seconds["burst"], self.plan.least_burst, tell)
        self._note_burst(shape, rates(shape.flop, times_s))

    def sustain(self, shape: Shape) -> None:
        self.progress.begin("sustained", str(shape))
        checker = self._checker(shape)

        def tell(fraction: float, per_s: float) -> None:
            self.progress.tell(fraction, f"sustained {words(per_s * shape.flop / 1e12)}")

        with self.meter.phase("sustained"):
            operands = self.buffers.operands(shape)
            seconds = self.plan.seconds["sustained"]
            done: Sustained = sustain(self.device, self.run, operands, checker, seconds=seconds, tell=tell)
        self.result.sustained_shape = list(shape)
        self.result.sustained_tflops = done.tflops(shape.flop)

    def check(self) -> None:
        """``checksum`` is of the sustained shape's output: equal on all GPUs that round alike."""
        self.progress.begin("check")
        for checker in self._checkers:
            self.result.checked_iterations += checker.checked
            self.result.corrupt_iterations += checker.corrupt
            self.result.checked_pflop += checker.checked_pflop
        self.result.checksum = self._checkers[-1].checksum()

    def _checker(self, shape: Shape) -> Checker:
        checker = Checker(self.device.torch, shape.flop)
        self._checkers.append(checker)
        return checker

    def _note_burst(self, shape: Shape, found: Rates) -> None:
        self.result.shape, self.result.iterations = list(shape), found.iterations
        self.result.burst_tflops, self.result.burst_median_tflops = found.mean, found.median
        self.result.burst_p5_tflops, self.result.burst_best_tflops = found.p5, found.best


class OnGpu(_Probe):
    def run_all(self) -> None:
        steady = shapes.sustained(self.room)
        known = shapes.known(self.plan.first_shapes, self.room)
        first = shapes.first_round(self.device.multiprocessors or 1, self.room)
        tried = [steady, *known, *first]
        tried += shapes.second_round(tried, self.room, len(tried))
        self.buffers = self.inputs(shapes.most_numbers(tried)).buffers(tried)
        self.progress.begin("warm")
        took_s = self.warm(steady)
        best, library = self._scan(known, first, steady, steady.flop / took_s)
        self.result.code_path = code_path.of_gpu(self.device.torch, self.plan.dtype, library)
        self.burst(best)
        if library:
            self._prefer("cublas")  # the choice is a matter of 1 %: GPUs are compared with one library
        self.sustain(steady)
        self.check()

    def _prefer(self, library: str) -> None:
        self.device.torch.backends.cuda.preferred_blas_library(library)

    def _scan(self, known: list[Shape], first: list[Shape], steady: Shape, flop_per_s: float) -> tuple[Shape, str]:
        """The best shape, and the library that is better for it ("" is torch's choice)."""
        self.progress.begin("scan")
        each_s = self.plan.seconds["scan"] / shapes.TRIED_ABOUT / (self.plan.scan_iterations + 2)
        with self.meter.phase("scan"):
            scan = self.scanning()
            of = len(known) + shapes.TRIED_ABOUT
            self.try_shapes(scan, (known + shapes.affordable(first, flop_per_s, each_s)) or [steady], of)
            second = shapes.second_round(scan.ranking(), self.room)
            self.try_shapes(scan, shapes.affordable(second, flop_per_s, each_s), of)
            best = scan.best()
            return best.shape, self._better_library(best.shape)

    def _better_library(self, shape: Shape) -> str:
        """cuBLASLt where it is there and faster (fp8 has no other); it stays chosen."""
        prefer = getattr(self.device.torch.backends.cuda, "preferred_blas_library", None)  # since torch 2.3
        if prefer is None or self.plan.dtype == "fp8":
            return ""
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
        burst = Burst(self.device, self.run, self.buffers.operands(shape))
        burst.warm_up(2)
        return rates(shape.flop, burst.times(self.plan.scan_iterations)).median


class OnCpus(_Probe):
    def run_all(self) -> None:
        self.progress.begin("warm")
        known = shapes.known(self.plan.first_shapes, self.room)
        cube = self._fitting_cube(known)
        self.warm(cube)
        self.progress.begin("scan")
        candidates = known or shapes.of_cpus(cube)
        with self.meter.phase("scan"):
            scan = self.scanning()
            self.try_shapes(scan, candidates, len(candidates))
        self.burst(scan.best().shape)
        self.sustain(cube)
        self.check()

    def _fitting_cube(self, known: list[Shape]) -> Shape:
        """The cube of which one GEMM takes 20 to 100 ms here, with buffers for it and all that is tried."""
        side: int | None = shapes.CUBES_OF_CPUS[0]
        while side is not None:
            cube = Shape(side, side, side)
            tried = [*shapes.of_cpus(cube), *known]
            self.buffers = self.inputs(shapes.most_numbers(tried)).buffers(tried)
            burst = Burst(self.device, self.run, self.buffers.operands(cube))
            burst.warm_up(1)
            side = shapes.next_cube(side, min(burst.times_for(_LOOK_S, least=3, tell=lambda *_: None)))
        return cube


def words(tflops: float) -> str:
    return f"{tflops:.0f} TFLOPS" if tflops >= 100 else f"{tflops:.3g} TFLOPS"
