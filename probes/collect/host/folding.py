"""One gap for all that a machine does not have: a virtual machine lacks many things that nobody misses."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model import Gap

_PREFIX = "host."


def folded(gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps, those about absent things (kind "unsupported") as one: ``host.{governor,services}``."""
    absent = [gap for gap in gaps if gap.kind == "unsupported" and gap.what.startswith(_PREFIX) and not gap.fix]
    if len(absent) < 2:
        return list(gaps)
    names = [_names(gap.what) for gap in absent]
    why = "; ".join(f"{', '.join(some)}: {gap.why}" for some, gap in zip(names, absent))
    one = Gap(f"host.{{{','.join(name for some in names for name in some)}}}", why, "", "unsupported")
    return [*(gap for gap in gaps if gap not in absent), one]


def _names(what: str) -> list[str]:
    inner = what[len(_PREFIX) :]
    return inner[1:-1].split(",") if inner.startswith("{") and inner.endswith("}") else [inner]
