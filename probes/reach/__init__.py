"""From the names a user typed to live streams of samples: targets, launchers, the hub.

What a user can get wrong, said in one line: ``what: why (what to do)``.
"""

from __future__ import annotations

INTERVAL_S = 1.0  # between samples, unless the user says otherwise
TIMEOUT_S = 30.0  # of a whole command that has one, likewise


class UsageProblem(Exception):
    """A target or option that cannot be used; the command line prints it and exits with 2."""

    def __init__(self, what: str, why: str, fix: str = "") -> None:
        super().__init__(f"{what}: {why}" + (f" ({fix})" if fix else ""))
