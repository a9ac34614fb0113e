"""NVML itself: a driver call that does not return."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.judge.health.rule import DRIVER, Hit, Moment, Rule

# The same gap also says that there is no driver at all, which is no fault of a machine without GPUs.
_STUCK = re.compile(r"does not answer|stuck in|is slow: no answer|cannot be ended")


START_S = 20.0  # longer than any other answer


def stuck(moment: Moment) -> Iterator[Hit]:
    """One hit per node; a stuck driver is most often one GPU that is about to be lost."""
    whys = [gap.why for gap in moment.now.gaps if gap.what == "nvml" and _STUCK.search(gap.why)]
    if whys:
        # Without persistence mode the driver first wakes every GPU, which takes seconds for each.
        starts = any(gap.what == "nvml.starting" for gap in moment.now.gaps)
        yield Hit("NVML", whys[0], tuple(whys[1:]), hold_s=START_S if starts else None)


RULES = (
    Rule(
        "nvml.stuck",
        "critical",
        0.0,
        "look for Xid lines in dmesg; if the call never returns: reboot",
        stuck,
        meaning="a driver call does not return",
        threshold="no answer for 5 s; the first answer, for which the driver wakes all GPUs: 25 s*",
        eager=False,  # that mltop has just begun is no reason not to wait for it
        clear_s=10.0,
        source="breadcrumb of the NVML child",
        precedence=DRIVER,
        explains_node=("gpu.error", "gpu.missing"),
        needs=("nvml",),
        remedy="reboot",
    ),
)
