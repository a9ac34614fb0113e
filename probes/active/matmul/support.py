"""What a device cannot do, in plain sentences; pure."""

from __future__ import annotations

from typing import Any

from mltop.probes.active.matmul.gemm import FORMATS

# Compute capability that brought the format to the tensor cores (CUDA C++ programming guide, "Compute capabilities").
_SINCE = {"bf16": ((8, 0), "Ampere"), "tf32": ((8, 0), "Ampere"), "fp8": ((8, 9), "Ada and Hopper")}
_LABELS = {"bf16": "BF16", "fp16": "FP16", "tf32": "TF32", "fp32": "FP32", "fp8": "FP8"}


def refusal(torch: Any, dtype: str, capability: tuple[int, int] | None, name: str) -> tuple[str, str] | None:
    """Why this data type cannot be measured, and what can be; None when it can. ``capability`` None: of CPUs."""
    if dtype not in FORMATS:
        return f"no such data type: {dtype}", f"one of {', '.join(FORMATS)}"
    label = _LABELS[dtype]
    if not hasattr(torch, FORMATS[dtype]):
        return f"torch {torch.__version__} has no {label} (2.1 and newer have)", "--dtype bf16"
    if capability is None:
        gpus_only = f"{label} GEMMs are of GPUs; CPUs have no instructions for them"
        return (gpus_only, "--dtype bf16 or --dtype fp32") if dtype in ("fp8", "tf32") else None
    if dtype == "fp8" and not _multiplies_fp8(torch):
        return f"torch {torch.__version__} has no FP8 GEMM that can be measured (2.5 and newer have)", "--dtype bf16"
    return _too_old(dtype, capability, name)


def _too_old(dtype: str, capability: tuple[int, int], name: str) -> tuple[str, str] | None:
    since, generation = _SINCE.get(dtype, ((0, 0), ""))
    if capability >= since:
        return None
    have = f"{name} has compute capability {capability[0]}.{capability[1]}"
    fix = "--dtype fp16" if capability < (8, 0) else "--dtype bf16"
    return f"{have}: {_LABELS[dtype]} tensor cores came with {since[0]}.{since[1]} ({generation})", fix


def _multiplies_fp8(torch: Any) -> bool:
    """Until 2.4 _scaled_mm gave a second output (amax), and took two."""
    if hasattr(torch, "_scaled_mm"):
        return len(torch.ops.aten._scaled_mm.default._schema.returns) == 1
    return hasattr(torch.nn.functional, "scaled_mm")
