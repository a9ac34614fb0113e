"""Reads the call counters that the fake NVML writes while it runs (layout: counters.c)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = b"MLTOPNC1"
HEADER = struct.Struct("=8sII")
NAME_BYTES = 64


def read_counts(path: Path | str) -> dict[str, int]:
    """Calls per function that was called since the file was created, of all processes that share it."""
    return {name: row[0] for name, row in _rows(path) if row[0]}


def per_gpu(path: Path | str) -> dict[int, int]:
    """Calls per GPU index, all functions together (calls that concern no GPU are in none)."""
    totals: dict[int, int] = {}
    for _, row in _rows(path):
        for gpu, calls in enumerate(row[1:]):
            if calls:
                totals[gpu] = totals.get(gpu, 0) + calls
    return dict(sorted(totals.items()))


def calls_on_gpu(path: Path | str, gpu: int) -> dict[str, int]:
    """Calls per function on one GPU."""
    return {name: row[1 + gpu] for name, row in _rows(path) if row[1 + gpu]}


def _rows(path: Path | str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(function, (total, GPU 0, GPU 1, ...)); nothing when no process has loaded the library yet."""
    file = Path(path)
    content = file.read_bytes() if file.exists() else b""
    if not content.startswith(MAGIC):
        return
    _, functions, gpus = HEADER.unpack_from(content)
    row = struct.Struct(f"={1 + gpus}Q")
    rows_start = HEADER.size + functions * NAME_BYTES
    for index in range(functions):
        name_start = HEADER.size + index * NAME_BYTES
        name = content[name_start : name_start + NAME_BYTES].rstrip(b"\0").decode()
        yield name, row.unpack_from(content, rows_start + index * row.size)
