"""What a probe run needs of whoever remembers earlier results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mltop.probes.model.probe import PastResult


class ProbeMemory(Protocol):
    """Called in the run's thread. What goes wrong is one sentence in ``problems``, never an exception."""

    problems: list[str]

    def past(self) -> Sequence[PastResult]:
        """Everything that is remembered."""

    def keep(self, results: Sequence[PastResult]) -> None:
        """Also remember these."""
