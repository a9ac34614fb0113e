"""Where the user is when one GPU is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.tui.place import Place


@dataclass(frozen=True)
class GpuPlace(Place):
    """``gpu``: NVML's index on ``node``."""

    gpu: int = 0


def gpu_place(node: str, gpu: int) -> GpuPlace:
    return GpuPlace("gpu", node, label=f"gpu {gpu}", gpu=gpu)


def gpu_of_row(key: str) -> int:
    """The GPU of a row of the GPU table; an instance's row ("3.0") belongs to GPU 3."""
    return int(key.partition(".")[0])
