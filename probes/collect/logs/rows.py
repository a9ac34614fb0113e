"""One row of the tables of lines that report an end: an expression, and the fields that it gives an event.

None of the programs promises its wording, so fields are looked for loosely.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mltop.probes.model.evidence.logs import EventKind

Fields = dict[str, Any]  # of LogEvent
Read = Callable[["re.Match[str]"], Fields]

MOST_NAMED = 4096


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


def row(holds: str, expression: str, kind: EventKind, read: Read | None = None, /, **fixed: Any) -> Row:
    """Without ``read`` the expression's groups are the fields of their names. ``fixed``: fields that it always has."""
    # A terminal that wrapped a line may have put blanks anywhere: where ours has one, any number may stand.
    return Row(holds, re.compile(expression.replace(" ", r"\s*")), kind, read or by_name, fixed)


def numbers(text: str) -> tuple[int, ...]:
    """ "1, 2" or "0-2,5"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,8})(?: ?- ?(\d{1,8}))?", text):
        found += range(int(first), min(int(last or first), int(first) + MOST_NAMED) + 1)
    return tuple(found[:MOST_NAMED])


def milliseconds(text: str) -> float:
    return int(text) / 1000


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **{
        name: (name, int)
        for name in ("rank", "pid", "code", "sequence", "enqueued", "started", "completed", "group_rank")
    },
    "named": ("named", numbers),
    "ran_s": ("ran_s", float),
    "ran_ms": ("ran_s", milliseconds),
}


def by_name(match: re.Match[str]) -> Fields:
    """The groups that matched, as numbers where they are some. A digit at a name's end tells alternatives apart."""
    found: Fields = {}
    for name, value in match.groupdict().items():
        if value is not None:
            field, read = _READERS.get(name.rstrip("123"), (name.rstrip("123"), str))
            found[field] = read(value)
    return found
