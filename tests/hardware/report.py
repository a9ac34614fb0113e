"""The text of a run: one line for each check, and what it was run on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, get_args

from mltop.probes.model.text import clean
from tests.hardware.checks import Check, Outcome
from tests.hardware.context import Machine, Pythons


def header(machine: Machine, pythons: Pythons) -> str:
    versions = [f"{name} {value or 'unknown'}" for name, value in machine.versions.items() if name != "host"]
    gpus = Counter(str(gpu["name"] or "a GPU without a name") for gpu in machine.gpus)
    told = [f"{count} x {name}" for name, count in gpus.items()] or ["no GPU"]
    gaps = [f"{what}: {why}" for what, why in machine.gaps.items()]
    pythons_said = f"mltop in {pythons.mltop}, torch in {pythons.torch or 'no Python'}"
    return "\n".join(clean(line, 2000) for line in (", ".join(told), ", ".join(versions), pythons_said, *gaps))


def of_slice(name: str, checks: list[Check], seconds: float) -> str:
    own = [check for check in checks if check.slice == name]
    worth = [line(check) for check in own if check.outcome == "differs"]
    return "\n".join([f"{name}: {summary(own)} ({seconds:g} s)", *worth])


def lines(checks: list[Check]) -> str:
    return "\n".join(line(check) for check in checks)


def line(check: Check) -> str:
    """ "differs    values     power_w [gpu 0]: mltop 71.2 W, nvidia-smi power.draw 90.1 to 91.0 W; why"."""
    gpu = f" [gpu {check.details['gpu']}]" if "gpu" in check.details else ""
    unit = f" {check.unit}" if check.unit else ""
    source = check.details.get("source", "expected")
    parts = []
    if check.ours is not None or check.outcome == "differs":
        parts.append(f"mltop {_value(check.ours)}{unit if check.ours is not None else ''}")
    if check.theirs is not None:
        parts.append(f"{source} {_value(check.theirs)}{unit}")
    told = ", ".join(parts)
    why = "; ".join(part for part in (told, check.why) if part)
    return clean(f"{check.outcome:<10} {check.slice:<11} {check.name}{gpu}: {why}", 2000)


def summary(checks: list[Check]) -> str:
    counted = Counter(check.outcome for check in checks)
    return ", ".join(f"{counted[outcome]} {outcome}" for outcome in get_args(Outcome))


def _value(value: Any) -> str:
    """A range as "1 to 2"; None is "unknown"."""
    if value is None:
        return "unknown"
    if isinstance(value, dict) and value.keys() == {"low", "high"}:
        return _range(value["low"], value["high"])
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _range(low: Any, high: Any) -> str:
    if low is None:
        return f"at most {_value(high)}"
    if high is None:
        return f"at least {_value(low)}"
    return _value(low) if low == high else f"{_value(low)} to {_value(high)}"
