"""A filter: from text to an expression, made once and asked for every row.

``sm<0.2 & (power>300W | throttle=hw_thermal) !node=gpu07 word``

    any    = all { ("|" | "or") all }
    all    = one { ["&" | "and"] one }          side by side means and
    one    = ("!" | "not") one | "(" any ")" | field sign value | word
    sign   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    value and word: up to a blank, bracket, & or |; or anything "in quotes"; a unit may follow a blank: 300 W

A negation is carried down to the single terms: unknown never fulfils a comparison, negated or not.

A row (a node, a GPU, a rank) has parts: a node its GPUs and ranks, a GPU its ranks, a rank its GPUs.

- Terms side by side of which one asks for something hold together on one part: ``sm<0.2 & !throttle=hw_thermal`` is
  a GPU that is slow and not throttled, ``sm<0.2 & power>300`` one that is both.
- What is negated and has nothing to go with holds when no part of the row fulfils it: ``!(rank=3)`` is a node without
  rank 3, ``!(sm<0.2 & power>300)`` one without a GPU that is both.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Literal, get_args

from mltop.probes.model import Finding, GpuSample, NodeState
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets.nodesets import MOST_NODES, expand
from mltop.probes.reach.view import NodeView
from mltop.tui.filters.fields import (
    ALIASES,
    FIELDS,
    Field,
    Subject,
    field_named,
    has_no_rank,
    of_gpu,
    parts_of,
    value_of,
    words_of,
)
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


MOST_DEPTH = 30
MOST_TEXT = 500
_SIGNS = r"<=|>=|!=|==|[<>=~]"
_SIGN = re.compile(_SIGNS)
_TERM = re.compile(
    rf'"(?P<quoted>[^"]*)"|(?P<name>(?:[^\s()&|!=<>~"]|!(?!=))+)'
    rf'(?:\s*(?P<sign>{_SIGNS})\s*(?:"(?P<text>[^"]*)"|(?P<value>[^\s()&|"]+))?)?'
)
_UNIT = re.compile(r"\s+([%°A-Za-z]+)(?=[\s)&|]|$)")
# Signs between terms, or the words for them; a word with a sign behind it is a field.
_BETWEEN = re.compile(rf'([&|])\1?|[!()]|(?:and|or|not)(?=[\s()&|"]|$)(?!\s*(?:{_SIGNS}))', re.IGNORECASE)
_NAMED = {"and": "&", "or": "|", "not": "!"}

Level = Literal["node", "gpu", "rank"]  # what a row is


@dataclass(frozen=True)
class Tree:
    """A single term with its ``test``; or several ``members``, of which one suffices (``either``).

    ``gpus``, ``ranks``: whether it has fields of these. ``excludes``: a test that does (``!sm<0.2``, ``rank!=3``), or
    the opposite of terms side by side, so of one part.
    """

    test: Test | None = None
    members: Sequence[Tree] = ()
    either: bool = False
    excludes: bool = False
    gpus: bool = False
    ranks: bool = False

    def test_of(self, level: Level) -> Test:
        """The test of a row."""
        if not self._asks_parts(level):
            return self._test_of_part()
        if self.members and not self._goes_together(level):
            return _joined([member.test_of(level) for member in self.members], self.either)
        test = self.test_of("gpu") if level == "node" and self.gpus else self._test_of_part()
        quantifier = all if self.excludes else any
        return lambda subject: quantifier(map(test, parts_of(subject, self.gpus, self.ranks)))

    def _test_of_part(self) -> Test:
        """The test of a subject without parts."""
        return self.test or _joined([member._test_of_part() for member in self.members], self.either)

    def _asks_parts(self, level: Level) -> bool:
        """Whether it has fields of what a row of this level has as its parts."""
        return (self.gpus and level != "gpu") or (self.ranks and level != "rank")

    def _goes_together(self, level: Level) -> bool:
        """Whether these are terms side by side of which one asks for something of a part, rather than excludes it.

        A group in brackets is asked by itself where all else is about the row: ``node=n1 (sm<0.2 | !user=ada)``.
        """
        about_parts = [member for member in self.members if member._asks_parts(level)]
        if (self.either and not self.excludes) or (len(about_parts) == 1 and about_parts[0].members):
            return False
        return any(member._asks(self.excludes, level) for member in about_parts)

    def _asks(self, opposite: bool, level: Level) -> bool:
        """Whether it asks for something of a part. ``opposite``: what asked is negated now."""
        if not self.members:
            return self.excludes is opposite and self._asks_parts(level)
        return (opposite or not self.excludes) and any(member._asks(opposite, level) for member in self.members)


def _joined(tests: Sequence[Test], either: bool) -> Test:
    of_all = any if either else all
    return lambda subject: of_all(test(subject) for test in tests)


def _group(members: Sequence[Tree], either: bool, excludes: bool = False) -> Tree:
    """Terms side by side in brackets join those around them."""
    if len(members) == 1:
        return members[0]
    if not either:
        members = [part for one in members for part in ([one] if one.either else one.members or [one])]
    gpus, ranks = any(member.gpus for member in members), any(member.ranks for member in members)
    return Tree(None, members, either, either and excludes, gpus, ranks)


class Parser:
    """Call ``parse`` once. ``fields`` and ``words`` are what the expression names."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.fields: list[Field] = []
        self.words: list[str] = []

    def parse(self) -> Tree:
        """Raises FilterProblem."""
        tree = self._any(True, 0)
        if self._next():
            raise FilterProblem(") without a (")
        return tree

    def _any(self, wanted: bool, depth: int) -> Tree:
        parts = [self._all(wanted, depth)]
        while self._take("|"):
            parts.append(self._all(wanted, depth))
        return _group(parts, either=wanted)

    def _all(self, wanted: bool, depth: int) -> Tree:
        parts = [self._one(wanted, depth + 1)]
        while self._take("&") or self._next() not in ("", ")", "|"):
            parts.append(self._one(wanted, depth + 1))
        return _group(parts, either=not wanted, excludes=not wanted)

    def _one(self, wanted: bool, depth: int) -> Tree:
        if depth > MOST_DEPTH:
            raise FilterProblem("too many brackets")
        if self._take("!"):
            if not self._next():
                raise FilterProblem("! excludes the term that follows: none does yet")
            return self._one(not wanted, depth + 1)
        if not self._take("("):
            return self._term(wanted)
        tree = self._any(wanted, depth)
        if not self._take(")"):
            raise FilterProblem("( is not closed yet")
        return tree

    def _term(self, wanted: bool) -> Tree:
        match = _TERM.match(self._text, self._at)
        if match is None:
            raise FilterProblem(self._missing())
        self._at = match.end()
        quoted, name, sign, text, value = match.groups()
        if sign is None:
            self.words.append(name or quoted)
            return Tree(word(name or quoted, wanted), excludes=not wanted)
        if value is None and text is None:
            raise FilterProblem(f"{name} {sign} what?")
        unit = _UNIT.match(self._text, self._at) if value is not None else None
        if unit is not None and joins_unit(name, value, unit.group(1)):
            self._at, value = unit.end(), value + unit.group(1)
        of_field, test, excludes = comparison(name, sign, text if value is None else value, wanted)
        self.fields.append(of_field)
        return Tree(test, excludes=excludes, gpus=of_field.needs_gpus, ranks=of_field.of == "rank")

    def _missing(self) -> str:
        """Why there is no term here."""
        rest = self._text[self._at :]
        if not rest:
            return "a term is missing at the end"
        if rest.startswith('"'):
            return 'the " is not closed yet'
        sign = _SIGN.match(rest)
        return f"{sign.group()} needs a field before it" if sign else f"a term is missing before {rest[0]}"

    def _take(self, sign: str) -> bool:
        """Whether the next thing is this sign; it is passed then."""
        if self._next() != sign:
            return False
        match = _BETWEEN.match(self._text, self._at)
        assert match is not None  # nothing else begins with a sign
        self._at = match.end()
        return True

    def _next(self) -> str:
        """The next sign after blanks, also for a word; the first letter of anything else; "" at the end."""
        self._at = len(self._text) - len(self._text[self._at :].lstrip())
        match = _BETWEEN.match(self._text, self._at)
        found = match.group() if match is not None else self._text[self._at :]
        return _NAMED.get(found.casefold(), found[:1])


@dataclass(frozen=True)
class Filter:
    """Keeps what fulfils its expression; everything when it is ``empty`` or has a ``problem`` (one sentence).

    A node fulfils an expression when one of its GPUs with its ranks does, and what is only negated when none of them
    fulfils that: see ``Tree``. A GPU is asked together with its ranks, a rank together with its GPUs.
    """

    text: str = ""
    problem: str = ""
    fields: tuple[Field, ...] = ()
    words: tuple[str, ...] = ()
    _tree: Tree | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _needs_findings(self) -> bool:
        return bool(self.words) or any(field_.of == "finding" for field_ in self.fields)

    @cached_property
    def _tests(self) -> dict[Level, Test]:
        return {} if self._tree is None else {level: self._tree.test_of(level) for level in get_args(Level)}

    @property
    def empty(self) -> bool:
        return self._tree is None

    def node(self, view: NodeView, findings: Sequence[Finding] = ()) -> bool:
        """Whether a node passes; others' ``findings`` are ignored."""
        return self.keeps(Subject(view, findings=findings))

    def gpu(self, view: NodeView, gpu: GpuSample) -> bool:
        return self.keeps(Subject(view, gpu))

    def row(self, text: str) -> bool:
        """A line of text without fields: the words only, and everything when the expression has fields."""
        nobody = NodeView(NodeState("", "connecting"))
        return self._tree is None or bool(self.fields) or self._tests["node"](Subject(nobody, text=text))

    def keeps(self, subject: Subject) -> bool:
        """Whether the subject fulfils the expression, by itself or by its parts."""
        if self._tree is None:
            return True
        level: Level = "gpu" if subject.gpu is not None else "rank" if subject.rank is not None else "node"
        return self._tests[level](self._with_own_findings(subject))

    def nowhere_known(self, subjects: Iterable[Subject]) -> tuple[str, ...]:
        """The names of fields whose value is unknown of every subject: why nothing is shown."""
        missing = {field_.name: field_ for field_ in self.fields}
        gpus, ranks = (self._tree.gpus, self._tree.ranks) if self._tree is not None else (False, False)
        for subject in subjects:
            for part in parts_of(self._with_own_findings(subject), gpus, ranks):
                missing = {
                    name: field_
                    for name, field_ in missing.items()
                    if value_of(field_, part) is None and not has_no_rank(field_, part)
                }
                if not missing:
                    return ()
        return tuple(missing)

    def _with_own_findings(self, subject: Subject) -> Subject:
        """``subject`` with the findings that are about it: others' are ignored."""
        if not subject.findings or not self._needs_findings:
            return subject
        own: Sequence[Finding] = [finding for finding in subject.findings if finding.node == subject.view.node]
        return subject._replace(findings=own if subject.gpu is None else of_gpu(subject.gpu, own))


def parse(text: str) -> Filter:
    """A filter, or one with the ``problem`` of a text that is none (yet); never raises."""
    if not text.strip():
        return Filter(text)
    if len(text) > MOST_TEXT:
        return Filter(text, f"longer than {MOST_TEXT} characters")
    parser = Parser(text)
    try:
        tree = parser.parse()
    except FilterProblem as problem:
        return Filter(text, str(problem))
    return Filter(text, "", tuple(dict.fromkeys(parser.fields)), tuple(parser.words), tree)


_LAST_WORD = re.compile(r"[\s&|!(]*[^\s&|()]*\s*$")  # with what joins it to the words before


def meanwhile(last: Filter, draft: Filter, fields: bool = False) -> Filter:
    """The filter that holds while ``draft`` is typed: itself, or the ``last`` one that made sense, less its last word
    where that turns out to be the name of a field.

    ``fields``: rows have fields, so a last word that may become the name of one (``s``, ``sm``) waits for what follows.
    """
    if draft.text == last.text:
        return last
    if draft.problem:
        is_field = draft.text.startswith(last.text) and _SIGN.match(draft.text[len(last.text) :])
        shorter = parse(_LAST_WORD.sub("", last.text)) if is_field else last
        return Filter() if shorter.problem else shorter
    typed, text = draft.words[-1].casefold() if draft.words and fields else "", draft.text.casefold()
    names = [name for name in (*FIELDS, *ALIASES) if name.startswith(typed)]
    waits = typed and names and (text.endswith(typed) or (typed in names and text.rstrip().endswith(typed)))
    return last if waits else draft
