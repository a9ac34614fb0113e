"""Model objects as JSON text, and which of their fields seldom leave a node."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any

from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import COMMANDS

SCHEMA = 1


# One escape after the other: what looks like one behind a written backslash is none.
_ESCAPE = re.compile(r"\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<lone>ud[89a-f][0-9a-f]{2})|.)")
_FIELDS: dict[type, tuple[str, ...]] = {}


def slow(default: Any = MISSING, factory: Any = MISSING) -> Any:
    """A field that hardly ever changes in the life of what it is about."""
    metadata = {"slow": True}
    if factory is MISSING:
        return field(default=default, metadata=metadata)
    return field(default_factory=factory, metadata=metadata)


def to_json(value: Any) -> str:
    """JSON text of model objects, lists and dicts of them. Non-finite floats raise ValueError."""
    return well_formed(json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False))


def to_short_json(value: Any) -> str:
    """JSON text without fields that hold their default, which every decoder knows."""
    return well_formed(json.dumps(value, default=_told_fields, separators=(",", ":"), allow_nan=False))


def _told_fields(record: Any) -> dict[str, Any]:
    return {name: value for name, default in _defaults(record.__class__) if (value := getattr(record, name)) != default}


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """Of all fields; ``...``, which equals no value, for those without, and for records: these leave out their own."""
    return tuple((field.name, _default(field)) for field in fields(kind))


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    made = field.default_factory() if field.default_factory is not MISSING else ...
    return ... if is_dataclass(made) else made


def _plain(value: Any) -> Any:
    if isinstance(value, Ranges):
        return str(value)
    told = all_fields(value)
    acts = {  # "mltop stacks; run: strace -p 5": who reads JSON has no keys
        name: "; ".join(filter(None, (COMMANDS.get(told[act], ""), told[name]))) for act, name in _ACTS if told.get(act)
    }
    return {**told, **acts} if acts else told


_ACTS = (("act", "action"), ("next_act", "next"))


def well_formed(text: str) -> str:
    """JSON text without lone surrogates (paths that are no UTF-8, as Python reads them): no decoder takes those."""
    return _ESCAPE.sub(lambda match: r"\ufffd" if match["lone"] else match[0], text) if "\\ud" in text else text


def all_fields(record: Any) -> dict[str, Any]:
    """What JSON says of an object: a decoder may leave fields that hold their default out of the object's own ones."""
    values = vars(record)
    names = _FIELDS.get(type(record))
    if names is None:
        names = _FIELDS[type(record)] = tuple(field.name for field in fields(record))
    return values if len(values) == len(names) else {name: getattr(record, name) for name in names}
