"""Plain torch as `bash tests/gpu` asks it: the programs over the real torch, on processors that are called a GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.hardware import plain_copies, plain_gemm

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
Said = list[dict[str, Any]]


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other._at_s - self._at_s)


class OnProcessors:
    """The real torch, with "cuda" for the processors."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(
            Event=Event,
            synchronize=lambda *_: None,
            get_device_capability=lambda: (9, 0),
            device_count=lambda: 2,
        )

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("randn", "empty", "ones", "zeros"):
            return found

        def made(*shape: Any, device: str = "cpu", pin_memory: bool = False, dtype: torch.dtype) -> torch.Tensor:
            assert device == "cpu" or device.startswith("cuda")
            tensor: torch.Tensor = found(*shape, dtype=dtype)
            return tensor

        return made


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No input, one thread, small work."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    for module in (plain_gemm, plain_copies):
        monkeypatch.setattr(module, "end_with_input", lambda: None)
    for name, value in {"FLUSH_BYTES": 4096, "STEP": 64, "MOST": 128, "BATCH_S": 0.001, "MEAN_S": 0.01}.items():
        monkeypatch.setattr(plain_gemm, name, value)
    monkeypatch.setattr(plain_gemm, "HOT", (64, 64, 64))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])


def said(capfd: pytest.CaptureFixture[str]) -> Said:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_rates_of_all_types(capfd: pytest.CaptureFixture[str]) -> None:
    shapes = {dtype: [[64, 32, 96], [64, 64, 64]] for dtype in DTYPES}
    order = {"shapes": shapes, "libraries": {"bf16": "cublaslt"}, "warm_s": 0.001, "rates_s": 0.005}
    plain_gemm.rates(OnProcessors(), order)
    *rates, tf32 = said(capfd)
    assert [one["dtype"] for one in rates] == list(DTYPES)
    assert all("why" not in one and min(*one["means"], one["host"], one["gpu"]) > 0 for one in rates), rates
    assert (tf32["differs"], tf32["capability"]) == (False, [9, 0])  # processors have no TF32


def test_what_torch_cannot_is_told_and_costs_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9")

    without = OnProcessors()
    without._scaled_mm = refuse
    shapes = {"fp8": [[64, 64, 64]], "bf16": [[64, 64, 64]]}
    plain_gemm.rates(without, {"shapes": shapes, "libraries": {}, "warm_s": 0.001, "rates_s": 0.001})
    fp8, bf16, _ = said(capfd)
    assert fp8["why"].startswith("RuntimeError: torch._scaled_mm is only") and bf16["host"] > 0


def test_a_scan_measures_its_best_again(capfd: pytest.CaptureFixture[str]) -> None:
    plain_gemm.Scan(OnProcessors(), {"dtype": "bf16", "seconds": 1.0, "known": [[64, 64, 192]]}).run()
    scan = said(capfd)[-1]
    finals = scan["finals"]
    assert scan["event"] == "scan" and scan["shapes"] >= 1 and scan["grid"] == 8
    assert [64, 64, 192] in [one["shape"] for one in finals]
    assert scan["best"] in finals and scan["best"]["tflops"] == max(one["tflops"] for one in finals)
    assert all(10 <= one["iterations"] <= 100 for one in finals)


def test_a_library_that_cannot_costs_no_scan(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLASLt has not an algorithm for every shape."""
    real, preferred = plain_gemm.Gemms.mean_tflops, [""]

    def mean_tflops(self: Any, *words: Any) -> Any:
        if preferred[-1] == "cublaslt":
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")
        return real(self, *words)

    monkeypatch.setattr(plain_gemm, "prefer", lambda _, library: preferred.append(library) or True)
    monkeypatch.setattr(plain_gemm.Gemms, "mean_tflops", mean_tflops)
    plain_gemm.Scan(OnProcessors(), {"dtype": "bf16", "seconds": 0.5, "known": [[64, 64, 192]]}).run()
    scan = said(capfd)[-1]
    assert {one["library"] for one in scan["finals"]} == {"torch's choice"} and preferred[1:] == ["cublaslt", "cublas"]


@pytest.mark.parametrize("step", [512, 128])
def test_neighbours_stay_in_range(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_gemm, "MOST", 1024)
    found = plain_gemm.neighbours((1024, 512, 128), step)
    assert found and (1024, 512, 128) not in found
    assert all(0 < side <= 1024 for shape in found for side in shape)


def test_copies_each_way(capfd: pytest.CaptureFixture[str]) -> None:
    fake = OnProcessors()
    source, target = (torch.full((1024,), fill, dtype=torch.float32) for fill in (1.0, 0.0))
    plain_copies.rate(fake, "to_device", source, target, 0.01)
    stage, rate = said(capfd)
    assert (stage["event"], stage["name"]) == ("stage", "to_device")
    assert rate["bytes_per_s"] > 0 and torch.equal(source, target)


@pytest.mark.parametrize(
    "name",
    ["cuda.init", "cuda.can_device_access_peer", "cuda.get_device_capability", "backends.cuda.preferred_blas_library"],
)
def test_torch_has_what_is_asked_of_it(name: str) -> None:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
