"""The GPUs of a node with their buffers: pinned host memory beside each, and one to receive from other GPUs.

``main`` of the copies probe: all GPUs of a node in one process, because they share what is between them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mltop.probes.active import buffers, child
from mltop.probes.active.copies.measure import PEER_ITERATIONS, Measurement, Plan, Running
from mltop.probes.active.deadlines import deadline_s
from mltop.probes.active.host import Place, on_cpus, place_of
from mltop.probes.active.memory import Options, options_of
from mltop.probes.active.nvml import PcieLinks
from mltop.probes.active.torch_support import Unusable, import_torch, in_words, versions, why_no_gpu
from mltop.probes.model.probe import CopiesResult, ProbeEvent


class Buffers:
    """Of one GPU (``where``: torch's name). ``sent``, ``returned``: host memory; ``held``, ``received``: its own."""

    def __init__(self, torch: Any, where: str, size_bytes: int, place: Place, pinned: bool = True) -> None:
        words = size_bytes // buffers.WORD_BYTES
        with on_cpus(place.cpus):
            self.sent = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
            self.returned = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        buffers.fill(torch, self.sent)
        self.held = torch.zeros(words, dtype=torch.int64, device=where)
        self.received = torch.zeros(words, dtype=torch.int64, device=where)

    def of(self, way: str) -> tuple[Any, Any]:
        """(source, target)"""
        return (self.sent, self.held) if way == "to_device" else (self.held, self.returned)


class CudaNode:
    """As many GPUs as there are places, in the order of CUDA_VISIBLE_DEVICES. Raises RuntimeError."""

    def __init__(self, torch: Any, places: Sequence[Place], size_bytes: int, cap_bytes: int) -> None:
        self._torch = torch
        self._buffers = []
        for number, place in enumerate(places):
            total_bytes = torch.cuda.get_device_properties(number).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes), number)
            self._buffers.append(Buffers(torch, f"cuda:{number}", size_bytes, place))
        for number in range(len(places)):
            torch.cuda.synchronize(number)

    def start(self, place: int, way: str, copies: int) -> Running:
        source, target = self._buffers[place].of(way)
        return self._start(place, source, target, copies)

    def arrived(self, place: int, way: str) -> bool:
        target = self._buffers[place].of(way)[1]
        whole = buffers.is_in(self._torch, target)
        if way == "to_host":
            target.zero_()
        return whole

    def reaches(self, source: int, target: int) -> bool:
        return bool(self._torch.cuda.can_device_access_peer(source, target))

    def start_peer(self, source: int, target: int, copies: int) -> Running:
        return self._start(source, self._buffers[source].held, self._buffers[target].received, copies)

    def peer_arrived(self, target: int) -> bool:
        received = self._buffers[target].received
        whole = buffers.is_in(self._torch, received)
        received.zero_()
        self._torch.cuda.synchronize(target)
        return whole

    def _start(self, place: int, source: Any, target: Any, copies: int) -> CudaCopies:
        """torch puts a copy between devices on the current stream of the source's device, where the events are, too."""
        with self._torch.cuda.device(place):
            running = CudaCopies(self._torch)
            for _ in range(copies):
                target.copy_(source, non_blocking=True)
            running.end()
        return running


class CudaCopies:
    """Copies between two events of the current stream."""

    def __init__(self, torch: Any) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)
        self._began.record()

    def end(self) -> None:
        self._ended.record()

    def done(self) -> bool:
        return bool(self._ended.query())

    def seconds(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1e3


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
    node = CudaNode(torch, places, size, buffers.GPU_CAP_BYTES)
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
    on_device = buffers.fitting(wanted_bytes, buffers.of_gpu(free_bytes), _ON_DEVICE)
    if not on_device:
        raise Unusable(f"only {free_bytes // _MIB} MiB of a GPU's memory are free", "end what uses the GPUs")
    size = buffers.fitting(on_device, buffers.of_host(), _ON_HOST * gpus)
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
