"""How a running stack dump or capture reports to whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mltop.probes.model import JobReport, NodeState

StackPhase = Literal["connecting", "dumping", "watching", "judging", "done", "cancelled", "failed"]
FINISHED = ("done", "cancelled", "failed")


@dataclass(frozen=True)
class StackProgress:
    """``reports`` holds partial results while running and the final ones when done; ``error`` is one plain sentence
    when it failed. ``not_answered``: nodes without a full answer so far (the final ones when finished), with reason.
    """

    phase: StackPhase
    round: int = 0
    rounds: int = 0
    ranks_done: int = 0
    ranks_expected: int | None = None
    elapsed_s: float = 0.0
    reports: tuple[JobReport, ...] = ()
    not_answered: tuple[NodeState, ...] = ()
    error: str = ""
    nodes_total: int = 0
    nodes_reached: int = 0  # they send samples, or did when they were dumped
    nodes_answered: int = 0  # they have answered at least once in full

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED


@dataclass(frozen=True)
class CaptureResult:
    """Where a capture went; ``problems`` lists what is missing from it, each a plain sentence.

    ``cancelled``: it was interrupted, what was known is in the directory. ``error``: nothing could be written.
    """

    directory: Path
    problems: tuple[str, ...] = field(default=())
    cancelled: bool = False
    error: str = ""
