"""The little that a probe asks of a device: all that differs between CUDA and CPUs.

Everything else is the same torch code for both, so that it is tested where there is no GPU.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from mltop.probes.active.torch_support import why_no_gpu

FLUSH_BYTES = 256 << 20  # mamf-finder's: more than any L2
_WORKSPACE_BYTES = 512 << 20  # for cuBLAS, comparisons and what the allocator rounds up


class Timer(Protocol):
    """Of one stretch of work; ``seconds`` after the device was waited for."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait(self) -> None:
        """Until the work before ``stop`` is done."""

    def seconds(self) -> float: ...


class Device(Protocol):
    """``where``: torch's name of it. ``flushes``: the mamf protocol is for it (L2 flush, C refreshed)."""

    torch: Any
    where: str
    flushes: bool
    name: str
    multiprocessors: int | None

    def timer(self) -> Timer: ...

    def flush(self) -> None:
        """Empties the L2 cache."""

    def wait(self) -> None:
        """Until all work is done."""

    def room_bytes(self, cap_bytes: int) -> int:
        """Memory for operands when the probe may take ``cap_bytes`` in all."""


class Cpu:
    """The processors that this process may use."""

    where = "cpu"
    flushes = False
    multiprocessors: int | None = None

    def __init__(self, torch: Any, name: str = "") -> None:
        self.torch = torch
        self.name = name

    def timer(self) -> CpuTimer:
        return CpuTimer()

    def flush(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def room_bytes(self, cap_bytes: int) -> int:
        return cap_bytes


class CpuTimer:
    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds(self) -> float:
        return self._stopped - self._started


class Cuda:
    """The first GPU (or MIG instance) that CUDA shows; raises RuntimeError when there is none."""

    flushes = True

    def __init__(self, torch: Any, cap_bytes: int, where: str = "cuda:0", flush_bytes: int = FLUSH_BYTES) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(why_no_gpu(torch))
        self.torch = torch
        self.where = where
        properties = torch.cuda.get_device_properties(0)
        self.name: str = properties.name
        self.multiprocessors: int | None = properties.multi_processor_count
        self.capability: tuple[int, int] = (properties.major, properties.minor)
        self._total_bytes: int = properties.total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / self._total_bytes), 0)
        self._flushed = torch.empty(flush_bytes, dtype=torch.int8, device=where)

    def timer(self) -> CudaTimer:
        return CudaTimer(self.torch)

    def flush(self) -> None:
        self._flushed.zero_()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def room_bytes(self, cap_bytes: int) -> int:
        free_bytes, _ = self.torch.cuda.mem_get_info()
        room = min(cap_bytes - self._flushed.numel(), free_bytes) - _WORKSPACE_BYTES
        if room <= 0:
            raise RuntimeError(f"out of memory: {free_bytes / 2**30:.1f} GiB of the GPU's memory are free")
        return int(room)


class CudaTimer:
    """A pair of CUDA events: the GPU's own clock, so that waiting for the host is not measured."""

    def __init__(self, torch: Any) -> None:
        self._from = torch.cuda.Event(enable_timing=True)
        self._to = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        self._from.record()

    def stop(self) -> None:
        self._to.record()

    def wait(self) -> None:
        self._to.synchronize()

    def seconds(self) -> float:
        return float(self._from.elapsed_time(self._to)) / 1e3
