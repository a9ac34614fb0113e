"""NVML itself: a driver call that does not return; and what the reader of NVML says is wrong, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.judge.health.rule import DRIVER, Hit, Moment, Rule
from mltop.probes.model import Gap, GpuSample, Sample

# Faults (model/gpu.py) that all of NVML is refused with. A call that hangs is none: the other GPUs answer.
REFUSALS = frozenset(
    {
        "no_driver",
        "no_bindings",
        "library_broken",
        "driver_not_loaded",
        "driver_mismatch",
        "no_permission",
        "lost",
        "needs_reset",
        "failed",
    }
)
# Recordings of versions without Gap.code and GpuSample.error_code have only their words.
_OLD_STUCK = re.compile(r"does not answer|stuck in|is slow: no answer|cannot be ended")
_OLD_NUMBER = re.compile(r"NVML error (\d+)\b")
_OLD_FAULTS = {"15": "lost", "16": "needs_reset", "18": "driver_mismatch"}


def fault_of(one: Gap | GpuSample) -> str:
    """The Fault of a gap or of a GPU, "" for none."""
    code, words = (one.code, one.why) if isinstance(one, Gap) else (one.error_code, one.error or "")
    if code:
        return code
    if isinstance(one, Gap) and _OLD_STUCK.search(words):
        return "stuck"
    number = _OLD_NUMBER.search(words)
    return _OLD_FAULTS.get(number[1], "") if number else ""


def refusal(sample: Sample) -> Gap | None:
    """Why all of NVML is refused, None when it is not."""
    return next((gap for gap in sample.gaps if gap.what == "nvml" and fault_of(gap) in REFUSALS), None)


START_S = 20.0  # longer than any other answer


def stuck(moment: Moment) -> Iterator[Hit]:
    """One hit per node; a stuck driver is most often one GPU that is about to be lost."""
    whys = [gap.why for gap in moment.now.gaps if gap.what == "nvml" and fault_of(gap) == "stuck"]
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
