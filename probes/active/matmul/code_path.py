"""Which library and instruction set does a GEMM: without that, a healthy CPU reads as half broken."""

from __future__ import annotations

import re
from typing import Any

from mltop.probes.active.host import cpu_info
from mltop.probes.model.probe_kinds import DTYPE_OF

_BLAS = {"mkl": "MKL", "open": "OpenBLAS", "openblas": "OpenBLAS", "nvpl": "NVPL", "accelerate": "Accelerate"}


def of_cpu(torch: Any, dtype: str, cores: int) -> str:
    """E.g. "oneDNN 3.12.0, AVX512 without AVX512_BF16, 2 threads on 2 cores"."""
    settings = torch.__config__.show()
    if not DTYPE_OF[dtype].units:  # float32
        library = _blas(settings)
    # Of bf16 and fp16 torch asks oneDNN (aten/src/ATen/native/mkldnn/Matmul.cpp).
    elif torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")():
        library = _onednn(settings)
    else:
        library = "torch's own kernels"
    words = [library, instructions(torch, dtype, frozenset((cpu_info("flags") or cpu_info("Features")).split()))]
    vendor = cpu_info("vendor_id")
    if library.startswith("MKL") and vendor not in ("", "GenuineIntel"):
        words.append(f"MKL takes AVX2 kernels on {vendor}")
    threads = torch.get_num_threads()
    words.append(f"{threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}")
    return ", ".join(words)


def of_gpu(torch: Any, dtype: str, library: str) -> str:
    """``library``: what was preferred, "" or "cublaslt"."""
    name = "hipBLAS" if getattr(torch.version, "hip", None) else "cuBLAS"
    if dtype == "fp8":
        return f"{name}Lt, fast accumulation off"
    if library:
        name += "Lt"
    precision = DTYPE_OF[dtype].precision
    return f"{name}, {precision}" if precision else name


def instructions(torch: Any, dtype: str, flags: frozenset[str]) -> str:
    """torch's choice (AVX2, AVX512, NEON, …) and what the CPU has for this type."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    units = DTYPE_OF[dtype].units
    present = [name for flag, name in units if flag in flags]
    if present:
        return f"{capability} with {present[0]}"
    return f"{capability} without {units[1][1]}" if units and capability.startswith("AVX") else capability


def versions(torch: Any) -> dict[str, str]:
    settings = torch.__config__.show()
    return {"torch": str(torch.__version__), "blas": _blas(settings), "onednn": _onednn(settings)}


def _onednn(settings: str) -> str:
    version = re.search(r"MKL-DNN v([\d.]+)", settings)
    return f"oneDNN {version.group(1)}" if version else "oneDNN"


def _blas(settings: str) -> str:
    info = re.search(r"BLAS_INFO=(\w+)", settings)
    name = _BLAS.get(info.group(1).lower(), info.group(1)) if info else "BLAS"
    version = re.search(r"Math Kernel Library Version ([\d.]+)", settings)
    return f"{name} {version.group(1)}" if version and name == "MKL" else name
