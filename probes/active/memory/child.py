"""``main`` of the memory probe: one device, one order, one result."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.memory import measure, room
from mltop.probes.active.memory.device import CpuMemory, CudaMemory, cuda_free_bytes
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_errors import in_words
from mltop.probes.active.torch_side import Unusable, import_torch, versions
from mltop.probes.model.probe import MemoryResult, ProbeDevice, ProbeEvent

_MIB = 1 << 20

_LEAST_BYTES = 4096


def main() -> None:
    began = time.monotonic()
    try:
        order = child.read_order()
        options = measure.options_of(order.options)
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


def _run(device: ProbeDevice, options: measure.Options) -> MemoryResult:
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
    memory: measure.Memory
    if device.kind == "cpu":
        memory = _cpu(torch, options.size_bytes, result)
    else:
        memory = _gpu(torch, options.size_bytes, result)
    child.stage("copy", device.uuid, 0.0)
    meter = PhaseMeter(device)
    with meter.phase("copy"):
        found = measure.measure(memory, options, lambda share: child.stage("copy", device.uuid, share))
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
    free_bytes = cuda_free_bytes(torch, room.GPU_CAP_BYTES)
    size = room.fitting(wanted_bytes or room.GPU_BYTES, room.of_gpu(free_bytes), buffers=2)
    if not size:
        raise Unusable(f"only {free_bytes // _MIB} MiB of the GPU's memory are free", "end what uses the GPU")
    result.code_path = "copy_ between two buffers of the GPU's memory"
    return CudaMemory(torch, size)


def _cpu(torch: Any, wanted_bytes: int, result: MemoryResult) -> CpuMemory:
    """What a copy that leaves the caches behind reaches with torch's threads: no figure of the memory alone."""
    cache = room.last_level_cache_bytes()
    enough = max(room.CPU_BYTES, room.CACHES * (cache or 0))
    size = room.fitting(wanted_bytes or enough, room.of_host(), buffers=2)
    if not size:
        raise Unusable("no memory is free for two small buffers")
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    caches = f"caches of {cache // _MIB} MiB" if cache else "caches of unknown size"
    if cache and size < room.CACHES * cache:
        caches += f", which hold {100 * min(1.0, cache / (2 * size)):.0f} % of both buffers"
    result.threads = threads
    result.code_path = (
        f"torch's copy_, {threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}, {caches}"
    )
    return CpuMemory(torch, size)
