"""A rank's own work between two collectives: one small GEMM, so that a slow rank is named by what it does alone."""

from __future__ import annotations

from typing import Any

CPU_SIZE = 256  # 33 MFLOP: a third of a millisecond of one core
GPU_SIZE = 4096  # 137 GFLOP: about 0.2 ms of an H100


class OwnWork:
    def __init__(self, device: Any) -> None:
        """Raises RuntimeError when memory does not suffice."""
        import torch

        is_gpu = device.type == "cuda"
        size, dtype = (GPU_SIZE, torch.float16) if is_gpu else (CPU_SIZE, torch.float32)
        source = torch.Generator().manual_seed(1)
        self._a, self._b = (torch.randn(size, size, generator=source).to(dtype).to(device) for _ in range(2))
        self._out = torch.empty(size, size, dtype=dtype, device=device)

    def __call__(self) -> None:
        import torch

        torch.mm(self._a, self._b, out=self._out)
