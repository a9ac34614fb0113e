"""Which shapes are tried: whole waves, within memory and time, and the rates that come out of times."""

from __future__ import annotations

import math

import pytest

from mltop.probes.active.matmul import shapes
from mltop.probes.active.matmul.shapes import Room, Shape
from mltop.probes.active.matmul.timing import next_batch, rates

GIB = 2**30
ROOM = Room(int(3.25 * GIB), 2, 2)
# Multiprocessors of A100, H100, B200, RTX PRO 6000, L4, a 1g slice of an H100.
GPUS = (108, 132, 148, 188, 58, 16)


@pytest.mark.parametrize("multiprocessors", GPUS)
def test_tiles_fill_whole_waves(multiprocessors: int) -> None:
    tried = shapes.first_round(multiprocessors, ROOM)
    assert 8 <= len(tried) <= 24
    assert len(set(tried)) == len(tried)
    for shape in tried:
        fills = []
        for rows, columns in shapes.TILES:
            tiles = math.ceil(shape.m / rows) * math.ceil(shape.n / columns)
            fills.append(tiles / (math.ceil(tiles / multiprocessors) * multiprocessors))
        assert max(fills) >= 0.95, shape
        assert 1024 <= shape.m <= 18432 and 1024 <= shape.n <= 18432


@pytest.mark.parametrize("multiprocessors", GPUS)
def test_the_same_gpu_is_given_the_same_shapes(multiprocessors: int) -> None:
    assert shapes.first_round(multiprocessors, ROOM) == shapes.first_round(multiprocessors, ROOM)


def test_shapes_are_square_and_slim_and_of_several_sizes() -> None:
    tried = shapes.first_round(132, ROOM)
    ratios = [max(shape.m, shape.n) / min(shape.m, shape.n) for shape in tried]
    assert min(ratios) < 1.5 and max(ratios) > 5
    assert any(shape.m > shape.n for shape in tried) and any(shape.m < shape.n for shape in tried)
    assert max(shape.flop for shape in tried) > 8 * min(shape.flop for shape in tried)


def test_the_first_half_of_the_order_is_not_the_smaller_half() -> None:
    """A time limit that cuts the list off leaves large and small ones."""
    tried = shapes.first_round(132, ROOM)
    half = len(tried) // 2
    smallest = set(sorted(tried, key=lambda shape: shape.flop)[:half])
    assert 0.2 * half < len(smallest & set(tried[:half])) < 0.8 * half


def test_the_second_round_varies_k_of_the_best() -> None:
    best = [Shape(2816, 3072, 4096), Shape(1024, 4224, 4096), Shape(3584, 3584, 4096)]
    tried = shapes.second_round(best, ROOM)
    assert {(shape.m, shape.n) for shape in tried} == {(2816, 3072), (1024, 4224)}
    assert not set(tried) & set(best)
    assert {shape.k for shape in tried} == set(shapes.DEPTHS) - {4096}
    assert len(shapes.first_round(132, ROOM)) + len(tried) <= shapes.TRIED_ABOUT + 4


@pytest.mark.parametrize("total_bytes", [64 << 20, GIB, 4 * GIB])
@pytest.mark.parametrize(("input_bytes", "output_bytes"), [(1, 2), (2, 2), (4, 4)])
def test_buffers_of_all_shapes_together_stay_in_the_room(total_bytes: int, input_bytes: int, output_bytes: int) -> None:
    room = Room(total_bytes, input_bytes, output_bytes)
    first = shapes.first_round(132, room)
    known = shapes.known([[18432, 18432, 14336], [2048, 2048, 13312]], room)
    tried = [*first, *known, *shapes.second_round(first, room, len(first)), shapes.sustained(room)]
    a = max(shape.m * shape.k for shape in tried) * input_bytes
    b = max(shape.k * shape.n for shape in tried) * input_bytes
    c = max(shape.m * shape.n for shape in tried)
    assert a + b + c * (3 * output_bytes + 1) <= total_bytes


def test_sustained_is_8192_where_there_is_room() -> None:
    assert shapes.sustained(ROOM) == (8192, 8192, 8192)
    assert shapes.sustained(Room(GIB, 2, 2)) == (8192, 8192, 8192)
    assert shapes.sustained(Room(GIB, 4, 4)) == (6144, 6144, 6144)
    assert shapes.sustained(Room(GIB // 4, 2, 2)) == (4096, 4096, 4096)


def test_what_the_caller_knows_is_taken_as_far_as_it_fits() -> None:
    wanted = [[2048, 2048, 13312], [2048, 2048, 13312], [0, 1, 1], [1, 2], [100000, 100000, 14336]]
    assert shapes.known(wanted, ROOM) == [Shape(2048, 2048, 13312)]


def test_shapes_that_take_too_long_are_left_out() -> None:
    short, long = Shape(1000, 1000, 1000), Shape(1000, 1000, 4000)
    assert shapes.affordable([short, long], flop_per_s=1e12, each_s=0.004) == [short]


@pytest.mark.parametrize("gflops", [5, 80, 200, 1000, 3000])
def test_one_gemm_of_cpus_takes_20_to_100_ms(gflops: float) -> None:
    side: int | None = shapes.CUBES_OF_CPUS[0]
    while side is not None:
        cube, took_s = side, 2 * side**3 / gflops / 1e9
        side = shapes.next_cube(side, took_s)
    assert 0.02 < took_s <= 0.1, cube


def test_a_cpu_that_is_slow_with_the_smallest_cube_stays_there() -> None:
    assert shapes.next_cube(256, 0.5) is None


def test_proportions_for_cpus_have_the_same_work() -> None:
    assert len({shape.flop for shape in shapes.of_cpus(Shape(1024, 1024, 1024))}) == 1


def test_rates() -> None:
    found = rates(1e12, [1.0] * 95 + [2.0] * 5)
    assert (found.iterations, found.median, found.best) == (100, 1.0, 1.0)
    assert found.mean == pytest.approx(1 / 1.05)
    assert found.p5 == 0.5
    assert rates(1e12, [1.0] * 96 + [2.0] * 4).p5 == 1.0
    only = rates(2e12, [4.0])
    assert (only.mean, only.median, only.p5, only.best) == (0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(("per_s", "before", "expected"), [(1e4, 1, 4), (1e4, 64, 200), (5, 1, 1), (100, 8, 10)])
def test_what_is_enqueued_at_once_grows_slowly_to_a_tenth_of_a_second(per_s: float, before: int, expected: int) -> None:
    assert next_batch(per_s, before) == expected
