"""What a health rule is: an id, words, a hold time, and a pure function from one moment of a node to hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mltop.probes.model import GpuSample, Sample


@dataclass(frozen=True)
class Moment:
    """One node's sample, the one before it, and the newest that was ever seen of each GPU up to now."""

    now: Sample
    before: Sample | None = None
    known_gpus: Mapping[int, GpuSample] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """The rule holds for ``subject`` (``GPU 3``, ``NVML``) at one moment."""

    subject: str
    message: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """``hold_s``: it fires after holding for so long, and clears after being false for three times that.

    ``severity``: info | warning | critical. ``action``: what to do, in a few words.
    """

    id: str
    severity: str
    hold_s: float
    action: str
    check: Callable[[Moment], Iterable[Hit]]
