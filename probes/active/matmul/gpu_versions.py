"""Versions of what a GEMM on a GPU depends on: results are compared only between equal ones."""

from __future__ import annotations

import ctypes
from typing import Any

from mltop.probes.active.torch_side import driver as kernel_module


def versions(torch: Any, driver: str) -> dict[str, str]:
    """torch, cuda or hip, cublas, cudnn, driver, arch: those that are known."""
    try:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    except RuntimeError:  # another cuDNN than torch was built with: no GEMM needs it
        cudnn = None
    found = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cublas": cublas(_loaded("libcublas.so")),
        "cudnn": None if cudnn is None else str(cudnn),
        "driver": driver or kernel_module(),
    }
    return {name: version for name, version in found.items() if version}


def cublas(path: str) -> str:
    """Of the library that this process has loaded (cublasGetProperty: major, minor, patch), "" without it."""
    if not path:
        return ""
    try:
        get_property = ctypes.CDLL(path).cublasGetProperty
    except (OSError, AttributeError):
        return ""
    parts = []
    for which in range(3):
        value = ctypes.c_int()
        if get_property(which, ctypes.byref(value)) != 0:
            return ""
        parts.append(str(value.value))
    return ".".join(parts)


def _loaded(name: str) -> str:
    """Path of a library of this process (proc_pid_maps(5))."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return next((line.split(None, 5)[5].strip() for line in file if f"/{name}" in line), "")
    except OSError:
        return ""
