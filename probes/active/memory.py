"""Copying one buffer to another again and again: mean, best, and whether the last copy is right.

The two buffers of a device, and copying from one to the other: all that differs between CUDA and CPUs.

``main`` of the memory probe: one device, one order, one result.

The memory probe's process: how fast one device copies within its own memory.

child.py     its order, stages and result
measure.py   the measurement, the same for all devices; device.py what differs between CUDA and CPUs
pattern.py   what is copied, and whether it arrived
room.py      how much may be copied: free memory, caches
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Protocol

from mltop.probes.active import buffers, child
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_support import Unusable, import_torch, in_words, versions, why_no_gpu
from mltop.probes.model.probe import MemoryResult, ProbeDevice, ProbeEvent

BATCH = 5
WARM_COPIES = 3
LEAST_COPIES = 5
BUDGET_S = 8.0  # of the copies; slow memory makes fewer of them


@dataclass(frozen=True)
class Options:
    """``size_bytes`` 0: as much as fits the device. ``warm_s``: a GPU's memory clock needs a while to rise."""

    size_bytes: int = 0
    iterations: int = 20
    warm_s: float = 0.5


def options_of(told: dict[str, Any]) -> Options:
    """Raises ValueError with a sentence."""
    size, iterations = _count(told, "size_bytes", 0), _count(told, "iterations", 20)
    warm_s = told.get("warm_s", 0.5)
    if size and size < 4096:
        raise ValueError(f"size_bytes is {size}: at least 4096")
    if not 1 <= iterations <= 10_000:
        raise ValueError(f"iterations is {iterations}: 1 to 10000")
    if isinstance(warm_s, bool) or not isinstance(warm_s, (int, float)) or not 0 <= warm_s <= 10:
        raise ValueError(f"warm_s is {warm_s!r}: 0 to 10 seconds")
    return Options(size, iterations, float(warm_s))


def _count(told: dict[str, Any], name: str, default: int) -> int:
    value = told.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a count, not {value!r}")
    return value


class Memory(Protocol):
    size_bytes: int

    def copies(self, count: int) -> list[float]: ...

    def intact(self) -> bool: ...


@dataclass(frozen=True)
class Measured:
    """Bytes/s, a copied byte counting twice: it is read and written."""

    iterations: int
    mean_bytes_per_s: float | None
    best_bytes_per_s: float | None
    intact: bool


def measure(memory: Memory, options: Options, progress: Callable[[float], None]) -> Measured:
    """``progress`` is told the share of the copies that are done."""
    warm_until = time.monotonic() + options.warm_s
    memory.copies(WARM_COPIES)
    while time.monotonic() < warm_until:
        memory.copies(BATCH)
    times: list[float] = []
    began = time.monotonic()
    while len(times) < options.iterations:
        if len(times) >= LEAST_COPIES and time.monotonic() - began > BUDGET_S:
            break
        times += memory.copies(min(BATCH, options.iterations - len(times)))
        progress(len(times) / options.iterations)
    moved, total, best = 2 * memory.size_bytes, sum(times), min(times)
    return Measured(
        len(times),
        moved * len(times) / total if total > 0 else None,
        moved / best if best > 0 else None,
        memory.intact(),
    )


class DeviceMemory:
    """``where``: torch's name of the device. Raises RuntimeError where there is no memory."""

    def __init__(self, torch: Any, where: str, size_bytes: int) -> None:
        self._torch = torch
        words = size_bytes // buffers.WORD_BYTES
        self._source = torch.empty(words, dtype=torch.int64, device=where)
        self._target = torch.zeros(words, dtype=torch.int64, device=where)
        buffers.fill(torch, self._source)
        self.size_bytes = words * buffers.WORD_BYTES

    def copies(self, count: int) -> list[float]:
        """Seconds that each of so many copies took."""
        raise NotImplementedError

    def intact(self) -> bool:
        return buffers.is_in(self._torch, self._target)


class CpuMemory(DeviceMemory):
    """Host memory, copied by torch's threads."""

    def __init__(self, torch: Any, size_bytes: int) -> None:
        super().__init__(torch, "cpu", size_bytes)

    def copies(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self._target.copy_(self._source)
            times.append(time.perf_counter() - began)
        return times


class CudaMemory(DeviceMemory):
    """Memory of the first GPU or MIG instance that CUDA shows."""

    def __init__(self, torch: Any, size_bytes: int) -> None:
        super().__init__(torch, "cuda:0", size_bytes)
        torch.cuda.synchronize()

    def copies(self, count: int) -> list[float]:
        """By the GPU's own clock: what the host does meanwhile is not measured."""
        events = [
            (self._torch.cuda.Event(enable_timing=True), self._torch.cuda.Event(enable_timing=True))
            for _ in range(count)
        ]
        for began, ended in events:
            began.record()
            self._target.copy_(self._source)
            ended.record()
        self._torch.cuda.synchronize()
        return [float(began.elapsed_time(ended)) / 1e3 for began, ended in events]


def cuda_free_bytes(torch: Any, cap_bytes: int) -> int:
    """Free memory of the first GPU; from now on this process takes no more than ``cap_bytes``. Raises Unusable."""
    if not torch.cuda.is_available():
        raise Unusable(why_no_gpu(torch), "nvidia-smi; a driver too old for this torch looks like that")
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes), 0)
    free_bytes, _ = torch.cuda.mem_get_info(0)
    return int(free_bytes)


_MIB = 1 << 20

_LEAST_BYTES = 4096


def main() -> None:
    began = time.monotonic()
    try:
        order = child.read_order()
        options = options_of(order.options)
    except (ValueError, TypeError) as error:
        child.failed(f"cannot be done: {error}")
        return
    if len(order.devices) != 1:
        child.failed(f"the memory probe takes one device in a process, not {len(order.devices)}")
        return
    child.end_with_stdin()
    device = order.devices[0]
    try:
        result = _run(device, options)
    except Unusable as error:
        child.failed(error.why, device.uuid, fix=error.fix)
    except (RuntimeError, MemoryError) as error:  # torch's own, out of memory among them
        why, fix = in_words(error)
        child.failed(why, device.uuid, fix=fix)
    else:
        result.node = order.node
        result.seconds = round(time.monotonic() - began, 3)
        child.say(ProbeEvent("result", device=device.uuid, data=asdict(result)))


def _run(device: ProbeDevice, options: Options) -> MemoryResult:
    child.stage("import torch", device.uuid)
    torch = import_torch()
    child.stage("device", device.uuid)
    result = MemoryResult(
        gpu=device.index,
        uuid=device.uuid,
        name=device.name,
        kind=device.kind,
        pci_device=device.pci_device,
        versions=versions(torch),
    )
    memory: Memory
    if device.kind == "cpu":
        memory = _cpu(torch, options.size_bytes, result)
    else:
        memory = _gpu(torch, options.size_bytes, result)
    child.stage("copy", device.uuid, 0.0)
    meter = PhaseMeter(device)
    with meter.phase("copy"):
        found = measure(memory, options, lambda share: child.stage("copy", device.uuid, share))
    meter.close()
    result.phases, result.gaps = meter.phases, meter.gaps
    result.size_bytes = memory.size_bytes
    if memory.size_bytes < options.size_bytes - _LEAST_BYTES:
        result.gaps["size"] = f"{options.size_bytes} bytes were asked for, {memory.size_bytes} fit into the free memory"
    result.iterations = found.iterations
    result.copy_bytes_per_s, result.copy_best_bytes_per_s = found.mean_bytes_per_s, found.best_bytes_per_s
    result.intact = found.intact
    return result


def _gpu(torch: Any, wanted_bytes: int, result: MemoryResult) -> CudaMemory:
    free_bytes = cuda_free_bytes(torch, buffers.GPU_CAP_BYTES)
    size = buffers.fitting(wanted_bytes or buffers.GPU_BYTES, buffers.of_gpu(free_bytes), buffers=2)
    if not size:
        raise Unusable(f"only {free_bytes // _MIB} MiB of the GPU's memory are free", "end what uses the GPU")
    result.code_path = "copy_ between two buffers of the GPU's memory"
    return CudaMemory(torch, size)


def _cpu(torch: Any, wanted_bytes: int, result: MemoryResult) -> CpuMemory:
    """What a copy that leaves the caches behind reaches with torch's threads: no figure of the memory alone."""
    cache = buffers.last_level_cache_bytes()
    enough = max(buffers.CPU_BYTES, buffers.CACHES * (cache or 0))
    size = buffers.fitting(wanted_bytes or enough, buffers.of_host(), buffers=2)
    if not size:
        raise Unusable("no memory is free for two small buffers")
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    caches = f"caches of {cache // _MIB} MiB" if cache else "caches of unknown size"
    if cache and size < buffers.CACHES * cache:
        caches += f", which hold {100 * min(1.0, cache / (2 * size)):.0f} % of both buffers"
    result.threads = threads
    result.code_path = (
        f"torch's copy_, {threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}, {caches}"
    )
    return CpuMemory(torch, size)


__all__ = ["main"]
