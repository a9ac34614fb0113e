"""JSON of strangers, and single values of what recorders write: numbers that may be texts, times, texts fit to leave a
node. Text of a megabyte can become a hundred of objects: it is bounded before it is decoded. Python 3.9.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from mltop.probes.collect.records.pickles import LIST_BYTES, MOST_MEMORY, TABLE_BYTES, CutOff, Malformed
from mltop.probes.collect.redaction.shapes import clipped
from mltop.probes.collect.redaction.values import without_tokens
from mltop.probes.collect.stacks.frames import WRAPPERS, last_name, short_file
from mltop.probes.model.receipt import MOST_RANK_NUMBERS, MOST_TIME_S

MOST_NAME = 120  # characters of the name of a group, an operation, a function
_MOST_DIGITS = 19
_NUMBERS_END = 1 << 63


def whole(value: object) -> int | None:
    """A whole number of 64 bits, also as a text: None for anything else."""
    if isinstance(value, str) and len(value) <= 2 * _MOST_DIGITS:
        digits = value.strip()
        unsigned = digits[1:] if digits[:1] == "-" else digits
        value = int(digits) if unsigned.isascii() and unsigned.isdigit() and len(unsigned) <= _MOST_DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_NUMBERS_END <= value < _NUMBERS_END else None


def counted(value: object) -> int | None:
    """A number of operations, -1 for none yet."""
    number = whole(value)
    return number if number is not None and number >= -1 else None


def rank_number(value: object) -> int | None:
    number = whole(value)
    return number if number is not None and 0 <= number <= MOST_RANK_NUMBERS else None


def seconds_of_ns(value: object) -> float | None:
    """Unix s; JSON has 0 where the time is not known."""
    number = whole(value)
    return number / 1e9 if number and 0 < number <= MOST_TIME_S * 1e9 else None


def name_text(value: object, most: int = MOST_NAME) -> str:
    """A name, without tokens, "" for what is none."""
    return without_tokens(clipped(value, most)) if isinstance(value, str) else ""


def entries_of(value: object, most: int) -> Iterable[Any]:
    """The first ``most`` entries of a list or tuple, of anything else none."""
    return islice(value, most) if isinstance(value, (list, tuple)) else ()


def table_of(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def place_text(function: object, path: object, line: object) -> str:
    """``function (file:line)``, the file as stacks have it; "" for a frame that only passes a call on."""
    file = short_file({"filename": clipped(path, 4096)}) if isinstance(path, str) else "?"
    name = name_text(function) or "?"
    if (file, last_name(name)) in WRAPPERS:
        return ""
    number = whole(line)
    return f"{name} ({without_tokens(file)}:{number if number is not None and number >= 0 else '?'})"


_VALUE_BYTES = 64  # of what stands before a comma, at most, beside its text
_MOST_JSON_DIGITS = 32
_NAMES = ("true", "false", "null")


def read_json(content: bytes) -> Any:
    """The value. Raises Malformed, of text that ends too early CutOff."""
    size = len(content) * (1 if content.isascii() else 4) + content.count(b",") * _VALUE_BYTES
    if size + content.count(b"{") * TABLE_BYTES + content.count(b"[") * LIST_BYTES > MOST_MEMORY:
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
    if len(digits) > _MOST_JSON_DIGITS:
        raise ValueError("too long")
    return int(digits)
