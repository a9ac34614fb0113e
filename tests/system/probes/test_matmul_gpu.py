"""The GPU's side of the matmul probe, over a made-up torch.cuda; and that torch has all that it uses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mltop.probes.active.child import Order
from mltop.probes.active.device import Cuda
from mltop.probes.active.matmul.child import Plan, Progress, measure_gpu, plan
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_support import cublas_version, gemm_versions
from mltop.probes.investigate.probing.run import options_of
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model.probe import MatmulResult, ProbeDevice
from tests.fakes.cuda_torch import CudaTorch, tflops

FLUSHED_BYTES = 1 << 20  # instead of 256 MiB
CAP_BYTES = FLUSHED_BYTES + (512 << 20) + (16 << 20)  # room for 1024 cubed, and for no larger shape of the scan
STAGES = ["warm", "scan", "burst", "sustained", "check"]
NAMES = (
    "cuda.is_available",
    "cuda.get_device_properties",
    "cuda.set_per_process_memory_fraction",
    "cuda.mem_get_info",
    "cuda.synchronize",
    "cuda.Event",
    "cuda.Event.record",
    "cuda.Event.synchronize",
    "cuda.Event.elapsed_time",
    "backends.cuda.matmul",
    "backends.cuda.preferred_blas_library",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cudnn.version",
    "backends.cudnn.is_available",
    "version.cuda",
    "version.hip",
    "float8_e4m3fn",
    "_scaled_mm",
    "nn.functional.scaled_mm",
    "nn.functional.ScalingType.TensorWise",
    "ops.mkldnn._is_mkldnn_bf16_supported",
    "ops.mkldnn._is_mkldnn_fp16_supported",
    "backends.cpu.get_cpu_capability",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a busy machine wait for each other for milliseconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_what_the_probe_uses(name: str) -> None:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)


def probe(fake: CudaTorch, scan_s: float = 60.0, **plan: Any) -> MatmulResult:
    """All stages, with nothing that takes long."""
    seconds = {"warm": 0.05, "scan": scan_s, "burst": 0.5, "sustained": 0.1}
    wanted = Plan(seconds=seconds, memory_cap_bytes=CAP_BYTES, least_burst=9, scan_iterations=2, **plan)
    device = Cuda(fake, wanted.memory_cap_bytes, where="cpu", flush_bytes=FLUSHED_BYTES)
    return measure_gpu(device, wanted, PhaseMeter(ProbeDevice("cpu", kind="cpu")), Progress("GPU-1", {}))


def events(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_all_stages(capfd: pytest.CaptureFixture[str]) -> None:
    fake = CudaTorch()
    result = probe(fake, first_shapes=[[128, 256, 192], [64, 64, 64]])
    assert fake.log[0] == f"fraction {CAP_BYTES / (80 << 30):.3f}"
    told = events(capfd)
    assert [event["stage"] for event in told if "fraction" not in event] == STAGES
    assert all(0 <= event.get("fraction", 0) <= 1 for event in told)
    assert result.multiprocessors == 132
    # Two that the caller knew, then their M and N with every K that there is room for: the largest is best here.
    assert (result.shape, result.shapes_tried) == ([64, 64, 14336], 2 + 11 + 7)
    assert result.iterations >= 9
    expected = pytest.approx(tflops(14336, "cublaslt"))
    assert (result.burst_tflops, result.burst_median_tflops) == (expected, expected)
    assert (result.burst_p5_tflops, result.burst_best_tflops) == (expected, expected)
    assert result.sustained_shape == [1024, 1024, 1024]
    # GPUs are compared by what they sustain: all with one library.
    assert result.sustained_tflops == pytest.approx(tflops(1024, "cublas"))
    assert (result.code_path, fake.blas) == ("cuBLASLt", "cublas")
    assert (result.corrupt_iterations, len(result.checksum), result.upload_intact) == (0, 16, True)
    of_burst = (result.iterations - 1) // 8
    of_sustained = result.checked_iterations - of_burst
    assert of_burst >= 1 and of_sustained >= 1
    flop = of_burst * 2 * 64 * 64 * 14336 + of_sustained * 2 * 1024**3
    assert result.checked_pflop == pytest.approx(flop / 1e15)


def test_a_published_shape_is_measured_as_the_figure_was(capfd: pytest.CaptureFixture[str]) -> None:
    """No scan; 50 products and a second under the same load before those that count; the L2 flushed before each."""
    fake = CudaTorch()
    result = probe(fake, published=[128, 256, 192], first_shapes=[[64, 64, 14336]])
    assert [event["stage"] for event in events(capfd) if "fraction" not in event] == [s for s in STAGES if s != "scan"]
    assert (result.shape, result.shapes_tried, result.code_path) == ([128, 256, 192], 0, "cuBLAS")
    assert result.burst_tflops == pytest.approx(tflops(192, "cublas"))
    of_shape = [flushed for k, flushed in fake.before if k == 192]
    assert of_shape[-result.iterations - 50 :] == [True] * (result.iterations + 50)


def order(pci_device: str, kind: str = "gpu", **options: Any) -> Order:
    return Order("matmul", "n", [ProbeDevice("GPU-1", 0, kind=kind, pci_device=pci_device)], options, {})


@pytest.mark.parametrize(
    ("dtype", "pci_device", "kind", "shape"),
    [
        ("bf16", "2330", "gpu", [2048, 2048, 13312]),
        ("fp8", "2330", "gpu", [1024, 9216, 14336]),
        ("bf16", "2330", "mig", ()),
        ("bf16", "2335", "gpu", ()),  # an H200: the figure is not its own
        ("fp16", "2330", "gpu", ()),
        ("bf16", "", "gpu", ()),
    ],
)
def test_the_shape_of_the_model(dtype: str, pci_device: str, kind: str, shape: list[int]) -> None:
    assert plan(order(pci_device, kind, **options_of(ProbeWanted("matmul", dtype=dtype)))).published == shape


def test_shapes_that_are_none() -> None:
    with pytest.raises((TypeError, ValueError)):
        plan(order("2330", published="2048"))


def test_a_gpu_that_computes_wrong_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """From the fifth GEMM of the burst on: the reference of the sustained ones is as wrong as they are."""
    result = probe(CudaTorch(wrong_from=11), first_shapes=[[128, 256, 192]])
    assert result.corrupt_iterations == (result.iterations - 1) // 8 >= 1
    assert result.checked_iterations > result.corrupt_iterations


def test_where_no_shape_fits_the_fixed_one_is_tried_with_more_k(capfd: pytest.CaptureFixture[str]) -> None:
    result = probe(CudaTorch())
    assert (result.shape, result.shapes_tried) == ([1024, 1024, 2048], 2)


def test_the_checksum_of_the_same_seed_is_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    sums = [probe(CudaTorch(), scan_s=0.001, first_shapes=[[64, 64, 64]], seed=seed).checksum for seed in (1, 1, 2)]
    assert sums[0] == sums[1] != sums[2]


def test_no_more_memory_than_is_free() -> None:
    device = Cuda(CudaTorch(free_bytes=1 << 30), 4 << 30, where="cpu")
    assert device.room_bytes(4 << 30) == (1 << 30) - (512 << 20)
    with pytest.raises(RuntimeError, match=r"out of memory: 0\.2 GiB"):
        Cuda(CudaTorch(free_bytes=1 << 28), 4 << 30, where="cpu").room_bytes(4 << 30)


def test_versions() -> None:
    found = gemm_versions(CudaTorch(), "580.95.05")
    assert found["torch"] == torch.__version__
    assert (found["cuda"], found["driver"]) == ("12.8", "580.95.05")
    assert "hip" not in found and "cublas" not in found  # none is loaded here


def test_the_version_of_cublas_is_asked_of_the_library(tmp_path: Path) -> None:
    source = tmp_path / "cublas.c"
    source.write_text("int cublasGetProperty(int which, int *value) { *value = 12 + which; return which > 2; }")
    library = tmp_path / "libcublas.so.12"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    assert cublas_version(str(library)) == "12.13.14"
    assert cublas_version(str(source)) == cublas_version("") == ""
