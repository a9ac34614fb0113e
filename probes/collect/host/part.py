"""A part of the host's sample: what it reads, how often, and what it could not read.

One gap for all that a machine does not have: a virtual machine lacks many things that nobody misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mltop.probes.model import Gap, RankSample

AGAIN_S = 4.0  # from the first reading of counters to the second
_JITTER_S = 0.25  # a tick may come a little early: a tier of five seconds must not become one of six


@dataclass
class Reading:
    """``values``: fields of HostSample by name; they stand in all samples up to the next reading: never changed."""

    values: dict[str, Any] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


class Part(Protocol):
    """Reads some fields. May raise anything: that costs these fields only."""

    def read(self, now: float, ranks: Sequence[RankSample], /) -> Reading: ...


class Scheduled:
    """A part that is read every ``every_s`` (0: at each sample) and whose values stand in between.

    What it could not tell yet (rates of a first look) is read again at the next sample. What ``counts`` errors is read
    a second time soon after the first: one reading does not tell whether they grow.
    ``name`` is the gap's where the part fails as a whole ("host.pressure").
    """

    def __init__(self, name: str, every_s: float, part: Part, counts: bool = False) -> None:
        self.name = name
        self.counts = counts
        self._every_s = max(0.0, every_s - _JITTER_S)
        self._pause_s = min(self._every_s, AGAIN_S) if counts else self._every_s  # until it is due again
        self._part = part
        self._last: tuple[float, Reading] | None = None
        self._is_starting = True

    @property
    def read_at(self) -> float | None:
        """When its values were read, by the clock of ``reading``."""
        return None if self._last is None else self._last[0]

    def reading(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        """The newest values, read now if that is due. ``now``: seconds of any one clock."""
        if self._last is None or self._is_starting or not 0 <= now - self._last[0] < self._pause_s:
            if self._last is not None and not self._is_starting:
                self._pause_s = self._every_s
            try:
                reading = self._part.read(now, ranks)
            except Exception as error:  # noqa: BLE001 - the gap tells, and the other parts go on
                why = f"the collector failed: {type(error).__name__}: {error}"
                reading = Reading(gaps=[Gap(self.name, why, "please report this")])
            self._last = (now, reading)
            self._is_starting = any(gap.kind == "starting" for gap in reading.gaps)
        return self._last[1]


def unreadable(what: str, error: Exception) -> Gap:
    """What the system said, as a gap."""
    said = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return Gap(what, f"cannot be read: {said}")


def unsupported(what: str, why: str, fix: str = "") -> Gap:
    """This machine has no such thing: nothing is missed."""
    return Gap(what, why, fix, "unsupported")


def starting(what: str, why: str) -> Gap:
    """It comes with one of the next samples."""
    return Gap(what, why, "", "starting")


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
