"""A process's memory as files: /proc/PID/auxv and /proc/PID/mem of a 64-bit program with a C library."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM, LIBC, HEAP = 0x10000, 0x40000, 0x80000  # small, so that the file stays small
_PHDR = struct.Struct("=IIQQQQQQ")


def _chain(*names: bytes) -> list[int]:
    """Their GNU hashes; the lowest bit marks the last."""
    hashes = []
    for name in names:
        hashed = 5381
        for byte in name:
            hashed = (hashed * 33 + byte) & 0xFFFFFFFF
        hashes.append(hashed & ~1)
    return [*hashes[:-1], hashes[-1] | 1]


@dataclass
class Memory:
    """``image`` is written as a sparse file: the offset is the address."""

    image: dict[int, bytes]
    auxv: bytes

    def write(self, folder: Path) -> None:
        (folder / "auxv").write_bytes(self.auxv)
        with open(folder / "mem", "wb") as file:
            for address, data in self.image.items():
                file.seek(address)
                file.write(data)
            file.truncate(max(address + len(data) for address, data in self.image.items()) + 4096 & -4096)


def memory_with(variables: Sequence[bytes], array: Sequence[int] | None = None) -> Memory:
    """One whose live environment is ``variables`` (b"RANK=3"); ``array``: other addresses in their place."""
    strings, addresses = bytearray(), []
    for variable in variables:
        addresses.append(HEAP + 0x10000 + len(strings))
        strings += variable + b"\0"
    pointers = list(addresses if array is None else array)
    image = {
        PROGRAM: _PHDR.pack(6, 4, 64, PROGRAM, PROGRAM, 112, 112, 8) + _PHDR.pack(2, 4, 0, PROGRAM + 512, 0, 64, 64, 8),
        PROGRAM + 512: struct.pack("=6Q", 21, HEAP, 0, 0, 0, 0),  # DT_DEBUG
        HEAP: struct.pack("=2Q", 1, HEAP + 64),  # r_debug
        HEAP + 64: struct.pack("=4Q", 0, 0, PROGRAM + 512, HEAP + 128),  # the program, which has no symbols
        HEAP + 128: struct.pack("=4Q", LIBC, 0, LIBC + 1024, 0),
        LIBC + 1024: struct.pack("=8Q", 5, LIBC + 2048, 6, LIBC + 2304, 0x6FFFFEF5, LIBC + 3072, 0, 0),
        LIBC + 2048: b"\0printf\0environ\0",
        LIBC + 2304: bytes(24)
        + struct.pack("=IBBHQQ", 1, 2, 0, 1, 16, 8)
        + struct.pack("=IBBHQQ", 8, 1, 0, 1, 8192, 8),
        LIBC + 3072: struct.pack("=4IQ3I", 1, 1, 1, 6, (1 << 64) - 1, 1, *_chain(b"printf", b"environ")),  # one bucket
        LIBC + 8192: struct.pack("=Q", HEAP + 0x4000),
        HEAP + 0x4000: struct.pack(f"={len(pointers) + 1}Q", *pointers, 0),
        HEAP + 0x10000: bytes(strings) or b"\0",
    }
    return Memory(image, struct.pack("=8Q", 3, PROGRAM, 4, 56, 5, 2, 0, 0))
