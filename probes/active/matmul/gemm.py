"""One GEMM of each data type, always into the same C: operands, what torch must be told before, what cannot be done.

Operands are seeded random numbers, uploaded once and verified, as views of one buffer each. Random, not constant: zeros
need so little power that an A100 gave 295 TFLOPS with them and 257 with random numbers.

And which library and instruction set does it: without that, a healthy CPU reads as half broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.active.device import Device
from mltop.probes.active.host import cpu_info
from mltop.probes.active.matmul.corruption import checksum
from mltop.probes.active.matmul.shapes import Shape
from mltop.probes.model.probe_kinds import DTYPE_OF

_BLOCK = (1 << 24) - 3  # numbers; larger buffers repeat it, not aligned with any row


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


Run = Callable[[Operands], Any]  # starts one GEMM and returns its output


def kernel(torch: Any, dtype: str) -> Run:
    """The GEMM of this type. ``allow_fp16_accumulation`` stays off: with it GeForce GPUs count half the work;
    ``use_fast_accum`` likewise (fp8).
    """
    matmul: Any = torch.backends.cuda.matmul if dtype in ("fp16", "tf32", "fp32") else None
    if dtype == "fp8":
        return _scaled_mm(torch)
    if dtype == "fp16" and hasattr(matmul, "allow_fp16_accumulation"):  # since torch 2.7
        matmul.allow_fp16_accumulation = False
    if dtype in ("tf32", "fp32"):
        # Explicit either way: the default of float32 GEMMs has changed between versions of torch.
        if hasattr(matmul, "fp32_precision"):  # since torch 2.9, where the older name warns
            matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        else:
            matmul.allow_tf32 = dtype == "tf32"

    def run(operands: Operands) -> Any:
        return torch.mm(operands.a, operands.b, out=operands.c)

    return run


def _scaled_mm(torch: Any) -> Run:
    """B must be column-major. ``_scaled_mm`` is private but old and takes ``out``; the output of what replaces it
    (torch.nn.functional.scaled_mm, since 2.10) is new each time.
    """
    options = {"use_fast_accum": False}

    def run(operands: Operands) -> Any:
        a, b, scale = operands.a, operands.b, operands.scale
        if hasattr(torch, "_scaled_mm"):
            return torch._scaled_mm(
                a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, out=operands.c, **options
            )
        functional = torch.nn.functional
        whole = functional.ScalingType.TensorWise
        return functional.scaled_mm(a, b, scale, whole, scale, whole, output_dtype=torch.bfloat16, **options)

    return run


class Buffers:
    """That hold the operands of each of these shapes in turn: a block of random numbers, again and again. ``intact``:
    what came back of it from the device is what was sent.
    """

    def __init__(self, device: Device, dtype: str, seed: int, shapes: Sequence[Shape]) -> None:
        torch, kind = device.torch, getattr(device.torch, DTYPE_OF[dtype].torch_name)
        a, b, c = (max(counts) for counts in zip(*((m * k, k * n, m * n) for m, n, k in shapes)))
        generator = torch.Generator().manual_seed(seed)
        sent = torch.randn(min(max(a, b, c), _BLOCK), generator=generator).to(kind)
        block = sent.to(device.where, copy=True)
        self.intact = checksum(torch, block.to("cpu", copy=True)) == checksum(torch, sent)

        def filled(count: int, start: int) -> Any:
            """``count`` numbers, the first of them at ``start`` of the block."""
            buffer = torch.empty(count, dtype=kind, device=device.where)
            done = 0
            while done < count:
                part = block[start : start + count - done]
                buffer[done : done + part.numel()].copy_(part)
                done, start = done + part.numel(), 0
            return buffer

        self._a, self._b = filled(a, 0), filled(b, block.numel() // 2)
        self._c = torch.empty(c, dtype=torch.bfloat16 if dtype == "fp8" else kind, device=device.where)
        self._fresh = filled(c, 1).to(self._c.dtype) if device.flushes else None
        # The layout of mamf-finder on GPUs (of training, too: weights are N x K); fp8 has no other.
        self._column_major = device.flushes or dtype == "fp8"
        self._scale = torch.ones((), device=device.where) if dtype == "fp8" else None

    def operands(self, shape: Shape) -> Operands:
        m, n, k = shape
        a = self._a[: m * k].view(m, k)
        b = self._b[: k * n].view(n, k).t() if self._column_major else self._b[: k * n].view(k, n)
        fresh = None if self._fresh is None else self._fresh[: m * n].view(m, n)
        return Operands(a, b, self._c[: m * n].view(m, n), fresh, self._scale)


def refusal(torch: Any, dtype: str, capability: tuple[int, int] | None, name: str) -> tuple[str, str] | None:
    """Why this data type cannot be measured, and what can be; None when it can. ``capability`` None: of CPUs."""
    row = DTYPE_OF.get(dtype)
    if row is None:
        return f"no such data type: {dtype}", f"one of {', '.join(DTYPE_OF)}"
    if capability is None:
        gpus_only = f"{row.label} GEMMs are of GPUs; CPUs have no instructions for them"
        return None if row.on_cpu else (gpus_only, "--dtype bf16 or --dtype fp32")
    if dtype == "fp8" and not _multiplies_fp8(torch):
        return f"torch {torch.__version__} has no FP8 GEMM that can be measured (2.5 and newer have)", "--dtype bf16"
    if capability >= row.capability:
        return None
    have = f"{name} has compute capability {capability[0]}.{capability[1]}"
    came = f"{row.label} tensor cores came with {row.capability[0]}.{row.capability[1]} ({row.generation})"
    return f"{have}: {came}", "--dtype fp16" if capability < (8, 0) else "--dtype bf16"


def _multiplies_fp8(torch: Any) -> bool:
    """Whether torch has an FP8 GEMM with one output: until 2.4 _scaled_mm gave a second one (amax), and took two."""
    if hasattr(torch, "_scaled_mm"):
        return len(torch.ops.aten._scaled_mm.default._schema.returns) == 1
    return hasattr(torch.nn.functional, "scaled_mm")


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


def cpu_versions(torch: Any) -> dict[str, str]:
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
