"""The real torch with a made-up ``torch.cuda``: one GPU that computes on this machine's CPUs, in a time of its own.

torch = CudaTorch(capability=(9, 0))
Cuda(torch, cap_bytes, where="cpu")
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def tflops(k: int, blas: str) -> float:
    """How fast this GPU is: the better the larger K, and twice as fast with cuBLASLt."""
    return (200 if blas == "cublaslt" else 100) * k / (k + 1000)


class _Flushed(torch.Tensor):
    gpu: CudaTorch

    def zero_(self) -> torch.Tensor:
        self.gpu.is_flushed = True
        return self


class CudaTorch:
    """``log``: what was asked of the GPU, in order; ``before``: of each GEMM its K, and whether the cache was emptied
    right before it.

    ``wrong_from``: of the GEMMs since cuBLASLt was chosen, the first whose output has a wrong bit, as all after it,
    whatever library they are done with.
    """

    def __init__(self, capability: tuple[int, int] = (9, 0), free_bytes: int = 8 << 30, wrong_from: int = 0) -> None:
        self.log: list[str] = []
        self.before: list[tuple[int, bool]] = []
        self.is_flushed = False
        self.blas = "default"
        self.at_s = 0.0  # the GPU's clock: only GEMMs take time
        self._wrong_from = wrong_from
        self._gemms = 0
        self._capability = capability
        self._free_bytes = free_bytes
        self.version = SimpleNamespace(cuda="12.8", hip=None)
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=torch.backends.cuda.matmul, preferred_blas_library=self._prefer),
            cudnn=torch.backends.cudnn,
            mkldnn=torch.backends.mkldnn,
        )
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self._at_s: float | None = None

            def record(self) -> None:
                self._at_s = gpu.at_s

            def synchronize(self) -> None:
                assert self._at_s is not None, "waited for an event that was never recorded"

            def elapsed_time(self, other: Event) -> float:
                assert self._at_s is not None and other._at_s is not None
                return 1e3 * (other._at_s - self._at_s)

        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            get_device_properties=self._properties,
            set_per_process_memory_fraction=self._fraction,
            mem_get_info=lambda: (self._free_bytes, 80 << 30),
            synchronize=lambda: self.log.append("synchronize"),
            Event=Event,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: int, **options: Any) -> torch.Tensor:
        """A buffer of bytes is there to empty the cache."""
        made = torch.empty(*size, **options)
        if options.get("dtype") is not torch.int8:
            return made
        flushed = made.as_subclass(_Flushed)
        flushed.gpu = self
        return flushed

    def mm(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        torch.mm(a, b, out=out)
        self._gemms += 1
        if 0 < self._wrong_from <= self._gemms:
            out.view(-1).view(torch.int16)[5] ^= 1
        (m, k), n = a.shape, b.shape[1]
        self.before.append((k, self.is_flushed))
        self.is_flushed = False
        self.at_s += 2 * m * n * k / tflops(k, self.blas) / 1e12
        return out

    def _prefer(self, library: str) -> None:
        self.blas = library
        if library == "cublaslt":
            self._gemms = 0
        self.log.append(library)

    def _fraction(self, fraction: float, device: int) -> None:
        assert 0 < fraction <= 1 and device == 0
        self.log.append(f"fraction {fraction:.3f}")

    def _properties(self, device: int) -> SimpleNamespace:
        assert device == 0
        major, minor = self._capability
        return SimpleNamespace(
            name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=major, minor=minor, total_memory=80 << 30
        )
