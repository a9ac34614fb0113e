"""The processes of the memory and copies probes: one loop that times copies, within one device's memory or from one
memory to another.

memory  one buffer of the device is copied to another again and again: mean, best, and whether the last copy is right
copies  between host memory and the GPUs of a node, and from GPU to GPU; all GPUs of a node are in one process, because
        they share what is between them; a copy that hangs ends the measurement
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Callable, Union

from mltop.probes.active import buffers, child
from mltop.probes.active.device import GPU_CAP_BYTES, Cpu, Cuda, CudaTimer, Device, Timer, cap_memory
from mltop.probes.active.host import Affinity, affinity_of, last_level_cache_bytes, on_cpus
from mltop.probes.active.nvml import Link, PcieLinks
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_support import Unusable, failures_told, first_line, import_torch, versions, why_no_gpu
from mltop.probes.model.probe import CopiesResult, MemoryResult, PeerCopy, Phase, ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import stage_deadline_s

BATCH = 5
WARM_COPIES = 3
POLL_S = 0.002


def main() -> None:
    """Either probe, as the order says."""
    try:
        order = child.read_order()
        options = buffers.options_of(order.options)
    except (ValueError, TypeError) as error:
        child.failed(f"cannot be done: {error}")
        return
    if order.kind == "memory":
        _memory(order, options)
    else:
        _copies(order, options)


# The loop.


class Stalled(Exception):
    """Copies that did not end; what was begun on these devices after them will not end either."""


@dataclass(frozen=True)
class Plan:
    """``budget_s``: for all batches of one device (or of all at once); ``stall_s``: for a batch. ``warm_s``: at least,
    before the first that counts.
    """

    size_bytes: int
    iterations: int
    budget_s: float
    stall_s: float = math.inf
    warm_s: float = 0.0


@dataclass
class Timed:
    """``best_s``: of one copy."""

    copies: int = 0
    seconds: float = 0.0
    best_s: float = field(default=math.inf, compare=False)

    def rate(self, size_bytes: int) -> float | None:
        """Bytes/s."""
        return self.copies * size_bytes / self.seconds if self.seconds > 0 else None


Begin = Callable[[int], Sequence[Timer]]  # begins so many copies, timed together or each by itself


def timed(
    begins: Sequence[Begin],
    plan: Plan,
    on_poll: Callable[[], None] = lambda: None,
    tell: Callable[[float], None] = lambda _: None,
) -> list[Timed]:
    """What each of several copies takes while all of them run, by the device's own clock. Raises Stalled.

    ``on_poll`` is called again and again while they run; ``tell`` receives the share of the copies that are done.
    """
    began = time.monotonic()
    wait([begin(WARM_COPIES) for begin in begins], plan.stall_s, on_poll)
    while time.monotonic() - began < plan.warm_s:
        wait([begin(BATCH) for begin in begins], plan.stall_s, on_poll)
    timings = [Timed() for _ in begins]
    began, done = time.monotonic(), 0
    while done < plan.iterations and (done == 0 or time.monotonic() - began < plan.budget_s):
        count = min(BATCH, plan.iterations - done)
        running = [begin(count) for begin in begins]
        wait(running, plan.stall_s, on_poll)
        for timing, timers in zip(timings, running):
            times_s = [timer.seconds() for timer in timers]
            timing.copies += count
            timing.seconds += sum(times_s)
            timing.best_s = min(timing.best_s, min(times_s) * len(times_s) / count)
        done += count
        tell(done / plan.iterations)
    return timings


def wait(running: Sequence[Sequence[Timer]], stall_s: float, on_poll: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + stall_s
    on_poll()
    while not all(timers[-1].done() for timers in running):
        if time.monotonic() > deadline_s:
            raise Stalled(f"a copy did not end within {stall_s:g} s")
        time.sleep(POLL_S)
        on_poll()


# Within the memory of one device.

BUDGET_S = 8.0  # slow memory makes fewer copies
GPU_BYTES, CPU_BYTES = 1 << 30, 256 << 20
CACHES = 4  # times what the caches hold


def _memory(order: child.Order, options: buffers.Options) -> None:
    if len(order.devices) != 1:
        child.failed(f"the memory probe takes one device in a process, not {len(order.devices)}")
        return
    child.end_with_stdin()
    began, device = time.monotonic(), order.devices[0]
    with failures_told(device.uuid):
        child.stage("import torch", device.uuid)
        torch = import_torch()
        child.stage("device", device.uuid)
        result = MemoryResult(**order.about(device))
        memory = (_on_cpus if device.kind == "cpu" else _on_gpu)(torch, options.size_bytes, result)
        child.stage("copy", device.uuid, 0.0)
        meter = PhaseMeter(device)
        with meter.phase("copy"):
            measure(memory, options, result, lambda share: child.stage("copy", device.uuid, share))
        result.phases, result.versions = meter.phases, versions(torch)
        result.gaps = {**meter.gaps, **result.gaps}
        result.seconds = round(time.monotonic() - began, 3)
        child.say(ProbeEvent("result", device=device.uuid, data=asdict(result)))


def _on_gpu(torch: Any, wanted_bytes: int, result: MemoryResult) -> DeviceMemory:
    gpu = Cuda(torch, GPU_CAP_BYTES)
    free_bytes = gpu.free_bytes()
    size = buffers.fitting(wanted_bytes or GPU_BYTES, buffers.room_on_gpu(free_bytes), 2)
    if not size:
        raise Unusable(f"only {free_bytes // buffers.MIB} MiB of the GPU's memory are free", "end what uses the GPU")
    result.code_path = "copy_ between two buffers of the GPU's memory"
    return DeviceMemory(gpu, size)


def _on_cpus(torch: Any, wanted_bytes: int, result: MemoryResult) -> DeviceMemory:
    """What a copy that leaves the caches behind reaches with torch's threads: no figure of the memory alone."""
    cache = last_level_cache_bytes()
    enough = max(CPU_BYTES, CACHES * (cache or 0))
    size = buffers.fitting(wanted_bytes or enough, buffers.room_on_host(), 2)
    if not size:
        raise Unusable("no memory is free for two small buffers")
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    caches = f"caches of {cache // buffers.MIB} MiB" if cache else "caches of unknown size"
    if cache and size < CACHES * cache:
        caches += f", which hold {100 * min(1.0, cache / (2 * size)):.0f} % of both buffers"
    result.threads = threads
    result.code_path = (
        f"torch's copy_, {threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}, {caches}"
    )
    return DeviceMemory(Cpu(torch), size)


class DeviceMemory:
    """The two buffers of a device. Raises RuntimeError where there is no memory."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        words = size_bytes // buffers.WORD_BYTES
        torch = device.torch
        self._source = torch.empty(words, dtype=torch.int64, device=device.where)
        self._target = torch.zeros(words, dtype=torch.int64, device=device.where)
        buffers.fill(torch, self._source)
        self.size_bytes = words * buffers.WORD_BYTES
        device.wait()

    def start(self, copies: int) -> list[Timer]:
        """Each has a timer of its own."""
        timers = [self._device.timer() for _ in range(copies)]
        for timer in timers:
            timer.start()
            self._target.copy_(self._source)
            timer.stop()
        return timers

    def intact(self) -> bool:
        return buffers.is_filled(self._device.torch, self._target)


def measure(
    memory: DeviceMemory, options: buffers.Options, result: MemoryResult, tell: Callable[[float], None]
) -> None:
    """A copied byte counts twice: it is read and written."""
    moved_bytes = 2 * memory.size_bytes
    (timing,) = timed([memory.start], Plan(moved_bytes, options.iterations, BUDGET_S, warm_s=options.warm_s), tell=tell)
    result.size_bytes, result.iterations = memory.size_bytes, timing.copies
    if memory.size_bytes < options.size_bytes - buffers.LEAST_ASKED_BYTES:
        result.gaps["size"] = f"{options.size_bytes} bytes were asked for, {memory.size_bytes} fit into the free memory"
    result.copy_bytes_per_s = timing.rate(moved_bytes)
    result.copy_best_bytes_per_s = moved_bytes / timing.best_s if timing.best_s > 0 else None
    result.intact = memory.intact()


# Between host memory and GPUs.

WAYS = {"to_device": "to device", "to_host": "to host"}
Way = Union[str, int]
PEER_ITERATIONS = 10
SIZE_BYTES = 256 * buffers.MIB
_ON_DEVICE, _ON_HOST = 2, 2  # buffers of each GPU


def _copies(order: child.Order, options: buffers.Options) -> None:
    instances = [device for device in order.devices if device.kind == "mig"]
    for device in instances:
        child.failed("copies of MIG instances are not measured: they share their GPU's link", device.uuid)
    order.devices = [device for device in order.devices if device.kind == "gpu"]
    if not order.devices:
        if not instances:
            child.failed("no GPU here: copies need one")
        return
    child.end_with_stdin()
    with failures_told():
        _run(order, options)


def _run(order: child.Order, options: buffers.Options) -> None:
    began = time.monotonic()
    child.stage("import torch")
    torch = import_torch()
    child.stage("device")
    if not torch.cuda.is_available():
        raise Unusable(why_no_gpu(torch), "nvidia-smi; a driver too old for this torch looks like that")
    visible, wanted = torch.cuda.device_count(), len(order.devices)
    if visible != wanted:
        raise Unusable(f"torch sees {visible} of {wanted} GPUs", "mltop check; or name the GPUs that work")
    links = PcieLinks()
    affinities = [affinity_of(links.address(device.uuid)) for device in order.devices]
    size = _size(torch, options.size_bytes or SIZE_BYTES, len(order.devices))
    results = [_result(order, device, affinity, links) for device, affinity in zip(order.devices, affinities)]
    gpus = CudaGpus(torch, affinities, size)

    def progress(stage: str, share: float) -> None:
        child.stage(stage, fraction=round(share, 3))

    stopped = Measurement(gpus, results, links, _plans(order, options, size), progress).run()
    seconds = round(time.monotonic() - began, 3)
    for result in results:
        result.size_bytes, result.seconds, result.versions = size, seconds, versions(torch)
    _say(results, stopped)
    if stopped:
        sys.stdout.flush()
        os._exit(0)  # leaving CUDA the usual way would wait for what hangs


def _size(torch: Any, wanted_bytes: int, gpus: int) -> int:
    free_bytes = min(torch.cuda.mem_get_info(number)[0] for number in range(gpus))
    on_device = buffers.fitting(wanted_bytes, buffers.room_on_gpu(free_bytes), _ON_DEVICE)
    if not on_device:
        raise Unusable(f"only {free_bytes // buffers.MIB} MiB of a GPU's memory are free", "end what uses the GPUs")
    size = buffers.fitting(on_device, buffers.room_on_host(), _ON_HOST * gpus)
    if not size:
        raise Unusable(f"the host has no memory for the pinned buffers of {gpus} GPUs", "free memory of the node")
    return size


def _result(order: child.Order, device: ProbeDevice, affinity: Affinity, links: PcieLinks) -> CopiesResult:
    most = links.most(device.uuid)
    return CopiesResult(
        **order.about(device),
        pcie_gen_max=most.gen,
        pcie_width_max=most.width,
        numa_node=affinity.numa_node,
        near=affinity.near,
        gaps={"pcie": links.why} if links.why else {},
    )


def _plans(order: child.Order, options: buffers.Options, size: int) -> dict[str, Plan]:
    """Half of each stage's time is for copies: a slow link makes fewer of them, and a hang is told in time."""
    gpus = len(order.devices)
    parts = {"to device": gpus, "to host": gpus, "together": 2, "peers": max(1, gpus * (gpus - 1))}
    plans = {}
    for stage, count in parts.items():
        limit_s = stage_deadline_s(order.kind, stage, order.deadlines_s)
        iterations = min(options.iterations, PEER_ITERATIONS) if stage == "peers" else options.iterations
        plans[stage] = Plan(size, iterations, limit_s / 2 / count, limit_s / 4)
    return plans


def _say(results: list[CopiesResult], stopped: str) -> None:
    """A GPU of which nothing was measured has failed."""
    if stopped:
        child.say(ProbeEvent("note", text=f"{stopped}: nothing was measured after that"))
    for result in results:
        rates = (result.to_device_bytes_per_s, result.to_host_bytes_per_s, *(peer.bytes_per_s for peer in result.peers))
        if any(value is not None for value in rates):
            child.say(ProbeEvent("result", device=result.uuid, data=asdict(result)))
        else:
            why = next(iter(result.gaps.values()), stopped or "nothing was measured")
            child.failed(why, result.uuid)


class Buffers:
    """Of a GPU (``where``: torch's name). ``sent``, ``returned``: on the host; ``source``, ``received``: its own."""

    def __init__(self, torch: Any, where: str, size_bytes: int, affinity: Affinity, pinned: bool = True) -> None:
        words = size_bytes // buffers.WORD_BYTES
        with on_cpus(affinity.cpus):
            self.sent = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
            self.returned = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        buffers.fill(torch, self.sent)
        self.source = torch.zeros(words, dtype=torch.int64, device=where)
        self.received = torch.zeros(words, dtype=torch.int64, device=where)


class CudaGpus:
    """The GPUs of a node with their buffers, by their position in CUDA_VISIBLE_DEVICES.

    Every call may raise RuntimeError.

    ``way``: a key of WAYS, or the position of the GPU that is copied to.
    """

    def __init__(self, torch: Any, affinities: Sequence[Affinity], size_bytes: int) -> None:
        self._torch = torch
        self._buffers = []
        for number, affinity in enumerate(affinities):
            cap_memory(torch, GPU_CAP_BYTES, number)
            self._buffers.append(Buffers(torch, f"cuda:{number}", size_bytes, affinity))
        for number in range(len(affinities)):
            torch.cuda.synchronize(number)

    def start(self, gpu: int, way: Way, copies: int) -> list[CudaTimer]:
        return self._start(gpu, *self._ends(gpu, way), copies)

    def arrived(self, gpu: int, way: Way) -> bool:
        """Whether the last copies that way moved every bit; the next ones start from zeros, but for what is sent on."""
        target = self._ends(gpu, way)[1]
        intact = buffers.is_filled(self._torch, target)
        if way != "to_device":
            target.zero_()
        if isinstance(way, int):
            self._torch.cuda.synchronize(way)
        return intact

    def reaches(self, source: int, target: int) -> bool:
        """Whether a GPU can write to another one's memory."""
        return bool(self._torch.cuda.can_device_access_peer(source, target))

    def _ends(self, gpu: int, way: Way) -> tuple[Any, Any]:
        """(source, target)"""
        own = self._buffers[gpu]
        if isinstance(way, int):
            return own.source, self._buffers[way].received
        return (own.sent, own.source) if way == "to_device" else (own.source, own.returned)

    def _start(self, gpu: int, source: Any, target: Any, copies: int) -> list[CudaTimer]:
        """torch puts a copy between devices on the current stream of the source's device, where the events are, too."""
        with self._torch.cuda.device(gpu):
            timer = CudaTimer(self._torch)
            timer.start()
            for _ in range(copies):
                target.copy_(source, non_blocking=True)
            timer.stop()
        return [timer]


@dataclass
class Measurement:
    """Copies to device, to host, together, from GPU to GPU. ``results``: one for each of ``gpus``, in order, to be
    filled in. ``plans``: by stage. ``progress``: told a stage and the share of it that is done.

    A device that fails is left out from then on (``broken``), its reason is in its result's gaps. A copy that hangs
    ends everything: nothing that is asked of these GPUs afterwards may be expected to answer.
    """

    gpus: CudaGpus
    results: Sequence[CopiesResult]
    links: PcieLinks
    plans: dict[str, Plan]
    progress: Callable[[str, float], None]
    broken: set[int] = field(default_factory=set)

    def run(self) -> str:
        """What ended it early, "" when nothing did."""
        everybody = range(len(self.results))
        try:
            for way, stage in WAYS.items():
                for position in everybody:
                    self.progress(stage, position / len(everybody))
                    self._copy([position], way, stage)
            # All GPUs at the same time: shared switches, sockets and host memory show only then.
            for number, way in enumerate(WAYS if len(everybody) > 1 else ()):
                self.progress("together", number / len(WAYS))
                self._copy(everybody, way, "together")
            self._peers()
        except Stalled as error:
            return str(error)
        return ""

    def _copy(self, positions: Sequence[int], way: str, stage: str) -> None:
        """One GPU alone, or all together. Raises Stalled."""
        alone = stage != "together"
        positions = [position for position in positions if position not in self.broken]
        results = [self.results[position] for position in positions]
        link = Link()

        def on_poll() -> None:
            nonlocal link
            link = link.best(self.links.now(results[0].uuid)) if alone else link

        try:
            begins = [partial(self.gpus.start, position, way) for position in positions]
            timings = timed(begins, self.plans[stage], on_poll) if begins else []
        except (RuntimeError, Stalled) as error:
            for result in results:
                result.gaps[stage] = first_line(error)
            if isinstance(error, Stalled):
                which = f"GPU {self._index(positions[0])}, {stage}" if len(positions) == 1 else f"{stage}, all at once"
                raise Stalled(f"{error} ({which})") from None
            self.broken.update(positions if len(positions) == 1 else ())
            return
        for position, result, timing in zip(positions, results, timings):
            rate = timing.rate(self.plans[stage].size_bytes)
            setattr(result, f"{way}_bytes_per_s" if alone else f"{way}_together_bytes_per_s", rate)
            if alone:
                result.iterations = min(filter(None, (result.iterations, timing.copies)), default=timing.copies)
                result.phases.append(Phase(stage, round(timing.seconds, 6), pcie_gen=link.gen, pcie_width=link.width))
            self._check(position, way)

    def _peers(self) -> None:
        pairs = list(itertools.permutations(range(len(self.results)), 2))
        for number, (source, target) in enumerate(pairs):
            self.progress("peers", number / len(pairs))
            if not {source, target} & self.broken:
                self._pair(source, target)

    def _pair(self, source: int, target: int) -> None:
        plan = self.plans["peers"]
        copy = PeerCopy(self._index(target))
        self.results[source].peers.append(copy)
        try:
            copy.direct = self.gpus.reaches(source, target)
            (timing,) = timed([partial(self.gpus.start, source, target)], plan)
            copy.bytes_per_s = timing.rate(plan.size_bytes)
            intact = self.gpus.arrived(source, target)
            copy.intact = intact if self.results[source].intact else None  # else what is sent may be wrong already
        except RuntimeError as error:
            copy.why = first_line(error)
        except Stalled as error:
            copy.why = str(error)
            raise Stalled(f"{error} (GPU {self._index(source)} to GPU {copy.to_gpu})") from None

    def _check(self, position: int, way: str) -> None:
        result = self.results[position]
        try:
            result.intact = self.gpus.arrived(position, way) and result.intact is not False
        except RuntimeError as error:
            result.gaps["intact"] = first_line(error)
            self.broken.add(position)

    def _index(self, position: int) -> int:
        index = self.results[position].gpu
        return position if index is None else index
