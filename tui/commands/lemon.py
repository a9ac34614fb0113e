"""`mltop lemon`: the list of GPUs that gave trouble before, so that they are known when they come back."""

from __future__ import annotations

import time

from mltop.probes.reach.errors import UsageProblem
from mltop.tui.output import put
from mltop.tui.state.lemons import Lemon, read_lemons, write_lemons
from mltop.tui.state.place import BadState


def listed() -> int:
    """Every entry on a line."""
    for lemon in _read().values():
        put(f"{lemon.gpu}  {lemon.words}")
    return 0


def add(gpu: str, text: str) -> int:
    """``gpu``: UUID or serial number; a second time replaces the note."""
    gpu = gpu.strip()
    if not gpu or " " in gpu:
        raise UsageProblem("lemon add", f"{gpu!r} is no UUID or serial number (mltop snapshot --json has them)")
    _write({**_read(), gpu: Lemon(gpu, " ".join(text.split()), time.time())})
    return 0


def remove(gpu: str) -> int:
    lemons = _read()
    if gpu not in lemons:
        raise UsageProblem("lemon remove", f"{gpu} is not on the list (mltop lemon shows it)")
    del lemons[gpu]
    _write(lemons)
    return 0


def _read() -> dict[str, Lemon]:
    try:
        return read_lemons()
    except BadState as problem:
        raise UsageProblem("lemon list", str(problem)) from None


def _write(lemons: dict[str, Lemon]) -> None:
    try:
        write_lemons(lemons)
    except BadState as problem:
        raise UsageProblem("lemon list", str(problem)) from None
