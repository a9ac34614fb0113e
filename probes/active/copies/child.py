"""``main`` of the copies probe: all GPUs of a node in one process, because they share what is between them."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.copies.gpus import CudaNode
from mltop.probes.active.copies.measure import PEER_ITERATIONS, Measurement
from mltop.probes.active.copies.near import Place, place_of
from mltop.probes.active.copies.pcie import PcieLinks
from mltop.probes.active.copies.timing import Plan
from mltop.probes.active.deadlines import deadline_s
from mltop.probes.active.memory import room
from mltop.probes.active.memory.measure import Options, options_of
from mltop.probes.active.torch_errors import in_words
from mltop.probes.active.torch_side import Unusable, import_torch, versions, why_no_gpu
from mltop.probes.model.probe import CopiesResult, ProbeEvent

SIZE_BYTES = 256 << 20
_MIB = 1 << 20
_ON_DEVICE, _ON_HOST = 2, 2  # buffers of each GPU


def main() -> None:
    try:
        order = child.read_order()
        options = options_of(order.options)
    except (ValueError, TypeError) as error:
        child.failed(f"cannot be done: {error}")
        return
    gpus = [device for device in order.devices if device.kind == "gpu"]
    for device in order.devices:
        if device.kind == "mig":
            child.failed("copies of MIG instances are not measured: they share their GPU's link", device.uuid)
    if not gpus:
        if not any(device.kind == "mig" for device in order.devices):
            child.failed("no GPU here: copies need one")
        return
    order.devices = gpus
    child.end_with_stdin()
    try:
        _run(order, options)
    except Unusable as error:
        child.failed(error.why, fix=error.fix)
    except (RuntimeError, MemoryError) as error:  # torch's own
        why, fix = in_words(error)
        child.failed(why, fix=fix)


def _run(order: child.Order, options: Options) -> None:
    began = time.monotonic()
    child.stage("import torch")
    torch = import_torch()
    child.stage("device")
    _count(torch, len(order.devices))
    links = PcieLinks()
    places = [place_of(links.address(device.uuid)) for device in order.devices]
    size = _size(torch, options.size_bytes or SIZE_BYTES, len(order.devices))
    results = _results(order, versions(torch), places, links)
    for result in results:
        result.size_bytes = size
    node = CudaNode(torch, places, size, room.GPU_CAP_BYTES)
    stopped = Measurement(node, results, links, _plans(order, options, size), _progress).run()
    for result in results:
        result.seconds = round(time.monotonic() - began, 3)
    _tell(results, stopped)
    if stopped:
        sys.stdout.flush()
        os._exit(0)  # leaving CUDA the usual way would wait for what hangs


def _count(torch: Any, wanted: int) -> None:
    if not torch.cuda.is_available():
        raise Unusable(why_no_gpu(torch), "nvidia-smi; a driver too old for this torch looks like that")
    found = torch.cuda.device_count()
    if found != wanted:
        raise Unusable(f"torch sees {found} of {wanted} GPUs", "mltop check; or name the GPUs that work")


def _size(torch: Any, wanted_bytes: int, gpus: int) -> int:
    free_bytes = min(torch.cuda.mem_get_info(number)[0] for number in range(gpus))
    on_device = room.fitting(wanted_bytes, room.of_gpu(free_bytes), _ON_DEVICE)
    if not on_device:
        raise Unusable(f"only {free_bytes // _MIB} MiB of a GPU's memory are free", "end what uses the GPUs")
    size = room.fitting(on_device, room.of_host(), _ON_HOST * gpus)
    if not size:
        raise Unusable(f"the host has no memory for the pinned buffers of {gpus} GPUs", "free memory of the node")
    return size


def _results(
    order: child.Order, with_versions: dict[str, str], places: list[Place], links: PcieLinks
) -> list[CopiesResult]:
    results = []
    for device, place in zip(order.devices, places):
        most = links.most(device.uuid)
        result = CopiesResult(
            node=order.node,
            gpu=device.index,
            uuid=device.uuid,
            name=device.name,
            pci_device=device.pci_device,
            versions=dict(with_versions),
            pcie_gen_max=most.gen,
            pcie_width_max=most.width,
            numa_node=place.numa_node,
            near=place.near,
        )
        if links.why:
            result.gaps["pcie"] = links.why
        results.append(result)
    return results


def _plans(order: child.Order, options: Options, size: int) -> dict[str, Plan]:
    """Half of each stage's time is for copies: a slow link makes fewer of them, and a hang is told in time."""
    gpus = len(order.devices)
    parts = {"to device": gpus, "to host": gpus, "together": 2, "peers": max(1, gpus * (gpus - 1))}
    plans = {}
    for stage, count in parts.items():
        limit_s = deadline_s(order.kind, stage, order.deadlines_s)
        iterations = min(options.iterations, PEER_ITERATIONS) if stage == "peers" else options.iterations
        plans[stage] = Plan(size, iterations, limit_s / 2 / count, limit_s / 4)
    return plans


def _progress(stage: str, share: float) -> None:
    child.stage(stage, fraction=round(share, 3))


def _tell(results: list[CopiesResult], stopped: str) -> None:
    """A GPU of which nothing was measured has failed."""
    if stopped:
        child.say(ProbeEvent("note", text=f"{stopped}: nothing was measured after that"))
    for result in results:
        known = (result.to_device_bytes_per_s, result.to_host_bytes_per_s, *(one.bytes_per_s for one in result.peers))
        if any(value is not None for value in known):
            child.say(ProbeEvent("result", device=result.uuid, data=asdict(result)))
        else:
            why = next(iter(result.gaps.values()), stopped or "nothing was measured")
            child.failed(why, result.uuid)
