"""The text of a run: one line for each check, and what it was run on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, get_args

from mltop.probes.model.text import clean
from tests.hardware.checks import Check, Outcome
from tests.hardware.context import Machine, Pythons


def header(machine: Machine, pythons: Pythons, checks: list[Check]) -> str:
    """What was tested with what, and of ``checks`` which slices were not tried at all, and why."""
    versions = {name: value or "unknown" for name, value in machine.versions.items()}
    counted = Counter(str(gpu["name"] or "a GPU without a name") for gpu in machine.gpus)
    told = [", ".join(f"{count} x {name}" for name, count in counted.items()) or "no GPU"]
    at = f"in Python {versions.pop('python', 'unknown')} {pythons.mltop}, its package in {pythons.package}"
    told.append(f"mltop {versions.pop('mltop', 'unknown')}: {pythons.program or 'no program'}, {at}")
    torch = [versions.pop(name, "unknown") for name in ("torch", "cuda", "torch_python")]
    of_torch = (
        f"torch {torch[0]}, CUDA {torch[1]}, in Python {torch[2]} {pythons.torch}" if pythons.torch else "no torch"
    )
    told.append(of_torch)
    told.append(", ".join(f"{name} {value}" for name, value in versions.items() if name != "host"))
    skipped = _skipped(checks)
    told += [f"{what}: {why}" for what, why in machine.gaps.items() if why not in skipped]
    told += [f"skipped: {', '.join(names)}: {why}" for why, names in skipped.items()]
    return "\n".join(clean(line, 2000) for line in told)


def _skipped(checks: list[Check]) -> dict[str, list[str]]:
    """Slices of which nothing was tried, by the reason."""
    tried = {check.slice for check in checks if check.outcome != "not tried"}
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.slice not in tried and check.slice not in found.setdefault(check.why, []):
            found[check.why].append(check.slice)
    return found


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
