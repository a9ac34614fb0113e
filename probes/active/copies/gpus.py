"""The GPUs of a node with their buffers: pinned host memory beside each, and one to receive from other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mltop.probes.active.copies.near import Place, on_cpus
from mltop.probes.active.copies.timing import Running
from mltop.probes.active.memory import pattern


class Buffers:
    """Of one GPU (``where``: torch's name). ``sent``, ``returned``: host memory; ``held``, ``received``: its own."""

    def __init__(self, torch: Any, where: str, size_bytes: int, place: Place, pinned: bool = True) -> None:
        words = size_bytes // pattern.WORD_BYTES
        with on_cpus(place.cpus):
            self.sent = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
            self.returned = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        pattern.fill(torch, self.sent)
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
        whole = pattern.is_in(self._torch, target)
        if way == "to_host":
            target.zero_()
        return whole

    def reaches(self, source: int, target: int) -> bool:
        return bool(self._torch.cuda.can_device_access_peer(source, target))

    def start_peer(self, source: int, target: int, copies: int) -> Running:
        return self._start(source, self._buffers[source].held, self._buffers[target].received, copies)

    def peer_arrived(self, target: int) -> bool:
        received = self._buffers[target].received
        whole = pattern.is_in(self._torch, received)
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
