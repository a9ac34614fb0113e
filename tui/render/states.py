"""Process and node states in words."""

from __future__ import annotations

from mltop.tui.render.units import UNKNOWN

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
SEVERITY = {"critical": ("CRIT", "crit"), "warning": ("WARN", "warn"), "info": ("INFO", "")}
SEVERITY_ORDER = ("critical", "warning", "info")


def state_word(state: str) -> str:
    """ "S sleeping" of "S"; an unknown letter stays alone."""
    if not state:
        return UNKNOWN
    return f"{state[:1]} {_WORDS.get(state[:1], '')}".rstrip()
