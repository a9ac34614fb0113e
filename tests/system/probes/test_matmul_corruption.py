"""The checker of silent corruption: every flipped bit is found, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mltop.probes.active.matmul.corruption import Checker, as_words, checksum
from mltop.probes.active.matmul.gemm import Operands, kernel

FLIPS = 1200
KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]


def output(kind: torch.dtype, seed: int = 1, side: int = 48) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(side, side, generator=generator).to(kind)


def flip(tensor: torch.Tensor, places: list[tuple[int, int]]) -> torch.Tensor:
    """A copy with (byte, bit) flipped."""
    flipped = tensor.clone()
    data = flipped.view(torch.uint8).reshape(-1)
    for byte, bit in places:
        data[byte] ^= 1 << bit
    return flipped


def random_flips(tensor: torch.Tensor, count: int, seed: int) -> Iterator[list[tuple[int, int]]]:
    """Half of them of one bit, half of 2 to 64 bits; different bits, so that none is undone."""
    rng = random.Random(seed)
    size = tensor.numel() * tensor.element_size()
    for index in range(count):
        bits = 1 if index % 2 else rng.randint(2, 64)
        yield [divmod(place, 8) for place in rng.sample(range(size * 8), bits)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_flip_is_found_by_the_comparison_and_by_the_checksum(kind: torch.dtype) -> None:
    clean = output(kind)
    checker = Checker(torch, flop=1.0)
    checker.check(clean)
    of_clean = checksum(torch, clean)
    for index, places in enumerate(random_flips(clean, FLIPS, seed=len(str(kind)))):
        flipped = flip(clean, places)
        checker.check(flipped)
        assert checker.corrupt == index + 1, places
        assert checksum(torch, flipped) != of_clean, places
    assert checker.checked == FLIPS
    assert checker.checksum() == of_clean


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_thousand_clean_gemms_give_no_alarm(dtype: str) -> None:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    run = kernel(torch, dtype)
    operands = Operands(output(kind, 1), output(kind, 2), torch.empty(48, 48, dtype=kind))
    checker = Checker(torch, flop=2 * 48**3)
    sums = set()
    for index in range(1001):
        operands.c.fill_(float("nan"))
        checker.check(run(operands))
        if index % 50 == 0:
            sums.add(checksum(torch, operands.c))
    assert (checker.checked, checker.corrupt) == (1000, 0)
    assert sums == {checker.checksum()}
    assert checker.checked_pflop == pytest.approx(1000 * 2 * 48**3 / 1e15)


def test_nan_equals_itself_and_the_sign_of_zero_counts() -> None:
    clean = torch.tensor([float("nan"), 0.0, 1.0, 2.0])
    checker = Checker(torch, flop=1.0)
    checker.check(clean)
    checker.check(clean.clone())
    assert checker.corrupt == 0
    checker.check(torch.tensor([float("nan"), -0.0, 1.0, 2.0]))
    assert checker.corrupt == 1


def test_swapped_elements_change_the_checksum() -> None:
    clean = output(torch.float32)
    swapped = clean.clone()
    swapped[3, 4], swapped[5, 6] = clean[5, 6].item(), clean[3, 4].item()
    assert checksum(torch, clean) != checksum(torch, swapped)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_two_sign_bits_do_not_cancel_out(kind: torch.dtype) -> None:
    """With words of 64 bits two flips of the highest bit would: 2^63 times any two odd weights is 0 mod 2^64."""
    clean = output(kind)
    last = clean.element_size() - 1
    assert checksum(torch, clean) != checksum(torch, flip(clean, [(7, 7), (15, 7)]))
    assert checksum(torch, clean) != checksum(torch, flip(clean, [(last, 7), (8 * 48 + last, 7)]))


def test_the_checksum_is_a_weighted_sum_across_its_chunks() -> None:
    """More than one chunk of 2^20 words, against Python's own integers at a few places."""
    words = torch.zeros((1 << 20) + 5, dtype=torch.int16)
    places = {0: 7, 1: -3, (1 << 20) - 1: 32767, 1 << 20: -32768, (1 << 20) + 4: 11}
    expected = 0
    for place, value in places.items():
        words[place] = value
        weight = (place * 0x9E3779B97F4A7C15) % (1 << 64) | 1
        expected += weight * value
    assert checksum(torch, words) == f"{expected % (1 << 64):016x}"


def test_nothing_checked() -> None:
    checker = Checker(torch, flop=1.0)
    assert (checker.checked, checker.corrupt, checker.checked_pflop, checker.checksum()) == (0, 0, 0.0, "")


def test_words_are_a_view() -> None:
    clean: Any = output(torch.bfloat16)
    assert as_words(torch, clean).data_ptr() == clean.data_ptr()
