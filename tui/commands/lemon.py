"""`mltop lemon`: the list of GPUs that gave trouble before, so that they are known when they come back."""

from __future__ import annotations

import time

from mltop.probes.model.text import clean
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put
from mltop.tui.commands.live import refuse_read_only
from mltop.tui.state import usage_problems
from mltop.tui.state.lists import Lemon, change_lemons, read_lemons


def listed() -> int:
    """Every entry on a line."""
    with usage_problems("lemon list"):
        lemons = read_lemons()
    for lemon in lemons.values():
        put(f"{lemon.gpu}  {lemon.words}")
    return 0


def add(options: TargetOptions, gpu: str, text: str) -> int:
    """``gpu``: UUID or serial number; a second time replaces the note."""
    refuse_read_only(options, "lemon add")
    gpu = gpu.strip()
    if not gpu or " " in gpu or clean(gpu) != gpu:
        raise UsageProblem("lemon add", f"{gpu!r} is no UUID or serial number (mltop snapshot --json has them)")
    added = Lemon(gpu, clean(" ".join(text.split())), time.time())
    with usage_problems("lemon list"):
        change_lemons(lambda lemons: lemons.update({gpu: added}))
    return 0


def remove(options: TargetOptions, gpu: str) -> int:
    refuse_read_only(options, "lemon remove")

    def take_off(lemons: dict[str, Lemon]) -> None:
        if lemons.pop(gpu, None) is None:
            raise UsageProblem("lemon remove", f"{gpu} is not on the list (mltop lemon shows it)")

    with usage_problems("lemon list"):
        change_lemons(take_off)
    return 0
