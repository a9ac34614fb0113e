"""The TARGETS options as typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mltop.probes.reach import DEFAULT_INTERVAL_S, DEFAULT_TIMEOUT_S, UsageProblem
from mltop.probes.system.spawn import why_no_program


@dataclass(frozen=True)
class TargetOptions:
    """() or "" where not given. ``via``: ssh, pdsh, srun, local, or "" for what suits each node."""

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    recording: str = ""
    via: str = ""
    python: str = ""
    interval_s: float = DEFAULT_INTERVAL_S
    timeout_s: float = DEFAULT_TIMEOUT_S
    user: str = ""
    accept_new: bool = False


# An option with an empty value is most often a variable that is not set: it must not mean this machine.
_EMPTY = {
    "hostfile": "names no file",
    "job": "names no job",
    "recording": "names no file",
    "python": why_no_program(""),
    "user": "names nobody",
}


def options_from(given: Mapping[str, Any]) -> TargetOptions:
    """Of the options that were typed, by field. UsageProblem names one with an empty value."""
    for name, why in _EMPTY.items():
        if given.get(name) == "":
            raise UsageProblem(f"--{name} ''", why, "is a variable empty?")
    return TargetOptions(**given)


# As useradd(8) and directory services have them, with a realm or a domain: ada, svc$, ada@lab.example, LAB+ada.
_USER_NAME = re.compile(r"\w[\w.@+$%=-]{0,255}")
_SHOWN = 60  # characters of a word in an error


def check_words(options: TargetOptions) -> None:
    """UsageProblem names an interpreter or a user that could not be passed on."""
    why = why_no_program(options.python) if options.python else ""
    if why:
        raise UsageProblem(f"--python {shown(options.python)}", why, "name it by another path: a link to it")
    if options.user and not _USER_NAME.fullmatch(options.user):
        raise UsageProblem(f"--user {shown(options.user)}", "is no user's name")


def shown(word: str) -> str:
    """A word that may hold anything, in one short line."""
    return repr(word if len(word) <= _SHOWN else word[:_SHOWN] + "…")


def check_numbers(options: TargetOptions) -> None:
    """UsageProblem names an interval or a timeout that makes no sense."""
    if not 0.1 <= options.interval_s <= 3600:
        raise UsageProblem(f"--interval {options.interval_s:g}", "must be between 0.1 and 3600 seconds")
    if not 0.1 <= options.timeout_s <= 86400:
        raise UsageProblem(f"--timeout {options.timeout_s:g}", "must be between 0.1 and 86400 seconds")
