"""The third state of a rule: not fine, not firing, but unknown, with why and the command that would tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mltop.probes.judge.health.rule import Rule
from mltop.probes.model import Gap, Sample, Unknown

# GPU indexes and PCI addresses (which hold a dot themselves).
_INDEX = re.compile(r"(?<=\.)(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+)(?=\.|$)")


def unknowns_of(sample: Sample, rules: Sequence[Rule] = ()) -> list[Unknown]:
    """A line per gap of the sample that keeps rules from being judged (none given: all rules).

    What does not exist here is not unknown, and what would only be worth knowing is not missed.
    """
    found = []
    judged = [rule for rule in rules or _all_rules() if rule.severity != "info"]
    for gap in sample.gaps:
        if gap.kind != "unknown":
            continue
        hindered = [rule.id for rule in judged if any(touches(gap, need) for need in rule.needs)]
        if hindered:
            found.append(Unknown(sample.node, gap.what, gap.why, gap.fix, hindered))
    return found


def _all_rules() -> Sequence[Rule]:
    from mltop.probes.judge.health.registry import RULES

    return RULES


def touches(gap: Gap, need: str) -> bool:
    """Whether the gap is about ``need`` or about all that it is a part of.

    ``gpu.3.ecc`` is about ``gpu.*.ecc.sram_threshold_exceeded``, and ``nvml`` is about everything below ``gpu``. A
    missing part does not hinder: who needs it names it. One of several ports or devices is not a part.
    """
    for one in _alternatives(gap.what):
        what = _port_as_star(_INDEX.sub("*", one))
        if what == need or need.startswith(what + ".") or what == need + ".*":
            return True
        if need == "links" and what.count(".") == 1 and what.startswith("links."):
            return True
        if what == "nvml" and need.startswith("gpu."):
            return True
    return False


def _port_as_star(what: str) -> str:
    """``links.mlx5_4.counters`` is of one port."""
    parts = what.split(".")
    return ".".join(("links", "*", *parts[2:])) if parts[0] == "links" and len(parts) > 2 else what


def _alternatives(what: str) -> list[str]:
    """``gpu.*.{a,b}`` and ``a, b`` name several."""
    brace = re.fullmatch(r"(.*)\{(.*)\}(.*)", what)
    if brace:
        head, inner, tail = brace.groups()
        return [f"{head}{part}{tail}" for part in inner.split(",")]
    return [part.strip() for part in what.split(",")]
