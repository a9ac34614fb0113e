"""`mltop lemon`: the list of GPUs that gave trouble before, so that they are known when they come back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mltop.probes.model.text import clean
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put
from mltop.tui.commands.live import refuse_read_only
from mltop.tui.state import usage_problems
from mltop.tui.state.lists import Lemon, change_lemons, read_lemons


def run(options: TargetOptions, verb: str = "", gpu: str = "", why: Sequence[str] = ()) -> int:
    """``gpu``: UUID or serial number; adding it again replaces the note. Without a ``verb`` every entry is printed."""
    with usage_problems("lemon list"):
        if not verb:
            for lemon in read_lemons().values():
                put(f"{lemon.gpu}  {lemon.words}")
            return 0
        refuse_read_only(options, f"lemon {verb}")
        gpu = gpu.strip()
        if verb == "add" and (not gpu or " " in gpu or clean(gpu) != gpu):
            raise UsageProblem("lemon add", f"{gpu!r} is no UUID or serial number (mltop snapshot --json has them)")

        def change(lemons: dict[str, Lemon]) -> None:
            if verb == "add":
                lemons[gpu] = Lemon(gpu, clean(" ".join(" ".join(why).split())), time.time())
            elif lemons.pop(gpu, None) is None:
                raise UsageProblem("lemon remove", f"{gpu} is not on the list (mltop lemon shows it)")

        change_lemons(change)
    return 0
