"""A filter: from text to an expression, made once and asked for every row.

``sm<0.2 & (power>300W | throttle=hw_thermal) !node=gpu07 word``

    any    = all { ("|" | "or") all }
    all    = one { ["&" | "and"] one }          side by side means and
    one    = ("!" | "not") one | "(" any ")" | field sign value | word
    sign   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    value and word: up to a blank, bracket, & or |; or anything "in quotes"; a unit may follow a blank: 300 W

A negation is carried down to the single terms, so that it never makes something of what is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mltop.probes.model import Finding, GpuSample, NodeState, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters.expression import (
    LEVELS,
    OPERATORS,
    Level,
    Term,
    Test,
    Tree,
    comparison,
    grouped,
    joins_unit,
    test_of,
    word,
)
from mltop.tui.filters.fields import ALIASES, FIELDS, Field, Subject, gpu_of, has_no_rank, of_gpu, parts_of, value_of
from mltop.tui.render.units import FilterProblem

MOST_DEPTH = 30
_QUOTED = re.compile(r'"([^"]*)"')
_WORD = re.compile(r'(?:[^\s()&|!=<>~"]|!(?!=))+')
_VALUE = re.compile(r'[^\s()&|"]+')
_SIGN = re.compile("|".join(OPERATORS))
_UNIT = re.compile(r"\s+([%°A-Za-z]+)(?=[\s)&|]|$)")
_NAMED = {"and": "&", "or": "|", "not": "!"}


class Parser:
    """Call ``parse`` once. ``fields`` and ``words`` are what the expression names."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.fields: list[Field] = []
        self.words: list[str] = []

    def parse(self) -> Tree:
        """Raises FilterProblem."""
        tree = self._any(True)
        if self._next():
            raise FilterProblem(") without a (")
        return tree

    def _any(self, wanted: bool) -> Tree:
        parts = [self._all(wanted)]
        while self._take("|"):
            parts.append(self._all(wanted))
        return grouped(parts, either=wanted)

    def _all(self, wanted: bool) -> Tree:
        parts = [self._one(wanted)]
        while self._take("&") or self._next() not in ("", ")", "|"):
            parts.append(self._one(wanted))
        return grouped(parts, either=not wanted, opposite=not wanted)

    def _one(self, wanted: bool) -> Tree:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise FilterProblem("too many brackets")
        if self._take("!"):
            if not self._next():
                raise FilterProblem("! excludes the term that follows: none does yet")
            tree = self._one(not wanted)
        elif self._take("("):
            tree = self._any(wanted)
            if not self._take(")"):
                raise FilterProblem("( is not closed yet")
        else:
            tree = self._term(wanted)
        self._depth -= 1
        return tree

    def _term(self, wanted: bool) -> Tree:
        quoted = self._match(_QUOTED)
        if quoted is not None:
            self.words.append(quoted.group(1))
            return Term(word(quoted.group(1), wanted), negated=not wanted)
        name = self._match(_WORD)
        if name is None:
            raise FilterProblem(self._missing())
        sign = self._match(_SIGN)
        if sign is None:
            self.words.append(name.group())
            return Term(word(name.group(), wanted), negated=not wanted)
        value = self._value(name.group(), sign.group())
        field, test, negated = comparison(name.group(), sign.group(), value, wanted)
        self.fields.append(field)
        return Term(test, field, negated)

    def _value(self, name: str, sign: str) -> str:
        quoted = self._match(_QUOTED)
        if quoted is not None:
            return quoted.group(1)
        value = self._match(_VALUE)
        if value is None:
            raise FilterProblem(f"{name} {sign} what?")
        unit = _UNIT.match(self._text, self._at)
        if unit is None or not joins_unit(name, value.group(), unit.group(1)):
            return value.group()
        self._at = unit.end()
        return value.group() + unit.group(1)

    def _missing(self) -> str:
        """Why no term stands here."""
        rest = self._text[self._at :]
        if not rest:
            return "a term is missing at the end"
        if rest.startswith('"'):
            return 'the " is not closed yet'
        sign = _SIGN.match(rest)
        return f"{sign.group()} needs a field before it" if sign else f"a term is missing before {rest[0]}"

    def _take(self, sign: str) -> bool:
        """Whether the next thing is this sign, once or twice, or the word for it; it is passed then."""
        if self._next() != sign:
            return False
        named = _WORD.match(self._text, self._at)
        doubled = sign in "&|" and self._text.startswith(sign * 2, self._at)
        self._at = named.end() if named and named.group().casefold() in _NAMED else self._at + 1 + doubled
        return True

    def _next(self) -> str:
        """The next character after blanks, or the sign that the next word stands for; "" at the end."""
        self._at = _after_blanks(self._text, self._at)
        match = _WORD.match(self._text, self._at)
        if match is not None and match.group().casefold() in _NAMED and not self._is_field(match.end()):
            return _NAMED[match.group().casefold()]
        return self._text[self._at : self._at + 1]

    def _is_field(self, at: int) -> bool:
        return _SIGN.match(self._text, _after_blanks(self._text, at)) is not None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What ``pattern`` finds after blanks, which is passed with it."""
        at = _after_blanks(self._text, self._at)
        match = pattern.match(self._text, at)
        self._at = match.end() if match is not None else at
        return match


def _after_blanks(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


MOST_TEXT = 500
_SIGNS = tuple("=!<>~")
_LAST_WORD = re.compile(r"[\s&|!(]*[^\s&|()]*\s*$")  # with what joins it to the words before
_OPEN_WORD = re.compile(r"(?:^|[\s&|!])(\w+)(\s*)$")
_NOBODY = NodeView(NodeState("", "connecting"))  # of a line of text


@dataclass(frozen=True)
class Filter:
    """Keeps what fulfils its expression; everything when it is ``empty`` or has a ``problem`` (one sentence).

    A node fulfils an expression when one of its GPUs with its ranks does, and what is only negated when none of them
    fulfils that: see `tree`. A GPU is asked together with its ranks, a rank together with its GPUs.
    """

    text: str = ""
    problem: str = ""
    fields: tuple[Field, ...] = ()
    words: tuple[str, ...] = ()
    _tree: Tree | None = field(default=None, repr=False, compare=False)

    # Asked thousands of times a frame: what the expression needs is found out once.

    @cached_property
    def _needs_findings(self) -> bool:
        return bool(self.words) or any(field_.of == "finding" for field_ in self.fields)

    @cached_property
    def _tests(self) -> dict[Level, Test]:
        return {} if self._tree is None else {level: test_of(self._tree, level) for level in LEVELS}

    @property
    def empty(self) -> bool:
        return self._tree is None

    def node(self, view: NodeView, findings: Sequence[Finding] = (), text: str | None = None) -> bool:
        """Whether a node passes; others' ``findings`` are ignored. ``text``: where words look, in place of its own."""
        return self.keeps(Subject(view, findings=findings, text=text))

    def gpu(self, view: NodeView, gpu: GpuSample, findings: Sequence[Finding] = (), text: str | None = None) -> bool:
        """Whether a GPU passes. ``findings`` about something else are ignored."""
        return self.keeps(Subject(view, gpu, findings=findings, text=text))

    def rank(self, view: NodeView, rank: RankSample, text: str | None = None) -> bool:
        return self.keeps(Subject(view, rank=rank, text=text))

    def finding(self, view: NodeView, finding: Finding, text: str | None = None) -> bool:
        """Whether a finding passes, with the node and, when it is about one, the GPU that it is about."""
        return self.keeps(Subject(view, gpu_of(finding, view), findings=(finding,), text=text))

    def row(self, text: str) -> bool:
        """A line of text without fields: the words only, and everything when the expression has fields."""
        return self._tree is None or bool(self.fields) or self._tests["node"](Subject(_NOBODY, text=text))

    def keeps(self, subject: Subject) -> bool:
        """Whether the subject fulfils the expression, by itself or by its parts."""
        if self._tree is None:
            return True
        level: Level = "gpu" if subject.gpu is not None else "rank" if subject.rank is not None else "node"
        return self._tests[level](self._with_own_findings(subject))

    def nowhere_known(self, subjects: Iterable[Subject]) -> tuple[str, ...]:
        """The names of fields whose value is unknown of every subject: why nothing is shown."""
        gpus, ranks = (
            any(field_.needs_gpus for field_ in self.fields),
            any(field_.needs_ranks for field_ in self.fields),
        )
        missing = {field_.name: field_ for field_ in self.fields}
        for subject in subjects:
            for part in parts_of(self._with_own_findings(subject), gpus, ranks):
                missing = {name: field_ for name, field_ in missing.items() if _is_unknown(field_, part)}
                if not missing:
                    return ()
        return tuple(missing)

    def _with_own_findings(self, subject: Subject) -> Subject:
        if not subject.findings or not self._needs_findings:
            return subject
        node = subject.view.node
        own: Sequence[Finding] = [finding for finding in subject.findings if finding.node == node]
        if subject.gpu is not None:
            own = of_gpu(subject.gpu, own)
        return subject._replace(findings=own)


def _is_unknown(field_: Field, part: Subject) -> bool:
    return value_of(field_, part) is None and not has_no_rank(field_, part)


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


def meanwhile(last: Filter, draft: Filter, fields: bool = False) -> Filter:
    """The filter that holds while ``draft`` is typed: itself, or the ``last`` filter that made sense.

    Of ``last``, a word that turns out to be the name of a field (``sm`` of ``sm<``) is left out. ``fields``: rows
    have fields, so that a last word that may become the name of one (``s``, ``sm``) waits for what follows.
    """
    if draft.text == last.text:
        return last
    if not draft.problem:
        return _without_half_field(draft) if fields else draft
    text, rest = last.text, draft.text[len(last.text) :]
    negates = rest[:1] == "!" and text[-1:].isspace()
    if not draft.text.startswith(text) or not text.strip() or rest[:1] not in _SIGNS or negates:
        return last
    while text:
        text = _LAST_WORD.sub("", text)
        shorter = parse(text)
        if not shorter.problem:
            return shorter
    return Filter()


def _without_half_field(draft: Filter) -> Filter:
    """Without its last word, when that begins the name of a field, or is one and a sign may follow."""
    match = _OPEN_WORD.search(draft.text)
    if match is None or draft.words[-1:] != (match.group(1),):
        return draft
    word, names = match.group(1).casefold(), (*FIELDS, *ALIASES)
    if word in names or (not match.group(2) and any(name.startswith(word) for name in names)):
        shorter = parse(_LAST_WORD.sub("", draft.text))
        return draft if shorter.problem else shorter
    return draft
