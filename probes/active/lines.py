"""What a probe process writes: lines of any length and kind, of which some are events."""

from __future__ import annotations

import json
from typing import Any

from mltop.probes.active.child import event_from
from mltop.probes.model.probe import ProbeEvent

MOST_LINE_BYTES = 1_000_000
_DEFAULTS = vars(ProbeEvent(""))
_NUMBERS = ("rank", "fraction", "deadline_s")


class Lines:
    """Whole lines out of a stream. Of a line that is too long nothing is kept."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skips = False  # until the next newline

    def take(self, data: bytes) -> list[bytes]:
        *lines, rest = data.split(b"\n")
        found = []
        for line in lines:
            if not self._skips and len(self._rest) + len(line) <= MOST_LINE_BYTES:
                found.append(bytes(self._rest) + line)
            self._rest.clear()
            self._skips = False
        if self._skips or len(self._rest) + len(rest) > MOST_LINE_BYTES:
            self._rest.clear()
            self._skips = True
        else:
            self._rest += rest
        return found


def event_of(line: bytes) -> ProbeEvent | None:
    """An event whose fields have the types that they should, None for anything else that a line may hold."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    event = event_from(fields) if isinstance(fields, dict) else None
    return event if event is not None and _has_types(event) else None


def fields_of(event: ProbeEvent) -> dict[str, Any]:
    """As it travels: without what holds its default."""
    return {name: value for name, value in vars(event).items() if name == "event" or value != _DEFAULTS[name]}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _has_types(event: ProbeEvent) -> bool:
    for name, value in vars(event).items():
        if name in _NUMBERS:
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                return False
        elif not isinstance(value, type(_DEFAULTS[name])):
            return False
    return event.rank is None or isinstance(event.rank, int)
