"""The memory probe's process: how fast one device copies within its own memory.

One buffer is copied to another again and again: mean, best, and whether the last copy is right.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable

from mltop.probes.active import buffers, child
from mltop.probes.active.device import GPU_CAP_BYTES, Cpu, Cuda, Device
from mltop.probes.active.host import last_level_cache_bytes
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_support import Unusable, failures_told, import_torch, versions
from mltop.probes.model.probe import MemoryResult, ProbeDevice, ProbeEvent

BATCH = 5
WARM_COPIES = 3
LEAST_COPIES = 5
BUDGET_S = 8.0  # of the copies; slow memory makes fewer of them
GPU_BYTES, CPU_BYTES = 1 << 30, 256 << 20
CACHES = 4  # times what the caches hold


def main() -> None:
    began, asked = time.monotonic(), buffers.read_order()
    if asked is None:
        return
    order, options = asked
    if len(order.devices) != 1:
        child.failed(f"the memory probe takes one device in a process, not {len(order.devices)}")
        return
    child.end_with_stdin()
    device = order.devices[0]
    with failures_told(device.uuid):
        result = MemoryResult(**order.about(device))
        _run(device, options, result)
        result.seconds = round(time.monotonic() - began, 3)
        child.say(ProbeEvent("result", device=device.uuid, data=asdict(result)))


def _run(device: ProbeDevice, options: buffers.Options, result: MemoryResult) -> None:
    child.stage("import torch", device.uuid)
    torch = import_torch()
    child.stage("device", device.uuid)
    memory = (_on_cpus if device.kind == "cpu" else _on_gpu)(torch, options.size_bytes, result)
    child.stage("copy", device.uuid, 0.0)
    meter = PhaseMeter(device)
    with meter.phase("copy"):
        measured = measure(memory, options, lambda share: child.stage("copy", device.uuid, share))
    result.phases, result.gaps, result.versions = meter.phases, meter.gaps, versions(torch)
    result.size_bytes = memory.size_bytes
    if memory.size_bytes < options.size_bytes - buffers.LEAST_ASKED_BYTES:
        result.gaps["size"] = f"{options.size_bytes} bytes were asked for, {memory.size_bytes} fit into the free memory"
    result.iterations = measured.iterations
    result.copy_bytes_per_s, result.copy_best_bytes_per_s = measured.mean_bytes_per_s, measured.best_bytes_per_s
    result.intact = measured.intact


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

    def copies(self, count: int) -> list[float]:
        """Seconds of each, by the device's own clock: what the host does meanwhile is not measured."""
        timers = [self._device.timer() for _ in range(count)]
        for timer in timers:
            timer.start()
            self._target.copy_(self._source)
            timer.stop()
        self._device.wait()
        return [timer.seconds() for timer in timers]

    def intact(self) -> bool:
        return buffers.is_filled(self._device.torch, self._target)


@dataclass(frozen=True)
class Measured:
    """Bytes/s, a copied byte counting twice: it is read and written."""

    iterations: int
    mean_bytes_per_s: float | None
    best_bytes_per_s: float | None
    intact: bool


def measure(memory: DeviceMemory, options: buffers.Options, progress: Callable[[float], None]) -> Measured:
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
    mean = moved * len(times) / total if total > 0 else None
    return Measured(len(times), mean, moved / best if best > 0 else None, memory.intact())
