"""The little that probes ask of a device: all that differs between CUDA and CPUs.

Everything else is the same torch code for both, so that it is tested where there is no GPU.
"""

from __future__ import annotations

import time
from typing import Any, Union

from mltop.probes.active.torch_support import why_no_gpu

GPU_CAP_BYTES = 4 << 30  # of a GPU's memory, for everything
_WORKSPACE_BYTES = 512 << 20  # for cuBLAS, comparisons and what the allocator rounds up


class CpuTimer:
    """Times one stretch of work, which is done when the calls return."""

    def __init__(self) -> None:
        self._started = self._stopped = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def seconds(self) -> float:
        return self._stopped - self._started


class CudaTimer:
    """Two CUDA events on the current stream: the GPU's own clock, so that waiting for the host is not measured."""

    def __init__(self, torch: Any) -> None:
        self._from = torch.cuda.Event(enable_timing=True)
        self._to = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        self._from.record()

    def stop(self) -> None:
        self._to.record()

    def done(self) -> bool:
        """Whether the work before ``stop`` is."""
        return bool(self._to.query())

    def wait(self) -> None:
        """Waits until the work before ``stop`` is done; then there are ``seconds``."""
        self._to.synchronize()

    def seconds(self) -> float:
        return float(self._from.elapsed_time(self._to)) / 1e3


class Cpu:
    """The processors that this process may use. ``where``: torch's name of it; ``flushes``: the mamf protocol is for it
    (L2 flushed, C refreshed).
    """

    where = "cpu"
    flushes = False
    multiprocessors: int | None = None
    capability: tuple[int, int] | None = None

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


class Cuda:
    """The first GPU (or MIG instance) that CUDA shows; raises RuntimeError when there is none. This process takes no
    more than ``cap_bytes`` of its memory from now on. ``flush_bytes``: more than its L2 cache, to empty that.
    """

    flushes = True

    def __init__(self, torch: Any, cap_bytes: int, where: str = "cuda:0", flush_bytes: int = 0) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(why_no_gpu(torch))
        self.torch = torch
        self.where = where
        properties = torch.cuda.get_device_properties(0)
        self.name: str = properties.name
        self.multiprocessors: int | None = properties.multi_processor_count
        self.capability: tuple[int, int] | None = (properties.major, properties.minor)
        cap_memory(torch, cap_bytes)
        self._flushed = torch.empty(flush_bytes, dtype=torch.int8, device=where)

    def timer(self) -> CudaTimer:
        return CudaTimer(self.torch)

    def flush(self) -> None:
        """Empties the L2 cache."""
        self._flushed.zero_()

    def wait(self) -> None:
        """Waits until all work is done."""
        self.torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0])

    def room_bytes(self, cap_bytes: int) -> int:
        """Memory for operands when the probe may take ``cap_bytes`` in all."""
        free_bytes = self.free_bytes()
        room = min(cap_bytes - self._flushed.numel(), free_bytes) - _WORKSPACE_BYTES
        if room <= 0:
            raise RuntimeError(f"out of memory: {free_bytes / 2**30:.1f} GiB of the GPU's memory are free")
        return int(room)


Timer = Union[CpuTimer, CudaTimer]
Device = Union[Cpu, Cuda]


def cap_memory(torch: Any, cap_bytes: int, index: int = 0) -> None:
    """Limits what this process takes of this GPU's memory from now on."""
    total_bytes = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes), index)
