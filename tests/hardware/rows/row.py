"""What a row is, and how what sources say is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mltop.probes.model import GpuSample
from tests.hardware.asked import Reader
from tests.hardware.ours import value_at

MIB = 2**20
# same: it does not move. moves: lies between what was told before and after. set: has what was told both times, and
# nothing that was told neither time.
Kind = Literal["same", "moves", "set"]


@dataclass(frozen=True)
class Row:
    """``path``: of the GpuSample. ``slack``: in ``unit``, beyond equality or both ends. ``ours``: makes of a sample's
    value what the source tells; without it it is compared as it is.
    """

    path: str
    source: str
    read: Reader
    kind: Kind = "same"
    unit: str = ""
    slack: float = 0.0
    ours: Callable[[Any], Any] = lambda value: value
    suffix: str = ""  # of the check's name, where a path has several rows

    @property
    def name(self) -> str:
        return self.path + (f" ({self.suffix})" if self.suffix else "")

    def of(self, gpu: GpuSample) -> Any:
        value = value_at(gpu, self.path)
        return None if value is None else self.ours(value)


def number(text: str) -> float:
    """ "45 C" → 45.0, "2623863050 us", "2560 bank(s)", "16x"."""
    found = re.match(r"-?\d+(?:\.\d+)?", text)
    if found is None:
        raise ValueError(text)
    return float(found[0])


def flag(text: str) -> bool:
    return {"enabled": True, "disabled": False, "yes": True, "no": False}[text.lower()]


def mebi(value: float) -> float:
    return value / MIB
