"""How a running stack dump or capture reports to whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mltop.probes.model import JobReport, NodeState


@dataclass(frozen=True)
class StackProgress:
    """``phase``: dumping | watching | judging | done | cancelled | failed.

    ``reports`` holds partial results while running and the final ones when done; ``error`` is one plain sentence
    when it failed. ``not_answered``: nodes without a full answer at the deadline, with reason.
    """

    phase: str
    round: int = 0
    rounds: int = 0
    ranks_done: int = 0
    ranks_expected: int | None = None
    elapsed_s: float = 0.0
    reports: tuple[JobReport, ...] = ()
    not_answered: tuple[NodeState, ...] = ()
    error: str = ""

    @property
    def finished(self) -> bool:
        return self.phase in ("done", "cancelled", "failed")


@dataclass(frozen=True)
class CaptureResult:
    """Where a capture went; ``problems`` lists what is missing from it, each a plain sentence.

    ``cancelled``: it was interrupted, what was known is in the directory. ``error``: nothing could be written.
    """

    directory: Path
    problems: tuple[str, ...] = field(default=())
    cancelled: bool = False
    error: str = ""
