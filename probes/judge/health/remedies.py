"""No finding advises against another one about the same thing: who is told to send a GPU back does not reset it."""

from __future__ import annotations

from collections.abc import Iterable

from mltop.probes.judge.health.rule import SEVERITIES
from mltop.probes.model import Finding, Remedy

# What a remedy makes pointless, or wrong. What is not in it goes together.
BEATS: dict[Remedy, frozenset[Remedy]] = {
    "reset": frozenset({"restart"}),
    "reboot": frozenset({"restart", "reset"}),
    "service": frozenset({"watch", "restart", "reset", "reboot"}),
    "replace": frozenset({"watch", "restart", "reset", "reboot", "service"}),
}


def beats(strong: Finding, weak: Finding) -> bool:
    """Whether what ``strong`` advises makes the advice of ``weak`` pointless: a warning's does so of no critical one's,
    unless the hardware goes.
    """
    if weak.remedy not in BEATS.get(strong.remedy, ()):
        return False
    return strong.remedy == "replace" or SEVERITIES.index(strong.severity) <= SEVERITIES.index(weak.severity)


def strongest(advice: Iterable[Finding], weak: Finding) -> Finding | None:
    """Of the advice that beats that of ``weak`` the farthest-reaching."""
    fitting = [one for one in advice if beats(one, weak)]
    return max(fitting, key=lambda one: (len(BEATS[one.remedy]), -SEVERITIES.index(one.severity)), default=None)


def give_way(weak: Finding, strong: Finding) -> None:
    """``weak`` advises what ``strong`` does from now on, and says why."""
    weak.action, weak.remedy = strong.action, strong.remedy
    if strong.message not in weak.evidence and strong.message != weak.message:
        weak.evidence = [*weak.evidence, strong.message]


def leave_out(weak: Finding, subjects: list[str], strong: Finding) -> None:
    """``weak`` is about several things; for some of them ``strong`` holds."""
    weak.action = f"{weak.action}; not {', '.join(subjects)}: {strong.action}"
