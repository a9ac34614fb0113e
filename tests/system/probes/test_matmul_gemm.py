"""One GEMM per data type against float64, the switches that they set, their inputs, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mltop.probes.active.device import Cpu
from mltop.probes.active.matmul import gemm
from mltop.probes.active.matmul.gemm import Buffers, Operands, kernel, refusal
from mltop.probes.active.matmul.shapes import Shape
from mltop.probes.active.torch_support import in_words
from mltop.probes.model.probe_kinds import DTYPE_OF

SHAPE = Shape(48, 32, 64)


def operands(dtype: str) -> Operands:
    return Buffers(Cpu(torch), dtype, 3, [SHAPE, Shape(64, 64, 64)]).operands(SHAPE)


@pytest.mark.parametrize(
    ("dtype", "error"), [("bf16", 0.1), ("fp16", 0.02), ("tf32", 1e-4), ("fp32", 1e-4), ("fp8", 0.1)]
)
def test_products(dtype: str, error: float) -> None:
    made = operands(dtype)
    output = kernel(torch, dtype)(made)
    assert (output.shape, made.a.shape, made.b.shape) == ((48, 32), (48, 64), (64, 32))
    assert (made.a.element_size(), output.element_size()) == (DTYPE_OF[dtype].bytes, DTYPE_OF[dtype].output_bytes)
    assert output.data_ptr() == made.c.data_ptr()
    assert torch.allclose(output.double(), made.a.double() @ made.b.double(), atol=error, rtol=0.01)


def test_fp8_without_the_private_function() -> None:
    """As a later torch may be."""

    class Later:
        nn, bfloat16 = torch.nn, torch.bfloat16

    made = operands("fp8")
    output = kernel(Later, "fp8")(made)
    assert torch.equal(output, kernel(torch, "fp8")(made))


def test_tf32_is_switched_on_and_off_explicitly() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        kernel(torch, "tf32")
        assert matmul.fp32_precision == "tf32"
        kernel(torch, "fp32")
        assert matmul.fp32_precision == "ieee"
        older: Any = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())))
        kernel(older, "tf32")
        assert older.backends.cuda.matmul.allow_tf32 is True
    finally:
        matmul.fp32_precision = before


def test_fp16_accumulates_in_fp32() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_accumulation = True
    kernel(torch, "fp16")
    assert matmul.allow_fp16_accumulation is False


@pytest.mark.parametrize("dtype", DTYPE_OF)
def test_inputs_are_seeded_random_and_arrive_intact(dtype: str) -> None:
    made_of = [Buffers(Cpu(torch), dtype, seed, [SHAPE]) for seed in (3, 3, 4)]
    assert made_of[0].intact
    a = [made.operands(SHAPE).a.float() for made in made_of]
    assert torch.equal(a[0], a[1]) and not torch.equal(a[0], a[2])
    assert 0.9 < float(a[0].std()) < 1.1


def test_an_upload_that_changes_a_bit_is_told() -> None:
    class Damaging(Cpu):
        """Each copy to it and from it flips a bit."""

        def __init__(self) -> None:
            super().__init__(Wrapped())

    class Wrapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def randn(self, *size: int, **options: Any) -> Any:
            return torch.randn(*size, **options).as_subclass(Damaged)

    class Damaged(torch.Tensor):
        def to(self, *where: Any, **options: Any) -> Any:
            moved = super().to(*where, **options)
            if options.get("copy"):
                moved.view(torch.int32)[copies.pop()] ^= 1
            return moved

    copies = [200, 100]  # there and back: two bits, which do not cancel out

    assert Buffers(Damaging(), "fp32", 3, [SHAPE]).intact is False


def test_operands_larger_than_the_block_repeat_it_out_of_step_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_BLOCK", 1000)
    made = Buffers(Cpu(torch), "fp32", 3, [Shape(100, 10, 100)]).operands(Shape(100, 10, 100))
    assert not torch.equal(made.a[0], made.a[1])
    assert torch.equal(made.a.reshape(-1)[:1000], made.a.reshape(-1)[1000:2000])


V100, A100, L4, H100 = (7, 0), (8, 0), (8, 9), (9, 0)


@pytest.mark.parametrize(
    ("dtype", "capability", "words"),
    [
        ("bf16", V100, "V has compute capability 7.0: BF16 tensor cores came with 8.0 (Ampere)"),
        ("tf32", V100, "V has compute capability 7.0: TF32 tensor cores came with 8.0 (Ampere)"),
        ("fp8", A100, "V has compute capability 8.0: FP8 tensor cores came with 8.9 (Ada and Hopper)"),
        ("fp8", None, "FP8 GEMMs are of GPUs; CPUs have no instructions for them"),
        ("tf32", None, "TF32 GEMMs are of GPUs; CPUs have no instructions for them"),
        ("int8", H100, "no such data type: int8"),
        ("fp16", V100, None),
        ("fp32", V100, None),
        ("fp8", L4, None),
        ("fp8", H100, None),
        ("bf16", A100, None),
        ("bf16", None, None),
    ],
)
def test_what_a_device_cannot_do(dtype: str, capability: tuple[int, int] | None, words: str | None) -> None:
    found = refusal(torch, dtype, capability, "V")
    assert (found[0] if found else None) == words
    assert found is None or found[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB.\nmore", "not enough free memory (CUDA out of memory. Tried"),
        ("CUDA error: no kernel image is available for execution", "this torch is built for other GPUs (CUDA error"),
        ("CUDA error: uncorrectable ECC error encountered", "the GPU's memory failed ("),
        ("something new\nTraceback", "something new"),
        ("", "RuntimeError"),
    ],
)
def test_errors_of_torch_in_words(text: str, why: str) -> None:
    assert in_words(RuntimeError(text))[0].startswith(why)
