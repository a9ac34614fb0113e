"""Results of the GEMM probe as an 8 x H100 node gives them, to be changed one by one."""

from __future__ import annotations

from typing import Any

from mltop.probes.model.probe import MatmulResult, Phase

H100 = "NVIDIA H100 80GB HBM3"
VERSIONS = {"driver": "570.86", "torch": "2.9.0", "cuda": "12.8", "cublas": "12.8.4"}
# Healthy GPUs lie a percent apart.
SPREAD = (1.0, 1.004, 0.996, 1.002, 0.998, 1.003, 0.997, 1.001)
OF_PHASE = set(Phase.__dataclass_fields__) - {"name"}
RATE, BURST, CLOCK = 712.0, 780.0, 1410.0


def phase(name: str = "sustained", **changes: Any) -> Phase:
    usual: dict[str, Any] = {
        "seconds": 3.0,
        "power_w": 698.0,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "sm_clock_mhz": CLOCK,
        "sm_clock_max_mhz": 1980.0,
        "temperature_c": 63.0,
        "throttle_share": {"sw_power_cap": 0.97, "sw_thermal": 0.0, "hw_thermal": 0.0, "power_brake": 0.0},
    }
    return Phase(name, **{**usual, **changes})


def gpu(index: int, node: str = "n03", share: float | None = None, **changes: Any) -> MatmulResult:
    """``share``: of the usual rate. Changes whose names are a phase's go to its sustained phase."""
    factor = SPREAD[index % 8] if share is None else share
    of_phase = {name: changes.pop(name) for name in list(changes) if name in OF_PHASE}
    usual: dict[str, Any] = {
        "node": node,
        "gpu": index,
        "uuid": f"GPU-{node}-{index}",
        "name": H100,
        "pci_device": "2330",
        "versions": dict(VERSIONS),
        "phases": [phase("burst"), phase(**{"temperature_c": 61.0 + index % 6, **of_phase})],
        "shape": [2048, 2048, 13312],
        "burst_tflops": BURST * factor,
        "sustained_shape": [8192, 8192, 8192],
        "sustained_tflops": RATE * factor,
        "multiprocessors": 132,
        "checked_iterations": 20,
        "checked_pflop": 1.5,
        "checksum": "c0ffee",
    }
    return MatmulResult(**{**usual, **changes})


def node(name: str = "n03", count: int = 8, **odd: MatmulResult) -> list[MatmulResult]:
    """``g5=…`` replaces GPU 5."""
    return [odd.get(f"g{index}", gpu(index, name)) for index in range(count)]


def cpus(name: str, gflops: float = 215.0, **changes: Any) -> MatmulResult:
    usual: dict[str, Any] = {
        "node": name,
        "uuid": "cpu",
        "kind": "cpu",
        "name": "AMD EPYC 9B45",
        "dtype": "fp32",
        "shape": [2048, 2048, 2048],
        "burst_tflops": gflops / 1000,
        "code_path": "MKL AVX2",
        "threads": 2,
        "checked_iterations": 4,
        "checked_pflop": 0.0004,
        "checksum": "beef",
    }
    return MatmulResult(**{**usual, **changes})
