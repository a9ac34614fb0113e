"""The CPUs beside a GPU: host memory of a copy has to be there, or the socket's interconnect is measured instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from mltop.probes import paths


@dataclass(frozen=True)
class Place:
    """``cpus``: of this process's own that are beside the GPU; ``near`` None: nobody knows where the GPU is."""

    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()
    near: bool | None = None


def place_of(address: str) -> Place:
    """Of a GPU by its PCI address. Sources: sysfs numa_node and local_cpulist of the device."""
    if not address:
        return Place()
    folder = paths.sys("bus", "pci", "devices", address)
    local = _cpus(_read(f"{folder}/local_cpulist"))
    text = _read(f"{folder}/numa_node")
    node = int(text) if text.lstrip("-").isdigit() else -1  # -1: the firmware does not say
    if not local:
        return Place(node if node >= 0 else None)
    allowed = frozenset(os.sched_getaffinity(0)) & local
    return Place(node if node >= 0 else None, allowed, bool(allowed))


@contextlib.contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """Memory that this thread touches first is allocated beside these CPUs. Anywhere, when there are none."""
    before = os.sched_getaffinity(0)
    moved = False
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
            moved = True
    try:
        yield
    finally:
        if moved:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


def _cpus(text: str) -> frozenset[int]:
    """``0-15,32-47``"""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return frozenset(found)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
