"""Sizes in words, and which of them fit into this node's memory."""

from __future__ import annotations

from collections.abc import Iterable

from mltop.probes import paths

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Input and output, or input and what gloo and the check keep beside it.
COPIES = 2


def size_text(size_bytes: float) -> str:
    """262144 -> "256 KiB"; one decimal where it is no whole number."""
    value, unit = float(size_bytes), UNITS[0]
    for bigger in UNITS[1:]:
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.1f}".replace(".0", "") + f" {unit}"


def stage_of(collective: str, size_bytes: int) -> str:
    """The stage's name: "measure 256 MiB", with the collective's name where it is not the all-reduce."""
    which = "" if collective == "all-reduce" else f"{collective} "
    return f"measure {which}{size_text(size_bytes)}"


def most_bytes(available_bytes: int | None, ranks: int) -> int | None:
    """The largest size when all ranks of a node together may take half of its available memory."""
    return None if available_bytes is None else available_bytes // 2 // COPIES // max(1, ranks)


def too_big(sizes_bytes: Iterable[int], available_bytes: int | None, ranks: int) -> dict[int, str]:
    """Size -> the sentence why it is refused."""
    most = most_bytes(available_bytes, ranks)
    if most is None or available_bytes is None:
        return {}
    return {
        size: f"{size_text(size)} for each of {ranks} ranks ({COPIES} buffers each) does not fit into half of the"
        f" available memory ({size_text(available_bytes // 2)})"
        for size in sizes_bytes
        if size > most
    }


def too_big_for_gpu(sizes_bytes: Iterable[int], free_bytes: int) -> dict[int, str]:
    """Size -> the sentence, when its buffers would take more than half of the GPU's free memory."""
    free = f"half of the GPU's free memory ({size_text(free_bytes // 2)})"
    return {
        size: f"{size_text(size)} ({COPIES} buffers) does not fit into {free}"
        for size in sizes_bytes
        if size * COPIES > free_bytes // 2
    }


def available_memory_bytes() -> int | None:
    """The least of the kernel's estimate and of what this process's cgroups have left, None if neither is known."""
    found = [value for value in (_of_machine(), _of_cgroup()) if value is not None]
    return min(found) if found else None


def _of_machine() -> int | None:
    for line in _read(paths.proc("meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_cgroup() -> int | None:
    """Version 2: the limit nearest to us and those above it."""
    own = next((line[3:] for line in _read(paths.proc("self", "cgroup")).splitlines() if line.startswith("0::")), "")
    left = []
    parts = [part for part in own.split("/") if part]
    for depth in range(len(parts) + 1):
        folder = paths.sys("fs", "cgroup", *parts[:depth])
        most, now = _read(f"{folder}/memory.max").strip(), _read(f"{folder}/memory.current").strip()
        if most.isdigit() and now.isdigit():
            left.append(max(0, int(most) - int(now) + _cache(folder)))
    return min(left) if left else None


def _cache(folder: str) -> int:
    """Bytes of files in memory that the kernel gives back when they are needed."""
    lines = [line.split() for line in _read(f"{folder}/memory.stat").splitlines()]
    return sum(int(value) for name, value in lines if name == "inactive_file")


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
