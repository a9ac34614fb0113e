"""Terms together, as the test of a row. A row (a node, a GPU, a rank) has parts: a node its GPUs and ranks, a GPU its
ranks, a rank its GPUs.

- Terms side by side of which one asks for something hold together on one part: ``sm<0.2 & !throttle=hw_thermal`` is
  a GPU that is slow and not throttled, ``sm<0.2 & power>300`` one that is both.
- What is negated and has nothing to go with holds when no part of the row fulfils it: ``!(rank=3)`` is a node without
  rank 3, ``!(sm<0.2 & power>300)`` one without a GPU that is both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mltop.tui.filters.fields import Field, parts_of
from mltop.tui.filters.terms import Test

Level = Literal["node", "gpu", "rank"]  # what a row is
LEVELS: tuple[Level, ...] = ("node", "gpu", "rank")


@dataclass(frozen=True)
class Tree:
    """A word (without ``field``) or a comparison; or several ``members``, of which one suffices (``either``).

    ``excludes``: a test that does (``!sm<0.2``, ``rank!=3``), or the opposite of terms side by side, so of one part.
    """

    test: Test | None = None
    field: Field | None = None
    members: Sequence[Tree] = ()
    either: bool = False
    excludes: bool = False

    @classmethod
    def of(cls, members: Sequence[Tree], either: bool, excludes: bool = False) -> Tree:
        """One member stands for itself; terms side by side in brackets join those around them."""
        if len(members) == 1:
            return members[0]
        if either:
            return cls(members=members, either=True, excludes=excludes)
        return cls(members=[part for one in members for part in ([one] if one.either else one.members or [one])])

    @cached_property
    def needs(self) -> tuple[bool, bool]:
        """Whether it has fields of GPUs, and of ranks."""
        if self.field is not None:
            return self.field.needs_gpus, self.field.of == "rank"
        needs = [member.needs for member in self.members]
        return any(gpus for gpus, _ in needs), any(ranks for _, ranks in needs)

    def test_of(self, level: Level) -> Test:
        """The test of a row."""
        if not self._asks_parts(level):
            return self._test_of_part()
        if self.members and not self._goes_together(level):
            return _joined([member.test_of(level) for member in self.members], self.either)
        gpus, ranks = self.needs
        test = self.test_of("gpu") if level == "node" and gpus else self._test_of_part()
        quantifier = all if self.excludes else any
        return lambda subject: quantifier(map(test, parts_of(subject, gpus, ranks)))

    def _test_of_part(self) -> Test:
        """The test of a subject without parts."""
        return self.test or _joined([member._test_of_part() for member in self.members], self.either)

    def _asks_parts(self, level: Level) -> bool:
        """Whether it has fields of what a row of this level has as its parts."""
        gpus, ranks = self.needs
        return gpus if level == "rank" else ranks if level == "gpu" else gpus or ranks

    def _goes_together(self, level: Level) -> bool:
        """Whether these are terms side by side of which one asks for something of a part, rather than excludes it.

        What stands in brackets is asked by itself where all else is about the row: ``node=n1 (sm<0.2 | !user=ada)``.
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
