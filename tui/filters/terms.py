"""Single terms of an expression as functions of a subject. Unknown never fulfils a comparison, negated or not."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import isfinite

from mltop.tui.filters.fields import Field, field_named, has_no_rank, value_of
from mltop.tui.filters.globs import glob
from mltop.tui.filters.kinds import Kind
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.subject import Subject, words_of

Test = Callable[[Subject], bool]
_LIST = r"\d{1,12}(?:-\d{1,12})?(?:,\d{1,12}(?:-\d{1,12})?)*"
_RANGES = re.compile(rf"{_LIST}|\[{_LIST}\]", re.ASCII)
UNKNOWN_WORDS = ("?", "unknown", "–")
OPERATORS = ("<=", ">=", "!=", "==", "<", ">", "=", "~")
_NAMES = ("rank", "job", "user", "pid")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def word(text: str, wanted: bool) -> Test:
    """Whether the subject's text contains a word, or does not when it is not ``wanted``."""
    sought = text.casefold()

    def test(subject: Subject) -> bool:
        found = words_of(subject) if subject.text is None else subject.text
        return (sought in found.casefold()) is wanted

    return test


def joins_unit(name: str, written: str, unit: str) -> bool:
    """Whether ``unit`` after a blank belongs to the number before it: ``power>300 W``."""
    kind = field_named(name).kind
    return unit.casefold() in kind.units and kind.is_bare(written)


def comparison(name: str, sign: str, written: str, wanted: bool) -> tuple[Field, Test, bool]:
    """The field and the test of ``name sign written``; not ``wanted`` is the opposite. Raises FilterProblem.

    Third: whether it excludes. Not ``wanted`` does; of a rank's names != does, too: ``user!=ada`` is ``!user=ada``.
    """
    field = field_named(name)
    sign = "=" if sign == "==" else sign
    if written.casefold() in UNKNOWN_WORDS:
        if sign not in ("=", "!="):
            raise FilterProblem(f"{field.name}: only = and != can ask for what is unknown")
        wants_unknown = (sign == "=") is wanted
        return field, (lambda subject: (value_of(field, subject) is None) is wants_unknown), not wanted
    try:
        compare, positive = _text(field, sign, written) if field.kind.text else _number(field.kind, sign, written)
    except FilterProblem as problem:
        raise FilterProblem(f"{field.name}: {problem}") from None
    # "!=" asks for the opposite of "=", over all of several values.
    like = positive is wanted
    excludes = not (like if field.name in _NAMES else wanted)
    return field, _test(field, compare, like, excludes), excludes


def _test(field: Field, compare: Callable[..., bool], wanted: bool, excludes: bool) -> Test:
    """``wanted``: it compares, or does not. Where no rank is, all that ``excludes`` ranks holds."""
    get, of_numbers = field.get, not field.kind.text

    def test(subject: Subject) -> bool:
        value = get(subject)
        if value is None:
            return excludes and has_no_rank(field, subject)
        if isinstance(value, list):
            return any(map(compare, value)) is wanted
        if of_numbers and not isfinite(value):  # type: ignore[arg-type]
            return False
        return compare(value) is wanted

    return test


def _number(kind: Kind, sign: str, written: str) -> tuple[Callable[[float], bool], bool]:
    """How to compare one value, and whether that is wanted or its opposite."""
    if sign == "~":
        raise FilterProblem("it is a number: = != < <= > >=")
    if kind.ranges and sign in ("=", "!=") and _RANGES.fullmatch(written):
        return _in_ranges(written), sign == "="
    amount = kind.amount(written)
    if sign in _ORDER:
        order = _ORDER[sign]
        return (lambda value: order(value, amount)), True
    return (lambda value: abs(value - amount) <= kind.near), sign == "="


def _in_ranges(written: str) -> Callable[[float], bool]:
    """ "0-3,7", in brackets or not."""
    ranges = []
    for part in written.strip("[]").split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise FilterProblem(f"{part} ends before it begins")
        ranges.append((int(first), int(last or first)))
    return lambda value: any(first <= value <= last for first, last in ranges)


def _text(field: Field, sign: str, written: str) -> tuple[Callable[[str], bool], bool]:
    if sign in _ORDER:
        raise FilterProblem("it is text: = != ~")
    if sign == "~":
        sought = written.casefold()
        return (lambda value: sought in value.casefold()), True
    _check_choice(field.kind.choices, written)
    return glob(written), sign == "="


def _check_choice(choices: Sequence[str], written: str) -> None:
    if not choices or "*" in written or "?" in written or written.casefold() in choices:
        return
    near = get_close_matches(written.casefold(), choices, n=1, cutoff=0.4)
    raise FilterProblem(f"{written!r} is none of {', '.join(choices)}" + (f": {near[0]}?" if near else ""))
