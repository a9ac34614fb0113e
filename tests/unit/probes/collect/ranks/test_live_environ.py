"""The live environment in memory that is made up, and not what it should be."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from mltop.probes.collect.ranks.live_environ import LIMIT_S, Unreadable, read_live_environ
from tests.fakes.process_memory import HEAP, LIBC, PROGRAM, Memory, memory_with
from tests.fakes.proctree import ProcTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    tree.python(20, "train.py")
    return tree


def read(tree: ProcTree, memory: Memory) -> bytes:
    memory.write(tree.root / "20")
    return read_live_environ(str(tree.root), 20, tree.processes[20].start_ticks)


def test_the_made_up_memory_is_read_as_a_real_one(tree: ProcTree) -> None:
    assert read(tree, memory_with([b"A=1", b"RANK=3"])) == b"RANK=3\0A=1\0"
    assert read(tree, memory_with([])) == b""


def test_garbage_among_the_pointers_costs_only_itself(tree: ProcTree) -> None:
    good = HEAP + 0x10000
    array = [1, good, (1 << 64) - 1, 1 << 62, HEAP + 0x900000]
    assert read(tree, memory_with([b"RANK=3"], array)) == b"RANK=3\0"


def test_a_huge_environment_is_read_in_bounds_and_from_its_end(tree: ProcTree) -> None:
    memory = memory_with([b"X%d=" % n + b"y" * 5000 for n in range(3000)] + [b"RANK=3"])
    began = time.monotonic()
    variables = read(tree, memory)
    assert variables.startswith(b"RANK=3\0")
    assert len(variables) <= 512 * 4096
    assert time.monotonic() - began < 20 * LIMIT_S


@pytest.mark.parametrize(
    ("address", "data"),
    [
        (PROGRAM, b"\xff" * 112),  # headers
        (PROGRAM + 512, struct.pack("=4Q", 21, 8, 0, 0)),  # the list of libraries is nowhere
        (HEAP + 64, struct.pack("=4Q", 0, 0, PROGRAM + 512, HEAP + 64)),  # it has no end
        (LIBC + 1024, struct.pack("=6Q", 5, 1 << 63, 6, 1 << 63, 0x6FFFFEF5, 1 << 63)),
        (LIBC + 3072, struct.pack("=4I", 0, 0, 0, 0)),
        (LIBC + 3096, struct.pack("=4I", 1, 0, 0, 0)),  # a chain without an end
        (LIBC + 1024, struct.pack("=8Q", 5, LIBC + 2048, 6, LIBC + 2304, 4, LIBC + 3072, 0, 0)),  # other table
        (LIBC + 8192, struct.pack("=Q", 1 << 50)),
    ],
)
def test_corrupt_memory_is_an_error_and_nothing_else(tree: ProcTree, address: int, data: bytes) -> None:
    memory = memory_with([b"A=1"])
    memory.image[address] = data + memory.image.get(address, b"")[len(data) :]
    with pytest.raises((Unreadable, FileNotFoundError)):
        read(tree, memory)


def test_a_program_of_32_bits_and_one_without_memory(tree: ProcTree) -> None:
    memory = memory_with([b"RANK=3"])
    memory.auxv = struct.pack("=8I", 3, PROGRAM, 4, 32, 5, 2, 0, 0)
    with pytest.raises(Unreadable, match="64-bit"):
        read(tree, memory)
    (tree.root / "20" / "mem").unlink()
    with pytest.raises(FileNotFoundError):
        read_live_environ(str(tree.root), 20, tree.processes[20].start_ticks)
