"""What a check says: mltop and a second source agree, they differ, or one of them has nothing to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mltop.probes.model import Gap

Outcome = Literal["agrees", "differs", "not tried"]


class NotTriedError(Exception):
    """A slice cannot go on; the text says why, for all of its checks that did not come yet."""


@dataclass(frozen=True)
class Told:
    """What a second source says. ``value`` None: nothing, and ``why``.

    ``unsupported``: it says itself that this GPU or driver has no such thing (nvidia-smi's "N/A"). ``least``: it may
    be more.
    """

    value: Any = None
    why: str = ""
    unsupported: bool = False
    least: bool = False


@dataclass(frozen=True)
class Check:
    """One line of the report. ``ours`` and ``theirs`` are values as JSON has them, in ``unit``; a range is a dict with
    ``low`` and ``high``, None where it is open.

    ``why``: of what was not tried the reason, of what differs what is known about it. ``slice`` is set by who runs it.
    ``details``: which GPU, which second source, what slack was given, …
    """

    name: str
    outcome: Outcome
    ours: Any = None
    theirs: Any = None
    why: str = ""
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    slice: str = ""


def not_tried(name: str, why: str, **details: Any) -> Check:
    return Check(name, "not tried", why=why, details=details)


def compare(
    name: str, ours: Any, theirs: Told, tolerance: float = 0, unit: str = "", gap: Gap | None = None, **details: Any
) -> Check:
    """Equal, for numbers within ``tolerance`` (in ``unit``). ``gap``: why mltop has no value.

    Unknown never agrees with anything; only "there is no such thing", said by both, does.
    """
    missing = _one_is_missing(name, ours, theirs, unit, gap, details)
    if missing is not None:
        return missing
    if _is_number(ours) and _is_number(theirs.value):
        same = abs(ours - theirs.value) <= tolerance
    else:
        same = ours == theirs.value
    if tolerance:
        details["tolerance"] = tolerance
    return Check(name, "agrees" if same else "differs", ours, theirs.value, "", unit, details)


def between(
    name: str,
    ours: Any,
    before: Told,
    after: Told,
    slack: float = 0,
    unit: str = "",
    gap: Gap | None = None,
    **details: Any,
) -> Check:
    """For what moves: it was asked before and after mltop did. ``slack``: beyond both ends, in ``unit``.

    What is no number must be as it was at one of the two times; in a dict numbers may be ``slack`` away.
    """
    told = after if before.value is None else before
    missing = _one_is_missing(name, ours, told, unit, gap, details)
    if missing is not None:
        return missing
    if not (_is_number(ours) and all(_is_number(one.value) for one in (before, after) if one.value is not None)):
        same = any(_alike(ours, one.value, slack) for one in (before, after))
        return Check(name, "agrees" if same else "differs", ours, told.value, "", unit, details)
    ends = sorted(one.value for one in (before, after) if one.value is not None)
    low, high = ends[0], ends[-1]
    same = low - slack <= ours and (told.least or ours <= high + slack)
    details["slack"] = slack
    return Check(name, "agrees" if same else "differs", ours, {"low": low, "high": high}, "", unit, details)


def among(
    name: str, ours: list[Any] | None, before: Told, after: Told, gap: Gap | None = None, **details: Any
) -> Check:
    """For lists of what comes and goes: all that was told both times, and nothing that was told neither time."""
    told = after if before.value is None else before
    missing = _one_is_missing(name, ours, told, "", gap, details)
    if missing is not None or ours is None:
        return missing or not_tried(name, told.why)
    sets = [set(one.value) for one in (before, after) if one.value is not None]
    same = set.intersection(*sets) <= set(ours) <= set.union(*sets)
    return Check(name, "agrees" if same else "differs", ours, told.value, "", "", details)


def within(
    name: str, ours: Any, low: float | None, high: float | None, why: str, unit: str = "", **details: Any
) -> Check:
    """For what a known load must lead to; ``why`` says what was loaded how. ``ours`` None differs: it must be known."""
    same = ours is not None and (low is None or low <= ours) and (high is None or ours <= high)
    return Check(name, "agrees" if same else "differs", ours, {"low": low, "high": high}, why, unit, details)


def ratio(
    name: str,
    ours: float | None,
    theirs: Told,
    low: float,
    high: float | None,
    why: str,
    unit: str = "",
    why_none: str = "",
    **details: Any,
) -> Check:
    """``ours`` over ``theirs`` between ``low`` and ``high``; ``why_none``: why there is no ``ours``."""
    missing = _one_is_missing(name, ours, theirs, unit, Gap(name, why_none) if why_none else None, details)
    if missing is not None or ours is None:
        return missing or not_tried(name, theirs.why)
    details["ratio"] = round(ours / theirs.value, 4) if theirs.value else None
    most = None if high is None else high * theirs.value
    return within(name, ours, low * theirs.value, most, f"{theirs.value:.6g} {unit}: {why}".strip(), unit, **details)


def _one_is_missing(
    name: str, ours: Any, theirs: Told, unit: str, gap: Gap | None, details: dict[str, Any]
) -> Check | None:
    """The check where there is nothing to compare."""
    if ours is not None and theirs.value is not None:
        return None
    why_ours = "" if gap is None else f"mltop: {gap.why}"
    if theirs.value is not None:
        return Check(
            name, "differs", None, theirs.value, why_ours or "mltop has no value, and no reason", unit, details
        )
    if ours is not None:
        return Check(name, "not tried", ours, None, theirs.why or "no second source", unit, details)
    if theirs.unsupported and gap is not None and gap.kind == "unsupported":
        return Check(name, "agrees", "not supported", "not supported", f"{theirs.why}; {why_ours}", unit, details)
    why = "; ".join(part for part in (theirs.why, why_ours) if part)
    return Check(name, "not tried", None, None, why or "neither has a value, nor a reason", unit, details)


def _alike(ours: Any, theirs: Any, slack: float) -> bool:
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return bool(ours == theirs)
    return ours.keys() == theirs.keys() and all(
        abs(value - theirs[name]) <= slack if _is_number(value) and _is_number(theirs[name]) else value == theirs[name]
        for name, value in ours.items()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
