"""A torch whose CUDA GPUs are those of the fake NVML's scenario: what it computes only shows there (effects.py)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from torch import cuda, effects, rates, version
from torch.tensors import Number, Storage, Tensor, equal, named

__version__ = version.__version__
__all__ = ["Tensor", "cuda", "equal", "version"]
float64, float32, bfloat16, float16, float8_e4m3fn = "fp64", "fp32", "bf16", "fp16", "fp8"
int64, int32, int16, int8 = "int64", "int32", "int16", "int8"
_matmul = SimpleNamespace(allow_tf32=False, allow_fp16_accumulation=False, fp32_precision="ieee")
backends = SimpleNamespace(
    cuda=SimpleNamespace(matmul=_matmul, preferred_blas_library=lambda library: None),
    cudnn=SimpleNamespace(is_available=lambda: False),
)
ops = SimpleNamespace(
    aten=SimpleNamespace(_scaled_mm=SimpleNamespace(default=SimpleNamespace(_schema=SimpleNamespace(returns=("out",)))))
)
_gemms = 0


class Generator:
    def manual_seed(self, seed: int) -> Generator:
        self.seed = seed
        return self


def set_grad_enabled(on: bool) -> None:
    pass


def set_float32_matmul_precision(precision: str) -> None:
    _matmul.allow_tf32 = precision == "high" and cuda.capability() >= (8, 0)


def _new(name: str, shape: tuple[Any, ...], device: str, dtype: str) -> Tensor:
    sizes = tuple(shape[0]) if shape and isinstance(shape[0], tuple) else shape
    found = Tensor(Storage(name, 0, 0, "cuda:0" if device == "cuda" else device), sizes, dtype)
    found._storage.count = found.numel()
    return found


def empty(*shape: Any, device: str = "cpu", dtype: str = float32, pin_memory: bool = False) -> Tensor:
    return _new("empty", shape, device, dtype)


def ones(*shape: Any, device: str = "cpu", dtype: str = float32) -> Tensor:
    return _new("ones", shape, device, dtype)


def zeros(*shape: Any, device: str = "cpu", dtype: str = float32, pin_memory: bool = False) -> Any:
    return Number(0) if shape == ((),) else _new("zeros", shape, device, dtype)


def randn(*shape: Any, device: str = "cpu", dtype: str = float32, generator: Generator | None = None) -> Tensor:
    return _new(named("randn", generator.seed if generator else 0), shape, device, dtype)


def arange(*ends: int, out: Tensor | None = None, device: str = "cpu", dtype: str = int64) -> Tensor:
    begin, end = ends if len(ends) == 2 else (0, ends[0])
    found = _new("arange", (end - begin,), device, dtype) if out is None else out
    found._storage.name, found._storage.origin = "arange", begin
    return found


def ne(one: Tensor, other: Tensor) -> SimpleNamespace:
    return SimpleNamespace(any=lambda: not equal(one, other))


def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    kind = a.dtype
    if kind == float32 and (_matmul.fp32_precision == "tf32" or _matmul.allow_tf32):
        kind = "tf32"
    return _gemm(kind, a, b, out)


def _scaled_mm(
    a: Tensor,
    b: Tensor,
    *,
    scale_a: Any,
    scale_b: Any,
    out_dtype: str,
    use_fast_accum: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    if cuda.capability() < (8, 9):
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9")
    return _gemm("fp8", a, b, empty(a.shape[0], b.shape[1], device=a.device, dtype=out_dtype) if out is None else out)


def _gemm(kind: str, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    global _gemms
    (m, k), n = a.shape, b.shape[1]
    _gemms += 1
    shown = "bf16" if kind in ("fp16", "tf32", "fp8") else kind
    effects.queue("bursts" if sys.argv[1:2] == ["bursts"] else shown, rates.gemm_s(kind, m, n, k))
    is_wrong = 0 < rates.WRONG_FROM <= _gemms and _gemms // 8 % 2 == 0
    return out.computed("mm", kind, a.content, b.content, is_wrong)


def add(a: Tensor, b: Any, *, out: Tensor) -> Tensor:
    effects.queue("memory", 2 * out.bytes / rates.MEMORY_B_PER_S)
    return out.computed("add", a.content)
