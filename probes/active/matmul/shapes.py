"""Which GEMMs are tried: shapes whose output tiles fill whole waves of a GPU's multiprocessors. Pure.

A GEMM kernel gives every multiprocessor one output tile at a time: a last wave that is not full idles the rest.
The tiles are those of cuBLAS's largest tensor core kernels; the best shapes that mamf-finder found on A100, H100 and
B200 fill 97 to 99 % of their waves with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

TILES = ((128, 256), (256, 128))
WAVES = (1, 2, 3, 6, 12, 24, 48, 96)
WAVES_TRIED = 5  # of each tile: the smallest that reach LEAST
LEAST_FILL = 0.95
LEAST, MOST = 1024, 18432  # of M and N
DEPTH = 4096  # K of the first round, equal for all; the second varies it
DEPTHS = (1024, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 13312, 14336)
TRIED_ABOUT = 40  # in both rounds
SLIM = 8  # the longer of M and N against the shorter, beside the shape nearest to a square
SECOND_ROUND = 2  # so many of the best M, N of the first round are tried with other K
SUSTAINED = (8192, 6144, 4096, 3072, 2048, 1024)
CUBES_OF_CPUS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
LONGEST_ON_CPUS_S = 0.1


class Shape(NamedTuple):
    """C (M x N) = A (M x K) times B (K x N)."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


class Room(NamedTuple):
    """Memory for the operands of one GEMM: bytes in all, of one element of A and B, and of one of C.

    Beside C there are what it is refreshed from, the reference it is compared with, and a byte for each comparison.
    """

    total_bytes: int
    input_bytes: int
    output_bytes: int

    def holds(self, shape: Shape) -> bool:
        """A and B have a quarter of it each, C half: so buffers that hold each shape hold all of them in turn."""
        quarter = self.total_bytes // 4
        inputs = max(shape.m, shape.n) * shape.k * self.input_bytes
        return inputs <= quarter and shape.m * shape.n * (3 * self.output_bytes + 1) <= 2 * quarter


def first_round(multiprocessors: int, room: Room) -> list[Shape]:
    """About twenty shapes, deterministic, no two alike; those that a time limit cuts off are not the largest ones."""
    shapes = (Shape(m, n, DEPTH) for m, n in _sides(multiprocessors))
    held = (shape for shape in shapes if room.holds(shape))
    # Mixed, and always the same: by a multiplicative hash.
    return sorted(held, key=lambda each: ((each.m * 31 + each.n * 17 + each.k) * 0x9E3779B1 % 2**32, each))


def second_round(best: Sequence[Shape], room: Room, of: int = SECOND_ROUND) -> list[Shape]:
    """M and N of the best shapes (best first) with other K."""
    sides = list(dict.fromkeys((shape.m, shape.n) for shape in best))[:of]
    shapes = [Shape(m, n, k) for k in DEPTHS for m, n in sides]
    return [shape for shape in shapes if shape not in best and room.holds(shape)]


def known(first_shapes: Iterable[Sequence[int]], room: Room) -> list[Shape]:
    """What the caller knows to be good, as far as it is a shape and there is room for it."""
    shapes = [Shape(*map(int, shape)) for shape in first_shapes if len(shape) == 3]
    return [shape for shape in dict.fromkeys(shapes) if min(shape) > 0 and room.holds(shape)]


def affordable(shapes: Iterable[Shape], flop_per_s: float, each_s: float) -> list[Shape]:
    """The shapes of which one GEMM takes at most ``each_s`` at a rate that was measured."""
    return [shape for shape in shapes if shape.flop <= flop_per_s * each_s]


def sustained(room: Room) -> Shape:
    """The fixed shape that all GPUs of a model share: 8192 cubed, smaller where there is no room."""
    cubes = [Shape(side, side, side) for side in SUSTAINED]
    return next((cube for cube in cubes if room.holds(cube)), cubes[-1])


def next_cube(side: int, took_s: float) -> int | None:
    """The cube to try after one that took so long, None when that is the right one for CPUs: 20 to 100 ms.

    Small GEMMs run below the full rate: what is guessed from them may be too small, and is then tried again.
    """
    larger = [cube for cube in CUBES_OF_CPUS if cube > side and took_s * (cube / side) ** 3 <= LONGEST_ON_CPUS_S]
    return max(larger, default=None)


def of_cpus(cube: Shape) -> list[Shape]:
    """The cube and other proportions with the same work."""
    side = cube.m
    half = side // 2
    return [cube, Shape(2 * side, side, half), Shape(side, 2 * side, half), Shape(side, half, 2 * side)]


def _sides(multiprocessors: int) -> list[tuple[int, int]]:
    chosen: dict[tuple[int, int], None] = {}
    for tile in TILES:
        tried = 0
        for waves in WAVES:
            sides = _of_wave(tile, waves * multiprocessors)
            if not sides or tried == WAVES_TRIED:
                continue
            tried += 1
            for ratio in (1, SLIM):
                chosen[min(sides, key=lambda side: (_distance(side, ratio), side))] = None
    return list(chosen)


def _of_wave(tile: tuple[int, int], places: int) -> list[tuple[int, int]]:
    """All M, N whose tiles take nearly all of so many places and none more."""
    sides = []
    for rows in range(1, MOST // tile[0] + 1):
        columns = places // rows
        m, n = rows * tile[0], columns * tile[1]
        if columns and rows * columns >= LEAST_FILL * places and LEAST <= m <= MOST and LEAST <= n <= MOST:
            sides.append((m, n))
    return sides


def _distance(side: tuple[int, int], ratio: float) -> float:
    longer, shorter = max(side), min(side)
    return max(longer / shorter / ratio, ratio * shorter / longer)
