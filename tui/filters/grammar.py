"""From text to a test: ``sm<0.2 & (power>300W | throttle=hw_thermal) !node=gpu07 word``.

    any    = all { ("|" | "or") all }
    all    = one { ["&" | "and"] one }          side by side means and
    one    = ("!" | "not") one | "(" any ")" | field sign value | word
    sign   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    value and word: up to a blank, bracket, & or |; or anything "in quotes"; a unit may follow a blank: 300 W

A negation is carried down to the single terms, so that it never makes something of what is unknown.
"""

from __future__ import annotations

import re

from mltop.tui.filters.fields import Field
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.terms import OPERATORS, comparison, joins_unit, word
from mltop.tui.filters.tree import Term, Tree, grouped

MOST_DEPTH = 30
_BLANKS = re.compile(r"\s*")
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
        self._at = _end(_BLANKS, self._text, self._at)
        found = _WORD.match(self._text, self._at)
        if found is not None and found.group().casefold() in _NAMED and not self._is_field(found.end()):
            return _NAMED[found.group().casefold()]
        return self._text[self._at : self._at + 1]

    def _is_field(self, at: int) -> bool:
        return _SIGN.match(self._text, _end(_BLANKS, self._text, at)) is not None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Pass what ``pattern`` finds after blanks."""
        at = _end(_BLANKS, self._text, self._at)
        found = pattern.match(self._text, at)
        self._at = found.end() if found is not None else at
        return found


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
