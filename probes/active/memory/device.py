"""The two buffers of a device, and copying from one to the other: all that differs between CUDA and CPUs."""

from __future__ import annotations

import time
from typing import Any

from mltop.probes.active.memory import pattern
from mltop.probes.active.torch_side import Unusable, why_no_gpu


class DeviceMemory:
    """``where``: torch's name of the device. Raises RuntimeError where there is no memory."""

    def __init__(self, torch: Any, where: str, size_bytes: int) -> None:
        self._torch = torch
        words = size_bytes // pattern.WORD_BYTES
        self._source = torch.empty(words, dtype=torch.int64, device=where)
        self._target = torch.zeros(words, dtype=torch.int64, device=where)
        pattern.fill(torch, self._source)
        self.size_bytes = words * pattern.WORD_BYTES

    def copies(self, count: int) -> list[float]:
        """Seconds that each of so many copies took."""
        raise NotImplementedError

    def intact(self) -> bool:
        return pattern.is_in(self._torch, self._target)


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
