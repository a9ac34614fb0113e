"""One GEMM per data type, always into the same C, and what torch must be told before.

Each function of ``KERNELS`` takes torch and gives ``run(operands)``, which starts one GEMM and returns its output.
``allow_fp16_accumulation`` stays off: with it GeForce GPUs count half the work. ``use_fast_accum`` likewise (fp8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

FORMATS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp32": "float32", "fp8": "float8_e4m3fn"}
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp8": 1}
OUTPUT_BYTES = {**BYTES, "fp8": 2}  # bf16


@dataclass
class Operands:
    """A (M x K), B (K x N), C (M x N) on the device; ``fresh`` (M x N) is what C is refreshed from, or None.

    ``scale``: of A and of B, for fp8.
    """

    a: Any
    b: Any
    c: Any
    fresh: Any = None
    scale: Any = None


Run = Callable[[Operands], Any]


def bf16(torch: Any) -> Run:
    return _mm(torch)


def fp16(torch: Any) -> Run:
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "allow_fp16_accumulation"):  # since torch 2.7
        matmul.allow_fp16_accumulation = False
    return _mm(torch)


def tf32(torch: Any) -> Run:
    _set_fp32_precision(torch, tf32=True)
    return _mm(torch)


def fp32(torch: Any) -> Run:
    _set_fp32_precision(torch, tf32=False)
    return _mm(torch)


def fp8(torch: Any) -> Run:
    """B must be column-major. ``_scaled_mm`` is private but old and takes ``out``; what replaces it does not."""
    if not hasattr(torch, "_scaled_mm"):
        return _scaled_mm(torch)

    def run(operands: Operands) -> Any:
        return torch._scaled_mm(
            operands.a,
            operands.b,
            scale_a=operands.scale,
            scale_b=operands.scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=False,
            out=operands.c,
        )

    return run


KERNELS: dict[str, Callable[[Any], Run]] = {"bf16": bf16, "fp16": fp16, "tf32": tf32, "fp32": fp32, "fp8": fp8}


def _mm(torch: Any) -> Run:
    def run(operands: Operands) -> Any:
        return torch.mm(operands.a, operands.b, out=operands.c)

    return run


def _scaled_mm(torch: Any) -> Run:
    """torch.nn.functional.scaled_mm, since 2.10: its output is new each time."""
    functional = torch.nn.functional
    whole = functional.ScalingType.TensorWise

    def run(operands: Operands) -> Any:
        return functional.scaled_mm(
            operands.a,
            operands.b,
            operands.scale,
            whole,
            operands.scale,
            whole,
            output_dtype=torch.bfloat16,
            use_fast_accum=False,
        )

    return run


def _set_fp32_precision(torch: Any, tf32: bool) -> None:
    """Explicit either way: the default of float32 GEMMs has changed between versions of torch."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9, where the older name warns
        matmul.fp32_precision = "tf32" if tf32 else "ieee"
    else:
        matmul.allow_tf32 = tf32
