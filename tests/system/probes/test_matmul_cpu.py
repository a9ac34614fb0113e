"""What the matmul probe says about CPUs: cores that may be used, the code path, and its order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mltop.probes
from mltop.probes.active.child import Order
from mltop.probes.active.matmul.child import plan
from mltop.probes.active.matmul.gemm import instructions, of_cpu, of_gpu
from mltop.probes.model.probe import ProbeDevice

CODE = """
import sys
sys.path.insert(0, {path!r})
from mltop.probes.active import host
print(host.cores())
"""


def cores_of(root: Path) -> int:
    """As a process sees them whose /proc and /sys are below ``root``."""
    code = CODE.format(path=str(Path(mltop.probes.__file__).parent.parent.parent))
    env = {**os.environ, "MLTOP_SYSROOT": str(root)}
    return int(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)


def files(root: Path, **contents: str) -> None:
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


ONE = "100000 100000\n"


@pytest.mark.parametrize(
    ("contents", "limited"),
    [
        ({}, False),
        ({"proc__self__cgroup": "0::/a/b\n"}, False),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__cpuDOTmax": "max 100000\n"}, False),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__cpuDOTmax": ONE}, True),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__cpuDOTmax": "50000 100000\n"}, True),
        # In a container the path is the host's, and the mount is the container's own cgroup.
        ({"proc__self__cgroup": "0::/kubepods/pod1\n", "sys__fs__cgroup__cpuDOTmax": ONE}, True),
        (
            {
                "proc__self__cgroup": "4:cpu,cpuacct:/job\n1:name=systemd:/\n",
                "sys__fs__cgroup__cpu,cpuacct__job__cpuDOTcfs_quota_us": "100000\n",
                "sys__fs__cgroup__cpu,cpuacct__job__cpuDOTcfs_period_us": "100000\n",
            },
            True,
        ),
        (
            {
                "proc__self__cgroup": "4:cpu,cpuacct:/job\n",
                "sys__fs__cgroup__cpu,cpuacct__job__cpuDOTcfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu,cpuacct__job__cpuDOTcfs_period_us": "100000\n",
            },
            False,
        ),
    ],
)
def test_cores_by_affinity_and_quota(tmp_path: Path, contents: dict[str, str], limited: bool) -> None:
    files(tmp_path, **contents)
    assert cores_of(tmp_path) == (1 if limited else len(os.sched_getaffinity(0)))


def cpu_torch(capability: str, blas: str = "mkl") -> Any:
    """torch as on another machine, as far as its code path goes."""
    settings = (
        "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605\n"
        f"  - Intel(R) MKL-DNN v3.7.1 (Git Hash 1)\n  - Build settings: BLAS_INFO={blas}, BUILD_TYPE=Release\n"
    )
    return SimpleNamespace(
        __config__=SimpleNamespace(show=lambda: settings),
        backends=SimpleNamespace(
            cpu=SimpleNamespace(get_cpu_capability=lambda: capability),
            mkldnn=SimpleNamespace(is_available=lambda: True),
        ),
        ops=SimpleNamespace(
            mkldnn=SimpleNamespace(
                _is_mkldnn_bf16_supported=lambda: True, _is_mkldnn_fp16_supported=lambda: capability == "AVX512"
            )
        ),
        get_num_threads=lambda: 8,
    )


@pytest.mark.parametrize(
    ("capability", "dtype", "flags", "expected"),
    [
        ("AVX512", "bf16", {"avx512_bf16", "amx_bf16"}, "AVX512 with AMX"),
        ("AVX512", "bf16", {"avx512_bf16"}, "AVX512 with AVX512_BF16"),
        ("AVX512", "bf16", {"avx512f"}, "AVX512 without AVX512_BF16"),
        ("AVX512", "fp16", {"avx512_fp16"}, "AVX512 with AVX512_FP16"),
        ("AVX2", "fp32", {"avx2"}, "AVX2"),
        ("DEFAULT", "bf16", {"bf16", "asimd"}, "DEFAULT with BF16"),
    ],
)
def test_instructions(capability: str, dtype: str, flags: set[str], expected: str) -> None:
    assert instructions(cpu_torch(capability), dtype, frozenset(flags)) == expected


def test_code_path_names_library_threads_and_cores() -> None:
    fp32, bf16 = (of_cpu(cpu_torch("AVX512"), dtype, 8) for dtype in ("fp32", "bf16"))
    assert fp32.startswith("MKL 2024.2, AVX512") and fp32.endswith(", 8 threads on 8 cores")
    assert bf16.startswith("oneDNN 3.7.1, AVX512")
    assert of_cpu(cpu_torch("AVX2"), "fp16", 1).startswith("torch's own kernels, AVX2")
    assert of_cpu(cpu_torch("AVX2", "open"), "fp32", 1).startswith("OpenBLAS, AVX2")
    assert of_cpu(torch, "fp32", 2)


@pytest.mark.parametrize(
    ("dtype", "library", "expected"),
    [
        ("bf16", "", "cuBLAS"),
        ("bf16", "cublaslt", "cuBLASLt"),
        ("tf32", "", "cuBLAS, TF32 on"),
        ("fp32", "cublaslt", "cuBLASLt, TF32 off"),
        ("fp8", "", "cuBLASLt, fast accumulation off"),
    ],
)
def test_code_path_of_gpus(dtype: str, library: str, expected: str) -> None:
    torch_with_cuda: Any = SimpleNamespace(version=SimpleNamespace(hip=None))
    assert of_gpu(torch_with_cuda, dtype, library) == expected


def order(kind: str, **options: Any) -> Order:
    return Order("matmul", devices=[ProbeDevice("cpu", kind=kind)], options=options)


def test_an_order_without_options() -> None:
    gpu, cpu = plan(order("gpu")), plan(order("cpu"))
    assert gpu.seconds == {"warm": 2, "scan": 3, "burst": 1, "sustained": 3}
    assert (gpu.dtype, gpu.memory_cap_bytes, gpu.least_burst, gpu.scan_iterations) == ("bf16", 4 << 30, 100, 10)
    assert sum(cpu.seconds.values()) <= 6


def test_an_order_with_options() -> None:
    wanted = json.loads('{"dtype": "fp8", "first_shapes": [[1, 2, 3]], "seconds": {"scan": 1}, "seed": 7}')
    found = plan(order("gpu", **wanted))
    assert (found.dtype, found.first_shapes, found.seed) == ("fp8", [[1, 2, 3]], 7)
    assert found.seconds == {"warm": 2, "scan": 1, "burst": 1, "sustained": 3}
    with pytest.raises(ValueError, match="could not convert"):
        plan(order("gpu", seconds={"warm": "long"}))
