"""One row of the tables of lines that report an end: an expression, and the fields that it gives an event.

None of the programs promises its wording, so fields are looked for loosely.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mltop.probes.model.evidence.logs import EventKind

Fields = dict[str, Any]  # of LogEvent
Read = Callable[["re.Match[str]"], Fields]

MOST_NAMED = 4096
# As the C library and the shell call them.
SIGNALS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Aborted": 6,
}
_SIGNAL_NUMBERS = {each.name[len("SIG") :]: int(each) for each in signal.Signals} | {
    name.replace(" ", ""): number for name, number in SIGNALS.items()
}


@dataclass(frozen=True)
class Row:
    """``holds``: words without which the expression need not be tried."""

    holds: str
    expression: re.Pattern[str]
    kind: EventKind
    read: Read
    fixed: Fields

    def fields(self, match: re.Match[str]) -> Fields:
        """Raises ValueError, OverflowError: thousands of digits, several points."""
        return {**self.fixed, **self.read(match)}


def row(expression: str, kind: EventKind, read: Read | None = None, /, **fixed: Any) -> Row:
    """``expression``: what stands between "`" are the words that a line must have, as they are. Without ``read`` its
    groups are the fields of their names. ``fixed``: fields that it always has. Of rows with the same words the first
    that matches counts.
    """
    before, words, after = expression.split("`")
    # A terminal that wrapped a line may have put blanks anywhere: where ours has one, any number may stand.
    found = re.compile(f"{before}{words}{after}".replace(" ", r"\s*"))
    return Row(re.sub(r"\\(\W)", r"\1", words), found, kind, read or by_name, fixed)


def numbers(text: str) -> tuple[int, ...]:
    """ "1, 2" or "0-2,5"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,8})(?: ?- ?(\d{1,8}))?", text):
        found += range(int(first), min(int(last or first), int(first) + MOST_NAMED) + 1)
    return tuple(found[:MOST_NAMED])


def ended_with(code: int) -> Fields:
    """A code as Popen returns it: a negative one is a signal, SIGTERM that of a launcher that ends the others."""
    how = "exit" if code >= 0 else "stopped" if code == -signal.SIGTERM else "signal"
    return {"how": how, "code": abs(code)}


_READERS: dict[str, Callable[[str], Fields]] = {
    "named": lambda text: {"named": numbers(text)},
    "tasks": lambda text: {"named": numbers(", ".join(re.findall(r"task:(\d{1,8})", text)))},  # JAX's
    "sizes": lambda text: {"sizes": tuple(map(int, re.findall(r"\d+", text)))},
    "ran_s": lambda text: {"ran_s": float(text)},
    "ran_ms": lambda text: {"ran_s": int(text) / 1000},
    "exitcode": lambda text: ended_with(int(text)),
    "signal": lambda text: {"how": "signal", "code": _SIGNAL_NUMBERS.get("".join(text.split()))},
}
_NUMBERS = ("rank", "pid", "code", "sequence", "enqueued", "started", "completed", "group_rank", "attempt")


def by_name(match: re.Match[str]) -> Fields:
    """The groups that matched, as numbers where they are some. A digit at a name's end tells alternatives apart."""
    found: Fields = {}
    for group, value in match.groupdict().items():
        name = group.rstrip("123")
        if value is not None and name in _READERS:
            found.update(_READERS[name](value))
        elif value is not None:
            found[name] = int(value) if name in _NUMBERS else value
    return found
