"""What nodes say, with everything in it that a terminal would obey, wherever a node can say a text."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

NASTY = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m[red]x[/red]\nmltop: forged line\r\x9b1A\x08\u202e\u2066\u200b\x7f\x85\u2028"
    "é日e\u0301\udcff"
)
# Vocabularies that code compares with: what stands there otherwise is another test's subject.
KEPT = {
    "node",
    "state",
    "kind",
    "severity",
    "activity_source",
    "remote",
    "launcher",
    "identified_by",
    "how",
    "phase",
    "confidence",
    "uuid",
    "key",
}
Thing = TypeVar("Thing")


def spoiled(thing: Thing) -> Thing:
    """In place: every text of a tree of dataclasses, lists and dicts ends with what is nasty."""
    if is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            if field.name not in KEPT:
                object.__setattr__(thing, field.name, _spoiled(getattr(thing, field.name)))
    return thing


def _spoiled(value: Any) -> Any:
    if isinstance(value, str):
        return value + NASTY
    if isinstance(value, list):
        return [_spoiled(entry) for entry in value]
    if isinstance(value, tuple):
        return tuple(_spoiled(entry) for entry in value)
    if isinstance(value, dict):
        return {name: _spoiled(entry) for name, entry in value.items()}
    return spoiled(value)


def texts_of(value: object) -> list[str]:
    """All texts of plain JSON, names too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in texts_of(each))]
    return [text for each in value for text in texts_of(each)] if isinstance(value, list) else []
