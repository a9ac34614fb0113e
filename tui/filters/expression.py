"""An expression as a tree of terms, and from it the test of a row. Unknown never fulfils a comparison, negated or not.

A row (a node, a GPU, a rank) has parts: a node its GPUs and ranks, a GPU its ranks, a rank its GPUs.

- Terms side by side of which one asks for something hold together on one part: ``sm<0.2 & !throttle=hw_thermal`` is
  a GPU that is slow and not throttled, ``sm<0.2 & power>300`` one that is both.
- What is negated and has nothing to go with holds when no part of the row fulfils it: ``!(rank=3)`` is a node without
  rank 3, ``!(sm<0.2 & power>300)`` one without a GPU that is both.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, reduce
from math import isfinite
from typing import Literal

from mltop.tui.filters.fields import Field, Subject, field_named, has_no_rank, parts_of, value_of, words_of
from mltop.tui.render.units import FilterProblem, Unit

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
        compare, positive = _text(field, sign, written) if field.unit.is_text else _number(field.unit, sign, written)
    except FilterProblem as problem:
        raise FilterProblem(f"{field.name}: {problem}") from None
    # "!=" asks for the opposite of "=", over all of several values.
    like = positive is wanted
    excludes = not (like if field.name in _NAMES else wanted)
    return field, _test(field, compare, like, excludes), excludes


def _test(field: Field, compare: Callable[..., bool], wanted: bool, excludes: bool) -> Test:
    """``wanted``: it compares, or does not. Where no rank is, all that ``excludes`` ranks holds."""
    get, of_numbers = field.get, not field.unit.is_text

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


def _number(unit: Unit, sign: str, written: str) -> tuple[Callable[[float], bool], bool]:
    """The comparison of one value, and whether it is wanted or its opposite."""
    if sign == "~":
        raise FilterProblem("it is a number: = != < <= > >=")
    if unit.ranges and sign in ("=", "!=") and _RANGES.fullmatch(written):
        return _in_ranges(written), sign == "="
    amount = unit.amount(written)
    if sign in _ORDER:
        order = _ORDER[sign]
        return (lambda value: order(value, amount)), True
    return (lambda value: abs(value - amount) <= unit.near), sign == "="


def _in_ranges(written: str) -> Callable[[float], bool]:
    """The comparison with "0-3,7", which may stand in brackets."""
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
    _check_choice(field.unit.choices, written)
    return glob(written), sign == "="


def _check_choice(choices: Sequence[str], written: str) -> None:
    if not choices or "*" in written or "?" in written or written.casefold() in choices:
        return
    near = get_close_matches(written.casefold(), choices, n=1, cutoff=0.4)
    raise FilterProblem(f"{written!r} is none of {', '.join(choices)}" + (f": {near[0]}?" if near else ""))


# Text patterns as people write them: gpu0*, node?1, node[01-16,20]; case ignored.

MOST_NUMBERS = 20_000  # in one pair of brackets
_RANGE = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
_PIECE = re.compile(r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]|\*+|\?|[^*?\[]+|\[")


def glob(pattern: str) -> Callable[[str], bool]:
    """The test whether a whole text is like ``pattern``. Raises FilterProblem for a range that is too long."""
    segments: list[str] = [""]
    for piece in _PIECE.findall(pattern):
        if piece.startswith("*"):
            segments.append("")
        elif piece == "?":
            segments[-1] += "."
        else:
            numbers = _RANGE.fullmatch(piece)
            segments[-1] += _numbers(numbers.group(1)) if numbers else re.escape(piece)
    match = re.compile(_pattern(segments), re.IGNORECASE | re.DOTALL).fullmatch
    return lambda text: match(text) is not None


def _pattern(segments: list[str]) -> str:
    """Segments with anything in between. What a middle segment has found is not looked for again.

    Without that, several stars would take quadratic time and more. Until Python 3.11 there are no atomic groups: a
    lookahead and its back reference do the same.
    """
    first, *middle = segments
    if not middle:
        return first
    last = middle.pop()
    atomic = [f"(?=(?P<g{at}>.*?{segment}))(?P=g{at})" for at, segment in enumerate(middle) if segment]
    return f"{first}{''.join(atomic)}.*{last}"


def _numbers(ranges: str) -> str:
    """ "01-03,7" as a choice of 01, 02, 03 and 7; zeros in front count, as in host lists."""
    written: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        count = int(last or first) - int(first) + 1
        if count + len(written) > MOST_NUMBERS:
            raise FilterProblem(f"[{ranges}] has more than {MOST_NUMBERS} numbers")
        if count < 1:
            raise FilterProblem(f"[{ranges}]: {part} ends before it begins")
        written += [f"{number:0{len(first)}d}" for number in range(int(first), int(first) + count)]
    return f"(?:{'|'.join(written)})"


Level = Literal["node", "gpu", "rank"]  # what a row is
LEVELS: tuple[Level, ...] = ("node", "gpu", "rank")


@dataclass(frozen=True)
class Term:
    """A word (without ``field``) or a comparison. ``negated``: its ``test`` excludes (``!sm<0.2``, ``rank!=3``)."""

    test: Test
    field: Field | None = None
    negated: bool = False


@dataclass(frozen=True)
class Group:
    """Several terms. ``either``: one suffices. ``opposite``: of terms side by side, so of one part as a whole."""

    members: Sequence[Tree]
    either: bool
    opposite: bool = False


Tree = Term | Group


def test_of(tree: Tree, level: Level) -> Test:
    """The test of a row: a node, a GPU, or a rank."""
    if not _asks_parts(tree, level):
        return _test_of_part(tree)
    gpus, ranks = _needs(tree)
    of_part = partial(test_of, level="gpu") if level == "node" and gpus else _test_of_part
    if isinstance(tree, Group) and not _go_together(tree, level):
        return _joined([test_of(member, level) for member in tree.members], tree.either)
    excludes = tree.negated if isinstance(tree, Term) else tree.opposite
    test, quantifier = of_part(tree), all if excludes else any
    return lambda subject: quantifier(map(test, parts_of(subject, gpus, ranks)))


def _test_of_part(tree: Tree) -> Test:
    """The test of a subject without parts.

    In pairs: of thousands of GPUs, a generator for every one would cost more than the terms themselves.
    """
    if isinstance(tree, Term):
        return tree.test
    return _joined([_test_of_part(member) for member in tree.members], tree.either)


def _asks_parts(tree: Tree, level: Level) -> bool:
    """Whether it has fields of what a row of this level has as its parts."""
    gpus, ranks = _needs(tree)
    return gpus if level == "rank" else ranks if level == "gpu" else gpus or ranks


def _go_together(tree: Group, level: Level) -> bool:
    """Whether these are terms side by side of which one asks for something of a part, rather than excludes it.

    What stands in brackets is asked by itself where all else is about the row: ``node=n1 (sm<0.2 | !user=ada)``.
    """
    if tree.either and not tree.opposite:
        return False
    about_parts = [member for member in tree.members if _asks_parts(member, level)]
    if len(about_parts) == 1 and isinstance(about_parts[0], Group):
        return False
    return any(_asks(member, tree.opposite, level) for member in about_parts)


def _asks(tree: Tree, opposite: bool, level: Level) -> bool:
    """Whether it asks for something of a part. ``opposite``: what asked is negated now."""
    if isinstance(tree, Term):
        return tree.negated is opposite and _asks_parts(tree, level)
    excludes = tree.opposite and not opposite
    return not excludes and any(_asks(member, opposite, level) for member in tree.members)


def _needs(tree: Tree) -> tuple[bool, bool]:
    """Whether it has fields of GPUs, and of ranks."""
    fields = list(_fields(tree))
    return any(field.needs_gpus for field in fields), any(field.needs_ranks for field in fields)


def _fields(tree: Tree) -> Iterator[Field]:
    if isinstance(tree, Group):
        for member in tree.members:
            yield from _fields(member)
    elif tree.field is not None:
        yield tree.field


def grouped(members: Sequence[Tree], either: bool, opposite: bool = False) -> Tree:
    """One member stands for itself; terms side by side in brackets join those around them."""
    if len(members) == 1:
        return members[0]
    if either:
        return Group(members, either, opposite)
    flat: list[Tree] = []
    for member in members:
        flat += member.members if isinstance(member, Group) and not member.either else [member]
    return Group(flat, either)


def _joined(tests: Sequence[Test], either: bool) -> Test:
    return reduce(_either if either else _both, tests)


def _either(left: Test, right: Test) -> Test:
    return lambda subject: left(subject) or right(subject)


def _both(left: Test, right: Test) -> Test:
    return lambda subject: left(subject) and right(subject)
