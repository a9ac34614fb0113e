"""A torch whose CUDA GPUs are those of the fake NVML's scenario: what it computes only shows there (effects.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import cuda, effects, version

__version__ = version.__version__
__all__ = ["cuda", "version"]
float32, bfloat16 = "fp32", "bf16"
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)))


class Tensor:
    def __init__(self, count: int, dtype: str, device: str) -> None:
        self.bytes = count * (2 if dtype == bfloat16 else 4)
        self.dtype, self.device = dtype, device

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        if other.device == "cpu":
            effects.queue("host", self.bytes / 50e9)
        else:
            effects.queue("copy", 2 * self.bytes / 3e12)
        return self


def empty(*shape: int, device: str = "cpu", dtype: str, pin_memory: bool = False) -> Tensor:
    assert device == "cuda" or pin_memory
    count = 1
    for size in shape:
        count *= size
    return Tensor(count, dtype, device)


randn = empty


def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    side = (out.bytes / (2 if out.dtype == bfloat16 else 4)) ** 0.5
    kind = "bursts" if out.dtype == bfloat16 and side < 8192 else out.dtype  # the small GEMMs are those with gaps
    effects.queue(kind, 2 * side**3 / (700e12 if out.dtype == bfloat16 else 50e12))
    return out


def add(a: Tensor, b: Any, *, out: Tensor) -> Tensor:
    effects.queue("memory", 2 * out.bytes / 3e12)
    return out
