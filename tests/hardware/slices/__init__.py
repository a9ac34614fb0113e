"""The slices: one module each, with ``CHECKS`` (names that may agree or differ) and ``run(context)``.

A new one: the module, a row in SLICES, and one fault for each check in tests/system/hardware/faults/NAME.py. It yields
a check as soon as it is known, ends before ``context.left_s()`` is 0, raises NotTriedError where it cannot go on, puts
no load on a GPU that somebody uses (loads.in_use), and saves raw answers with ``context.record``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol

from tests.hardware.checks import Check
from tests.hardware.context import Context

Need = Literal["gpu", "torch", "mltop", "pyte", "root"]
LIMIT_S = 540.0  # of any slice
SLOW = 1.5  # times its usual time, on a slow machine


class Module(Protocol):
    """``CHECKS``: all that may agree or differ. Of those that a slice did not come to the runner says why not."""

    CHECKS: tuple[str, ...]

    def run(self, context: Context) -> Iterator[Check]: ...


@dataclass(frozen=True)
class Slice:
    """``seconds``: what it usually takes. ``least``: with less it is not worth to begin."""

    purpose: str
    needs: tuple[Need, ...]
    seconds: float
    least: float


# By the name of the module. In order of value: what was never proven on a GPU comes first.
SLICES: dict[str, Slice] = {
    "stacks": Slice("mltop stacks beside jobs that train and jobs that hang on a GPU", ("gpu", "torch"), 190, 60),
    "screen": Slice("the screen in a terminal beside a training job", ("gpu", "torch", "mltop", "pyte"), 35, 30),
    "dtypes": Slice("each data type: whether this GPU can, and its rates", ("gpu", "torch"), 125, 60),
    "bits": Slice("mltop's bit checker for five minutes", ("gpu", "torch"), 370, 35),
    "cost": Slice("NVML calls and their times, the agent's CPU and memory, what a GEMM loses by it", ("gpu",), 420, 50),
    "records": Slice(
        "NCCL's and torch's logs, RAS and dumps of a collective that times out", ("gpu", "torch"), 120, 45
    ),
    "values": Slice("every field of a GPU's sample against second sources", ("gpu",), 30, 15),
    "activity": Slice("GPM under known loads, beside NVML's and nvidia-smi's own words", ("gpu",), 200, 100),
    "throttling": Slice(
        "a GEMM at the power limit: reasons, counters, share of time, clocks", ("gpu", "torch"), 90, 40
    ),
    "probes": Slice("mltop's matmul probe: burst against a full scan, sustained, refusal", ("gpu", "torch"), 360, 100),
    "copies": Slice("copies within a GPU, to the host and back, and between GPUs", ("gpu", "torch"), 60, 30),
}


def share(name: str, later: Sequence[str], left_s: float) -> float:
    """How long a slice may take: what is left, but for the least of those after it that fit beside its usual time."""
    one = SLICES[name]
    own = next((own for own in (SLOW * one.seconds, one.seconds) if own <= left_s), one.least)
    kept = 0.0
    for other in later:
        if own + kept + SLICES[other].least <= left_s:
            kept += SLICES[other].least
    return min(LIMIT_S, left_s - kept)


def module_of(name: str) -> Module:
    return import_module(f"{__name__}.{name}")  # type: ignore[return-value]
