"""States of processes, nodes and probes in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mltop.probes.model import SEVERITIES
from mltop.probes.model.units import UNKNOWN
from mltop.tui.render.cells import Cell

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress

# proc_pid_stat(5), field 3.
_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "disk wait",  # uninterruptible: disk, NFS or a driver
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
    "P": "parked",
}
STATE_STYLE = {"D": "warn", "T": "warn", "t": "warn", "Z": "crit", "X": "crit"}
NODE_STYLE = {"live": "ok", "connecting": "accent", "stale": "warn", "lost": "crit", "refused": "crit"}
_GRAVEST_FIRST = ("refused", "lost", "stale", "connecting")
SEVERITY = {"critical": ("CRIT", "crit"), "warning": ("WARN", "warn"), "info": ("INFO", "")}


def gravity(severity: str) -> int:
    """For sorting: 0 is the gravest; an unknown severity counts as the least."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def gravest(states: Iterable[str]) -> str:
    """The gravest node state; "live" when all are, and of no nodes at all. A state of another name counts most."""
    order = {state: index for index, state in enumerate(_GRAVEST_FIRST)}
    return min((state for state in states if state != "live"), key=lambda state: order.get(state, -1), default="live")


def state_word(state: str) -> str:
    """ "S sleeping" of "S"; an unknown letter stays alone."""
    if not state:
        return UNKNOWN
    return f"{state[:1]} {_WORDS.get(state[:1], '')}".rstrip()


def state_cell(state: str) -> Cell:
    """A process's state in words and its colour."""
    return Cell(state_word(state), STATE_STYLE.get(state[:1], ""))


def elapsed_text(progress: ProbeProgress) -> str:
    """ "12.3 s of 125 s at most"."""
    most = f" of {progress.deadline_s:.0f} s at most" if progress.deadline_s and not progress.finished else ""
    return f"{progress.elapsed_s:.1f} s{most}"
