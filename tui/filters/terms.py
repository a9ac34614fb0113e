"""Single terms of an expression as functions of a subject. Unknown never fulfils a comparison, negated or not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import isfinite

from mltop.tui.filters.fields import Field, field_named, value_of
from mltop.tui.filters.globs import glob
from mltop.tui.filters.kinds import Kind
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.subject import Subject, words_of

Test = Callable[[Subject], bool]
UNKNOWN_WORDS = ("?", "unknown", "–")
OPERATORS = ("<=", ">=", "!=", "==", "<", ">", "=", "~")
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


def comparison(name: str, sign: str, written: str, wanted: bool) -> tuple[Field, Test]:
    """The field and the test of ``name sign written``; not ``wanted`` is the opposite. Raises FilterProblem."""
    field = field_named(name)
    sign = "=" if sign == "==" else sign
    if written.casefold() in UNKNOWN_WORDS:
        if sign not in ("=", "!="):
            raise FilterProblem(f"{field.name}: only = and != can ask for what is unknown")
        wants_unknown = (sign == "=") is wanted
        return field, lambda subject: (value_of(field, subject) is None) is wants_unknown
    try:
        compare, positive = _text(field, sign, written) if field.kind.text else _number(field.kind, sign, written)
    except FilterProblem as problem:
        raise FilterProblem(f"{field.name}: {problem}") from None
    # "!=" asks for the opposite of "=", over all of several values.
    return field, _test(field, compare, positive is wanted)


def _test(field: Field, compare: Callable[..., bool], wanted: bool) -> Test:
    get, of_numbers = field.get, not field.kind.text

    def test(subject: Subject) -> bool:
        value = get(subject)
        if value is None:
            return False
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
    amount = kind.amount(written)
    if sign in _ORDER:
        order = _ORDER[sign]
        return (lambda value: order(value, amount)), True
    return (lambda value: abs(value - amount) <= kind.near), sign == "="


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
