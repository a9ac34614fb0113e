"""The slices: one module each, with ``CHECKS`` (names that may agree or differ) and ``run(context)``.

A new one: the module, a row in SLICES, and one fault for each check in tests/system/faults/NAME.py. It yields a check
as soon as it is known, ends before ``context.left_s()`` is 0, raises NotTriedError where it cannot go on, puts no load
on a GPU that somebody uses (loads.in_use), and saves raw answers with ``context.record``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol

from tests.hardware.checks import Check
from tests.hardware.context import Context

Need = Literal["gpu", "torch", "root"]
LIMIT_S = 540.0  # of any slice


class Module(Protocol):
    """``CHECKS``: all that may agree or differ. Of those that a slice did not come to the runner says why not."""

    CHECKS: tuple[str, ...]

    def run(self, context: Context) -> Iterator[Check]: ...


@dataclass(frozen=True)
class Slice:
    """``seconds``: what it usually takes; it is ended at LIMIT_S, or when the whole run's time is over."""

    purpose: str
    needs: tuple[Need, ...]
    seconds: float


# By the name of the module.
SLICES: dict[str, Slice] = {
    "values": Slice("every field of a GPU's sample against second sources", ("gpu",), 30),
    "throttling": Slice("a GEMM at the power limit: reasons, counters, share of time, clocks", ("gpu", "torch"), 90),
    "activity": Slice("GPM under known loads, beside NVML's and nvidia-smi's own words", ("gpu",), 200),
    "cost": Slice("NVML calls and their times, the agent's CPU and memory, what a GEMM loses by it", ("gpu",), 420),
    "probes": Slice("mltop's matmul probe: burst against a full scan, sustained, refusal", ("gpu", "torch"), 360),
    "dtypes": Slice("each data type: whether this GPU can, and its rates", ("gpu", "torch"), 180),
    "copies": Slice("copies within a GPU, to the host and back, and between GPUs", ("gpu", "torch"), 60),
    "bits": Slice("mltop's bit checker for five minutes", ("gpu", "torch"), 370),
    "stacks": Slice("what mltop stacks says of jobs that train and that are stuck on a GPU", ("gpu", "torch"), 150),
    "records": Slice("NCCL's and torch's logs, RAS and dumps of a collective that times out", ("gpu", "torch"), 120),
}


def module_of(name: str) -> Module:
    return import_module(f"{__name__}.{name}")  # type: ignore[return-value]
