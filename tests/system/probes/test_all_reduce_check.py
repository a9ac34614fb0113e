"""The exact check of a collective's result: every flipped bit is found, and a right result is never called wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from mltop.probes.active.all_reduce.collectives import PERIOD, Collective, own_work
from mltop.probes.model.probe_kinds import COLLECTIVES

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_right_results_are_right_and_every_flipped_bit_is_found(name: str) -> None:
    source = random.Random(7)
    for _ in range(60):
        ranks = source.choice((1, 2, 3, 4, 8, 13))
        found = _done(name, source.randrange(4 * ranks, 60_000), ranks)
        rank = source.randrange(ranks)
        assert not found[rank].wrong()
        _flip(found[rank].output, source.randrange(found[rank].output.numel()), source.randrange(32))
        assert found[rank].wrong()


def test_a_fault_in_the_last_element_of_a_large_result_is_found() -> None:
    found = _done("all-reduce", 40 << 20, 2)[1]
    assert not found.wrong()
    _flip(found.output, found.output.numel() - 1, 0)
    assert found.wrong()


def test_a_zero_with_a_sign_is_found() -> None:
    found = _done("all-gather", 4 * PERIOD, 1)[0]
    assert found.output[0] == 0.0
    _flip(found.output, 0, 31)
    assert found.output[0] == 0.0 and found.wrong()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_that_does_nothing_is_wrong(name: str) -> None:
    found = Collective(name, 4 * PERIOD * 8, 1, 4, CPU)
    found.fill()
    assert found.wrong()


def test_sums_stay_exact_with_thousands_of_ranks() -> None:
    assert (12 + 6) * 100_000 < 2**24


def test_sizes_are_those_of_the_whole_buffer() -> None:
    shapes = {}
    for name in COLLECTIVES:
        found = Collective(name, 1 << 20, 0, 4, CPU)
        shapes[name] = (4 * found.input.numel(), 4 * found.output.numel())
    assert shapes == {
        "all-reduce": (1 << 20, 1 << 20),
        "all-gather": (1 << 18, 1 << 20),
        "reduce-scatter": (1 << 20, 1 << 18),
        "all-to-all": (1 << 20, 1 << 20),
    }


def test_own_work_does_something() -> None:
    own_work(CPU)()


def _done(name: str, size_bytes: int, ranks: int) -> list[Collective]:
    """All ranks after a collective that was done here, by hand."""
    found = [Collective(name, size_bytes, rank, ranks, CPU) for rank in range(ranks)]
    for one in found:
        one.fill()
    inputs = [one.input.clone() for one in found]
    for rank, one in enumerate(found):
        one.output.copy_(_result(name, inputs, rank))
    return found


def _result(name: str, inputs: list[Any], rank: int) -> Any:
    ranks = len(inputs)
    if name == "all-gather":
        return torch.cat(inputs)
    if name == "all-to-all":
        return torch.cat([one.view(ranks, -1)[rank] for one in inputs])
    summed = torch.stack(inputs).sum(dim=0)
    return summed if name == "all-reduce" else summed.view(ranks, -1)[rank]


def _flip(tensor: Any, index: int, bit: int) -> None:
    words = tensor.view(torch.int32)
    words[index] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
