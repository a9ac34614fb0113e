"""JSON of strangers, bounded before it is decoded: text of a megabyte can become a hundred of objects. Python 3.9."""

from __future__ import annotations

import json
from typing import Any

from mltop.probes.collect.records.pickles import MOST_CONTAINERS, CutOff, Malformed

MOST_COMMAS = 3_000_000
_MOST_DIGITS = 32
_NAMES = ("true", "false", "null")


def read_json(content: bytes) -> Any:
    """The value. Raises Malformed, of text that ends too early CutOff."""
    if content.count(b"{") + content.count(b"[") > MOST_CONTAINERS or content.count(b",") > MOST_COMMAS:
        raise Malformed("it holds more values than any such record")
    try:
        return json.loads(content.decode("utf-8", "replace"), parse_int=_int, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :].rstrip()
        if len(rest) <= 1 or error.msg.startswith("Unterminated") or any(name.startswith(rest) for name in _NAMES):
            raise CutOff("it ends in the middle") from None
        raise Malformed(f"it is no JSON (line {error.lineno})") from None
    except (ValueError, RecursionError):
        raise Malformed("it is nested too deeply, or a number in it cannot be") from None


def _int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too long")
    return int(digits)
