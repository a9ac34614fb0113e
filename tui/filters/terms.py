"""Single terms of a filter, as tests of a subject. Unknown never fulfils a comparison, negated or not."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable
from difflib import get_close_matches

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets.nodesets import MOST_NODES, expand
from mltop.tui.filters.fields import Field, Subject, field_named, has_no_rank, value_of, words_of
from mltop.tui.render.units import FilterProblem, Unit

Test = Callable[[Subject], bool]
_LIST = r"\d{1,12}(?:-\d{1,12})?(?:,\d{1,12}(?:-\d{1,12})?)*"
_RANGES = re.compile(rf"{_LIST}|\[{_LIST}\]", re.ASCII)
_SET = re.compile(r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]", re.ASCII)
_HERE = "\ue000"  # where a set stands in a pattern
UNKNOWN_WORDS = ("?", "unknown", "–")
_NAMES = ("rank", "job", "user", "pid")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def word(text: str, wanted: bool) -> Test:
    """The test whether a subject's text contains a word, or does not when it is not ``wanted``."""
    sought = text.casefold()

    def test(subject: Subject) -> bool:
        text = words_of(subject) if subject.text is None else subject.text
        return (sought in text.casefold()) is wanted

    return test


def joins_unit(name: str, written: str, unit: str) -> bool:
    """Whether ``unit`` after a blank belongs to the number before it: ``power>300 W``."""
    of_field = field_named(name).unit
    return unit.casefold() in of_field.factors and of_field.is_bare(written)


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
        compare = (_text if field.unit.is_text else _number)(field.unit, sign, written)
    except FilterProblem as problem:
        raise FilterProblem(f"{field.name}: {problem}") from None
    # "!=" asks for the opposite of "=", over all of several values.
    like = (sign != "!=") is wanted
    excludes = not (like if field.name in _NAMES else wanted)
    return field, _test(field, compare, like, excludes), excludes


def _test(field: Field, compare: Callable[..., bool], wanted: bool, excludes: bool) -> Test:
    """``wanted``: it compares, or does not. Where no rank is, all that ``excludes`` ranks holds."""

    def test(subject: Subject) -> bool:
        value = value_of(field, subject)
        if value is None:
            return excludes and has_no_rank(field, subject)
        if isinstance(value, list):
            return any(map(compare, value)) is wanted
        return compare(value) is wanted

    return test


def _number(unit: Unit, sign: str, written: str) -> Callable[[float], bool]:
    """The comparison of one value; of != as of =."""
    if sign == "~":
        raise FilterProblem("it is a number: = != < <= > >=")
    if unit.ranges and sign in ("=", "!=") and _RANGES.fullmatch(written):
        return _in_ranges(written)
    amount = unit.amount(written)
    if sign in _ORDER:
        order = _ORDER[sign]
        return lambda value: order(value, amount)
    return lambda value: abs(value - amount) <= unit.near


def _in_ranges(written: str) -> Callable[[float], bool]:
    """The comparison with "0-3,7", which may stand in brackets."""
    ranges = []
    for part in written.strip("[]").split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise FilterProblem(f"{part} ends before it begins")
        ranges.append((int(first), int(last or first)))
    return lambda value: any(first <= value <= last for first, last in ranges)


def _text(unit: Unit, sign: str, written: str) -> Callable[[str], bool]:
    if sign in _ORDER:
        raise FilterProblem("it is text: = != ~")
    sought = written.casefold()
    if sign == "~":
        return lambda value: sought in value.casefold()
    if unit.choices and not {"*", "?"} & set(written) and sought not in unit.choices:
        near = get_close_matches(sought, unit.choices, n=1, cutoff=0.4)
        raise FilterProblem(f"{written!r} is none of {', '.join(unit.choices)}" + (f": {near[0]}?" if near else ""))
    return like(written)


def like(pattern: str) -> Callable[[str], bool]:
    """The test whether a whole text is like a pattern as people write them: gpu0*, node?1, node[01-16,20]; case
    ignored. Raises FilterProblem for sets that are none.
    """
    regex = fnmatch.translate(_SET.sub(_HERE, pattern.replace(_HERE, "?")).replace("[", "[[]"))
    for numbers in _SET.findall(pattern):
        try:
            names = [name[1:] for name in expand(f"n{numbers}")]
        except UsageProblem:
            raise FilterProblem(f"{numbers} is no list of at most {MOST_NODES:,} numbers, as [01-16,20] is") from None
        regex = regex.replace(_HERE, f"(?:{'|'.join(names)})", 1)
    match = re.compile(regex, re.IGNORECASE).match
    return lambda text: match(text) is not None
