"""Which library and instruction set does a GEMM: without that, a healthy CPU reads as half broken."""

from __future__ import annotations

import re
from typing import Any

from mltop.probes.system import paths

# What does the multiplying of each type, best first: flag of /proc/cpuinfo, name.
_UNITS = {
    "bf16": (("amx_bf16", "AMX"), ("avx512_bf16", "AVX512_BF16"), ("bf16", "BF16")),
    "fp16": (("amx_fp16", "AMX"), ("avx512_fp16", "AVX512_FP16"), ("asimdhp", "FP16")),
}
_BLAS = {"mkl": "MKL", "open": "OpenBLAS", "openblas": "OpenBLAS", "nvpl": "NVPL", "accelerate": "Accelerate"}


def of_cpu(torch: Any, dtype: str, cores: int) -> str:
    """E.g. "oneDNN 3.12.0, AVX512 without AVX512_BF16, 2 threads on 2 cores"."""
    settings = torch.__config__.show()
    onednn = _supported_by_onednn(torch, dtype)
    library = _onednn(settings) if onednn else "torch's own kernels" if dtype in _UNITS else _blas(settings)
    words = [library, instructions(torch, dtype, cpu_flags())]
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
    precision = {"tf32": "TF32 on", "fp32": "TF32 off", "fp16": "FP32 accumulation"}.get(dtype)
    return f"{name}, {precision}" if precision else name


def instructions(torch: Any, dtype: str, flags: frozenset[str]) -> str:
    """torch's choice (AVX2, AVX512, NEON, …) and what the CPU has for this type."""
    capability = "default instructions"
    if hasattr(torch.backends, "cpu"):
        capability = torch.backends.cpu.get_cpu_capability()
    units = _UNITS.get(dtype, ())
    found = [name for flag, name in units if flag in flags]
    if found:
        return f"{capability} with {found[0]}"
    return f"{capability} without {units[1][1]}" if units and capability.startswith("AVX") else capability


def versions(torch: Any) -> dict[str, str]:
    settings = torch.__config__.show()
    return {"torch": str(torch.__version__), "blas": _blas(settings), "onednn": _onednn(settings)}


def cpu_info(field: str) -> str:
    """The first value of a field of /proc/cpuinfo, "" where there is none."""
    try:
        with open(paths.proc("cpuinfo"), encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def cpu_flags() -> frozenset[str]:
    return frozenset((cpu_info("flags") or cpu_info("Features")).split())


def _supported_by_onednn(torch: Any, dtype: str) -> bool:
    """float32 goes to the BLAS library; of bf16 and fp16 torch asks oneDNN (aten/src/ATen/native/mkldnn/Matmul.cpp)."""
    if dtype not in _UNITS or not torch.backends.mkldnn.is_available():
        return False
    try:
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")())
    except (AttributeError, RuntimeError):  # an older torch
        return dtype == "bf16"


def _onednn(settings: str) -> str:
    found = re.search(r"MKL-DNN v([\d.]+)", settings)
    return f"oneDNN {found.group(1)}" if found else "oneDNN"


def _blas(settings: str) -> str:
    found = re.search(r"BLAS_INFO=(\w+)", settings)
    name = _BLAS.get(found.group(1).lower(), found.group(1)) if found else "BLAS"
    version = re.search(r"Math Kernel Library Version ([\d.]+)", settings)
    return f"{name} {version.group(1)}" if version and name == "MKL" else name
