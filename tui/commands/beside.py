"""What a command says on stderr while it works: one line that is written over, and lines that stay."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from types import TracebackType

from mltop.probes.investigate.missing import sentences
from mltop.probes.investigate.patience import FAILED
from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.output import say, write_over

# Failures of so long are said together, each time of twice as long: sixty nodes behind one dead switch are one line,
# and a thousand that fail one after the other are a few.
GATHER_S = 0.4


class Beside:
    """The rewritten line is only shown on a terminal; lines that stay always are. Use as a context manager."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._failed: set[str] = set()  # said already, or about to be
        self._unsaid: list[NodeState] = []
        self._unsaid_since = 0.0
        self._gather_s = GATHER_S

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """In place of what stood there."""
        if self._terminal:
            write_over(text, max(1, columns() - 1))
            self._shown = True

    def note(self, sentence: str) -> None:
        self.clear()
        note(sentence)

    def clear(self) -> None:
        if self._shown:
            write_over("", 0)
            self._shown = False

    def failures(self, views: Iterable[NodeView]) -> None:
        """Say once of every node that it cannot be reached, as soon as that is known, those of one reason together."""
        now = time.monotonic()
        for view in views:
            if view.state.state in FAILED and view.node not in self._failed:
                self._failed.add(view.node)
                self._unsaid_since = self._unsaid_since if self._unsaid else now
                self._unsaid.append(view.state)
        if self._unsaid and now - self._unsaid_since > self._gather_s:
            self._gather_s *= 2
            self._say_failures()

    def last_failures(self, states: Iterable[NodeState]) -> None:
        """At the end: of these nodes, those of which nothing was said yet."""
        unsaid = {state.node for state in self._unsaid}
        self._unsaid = [state for state in states if state.node not in self._failed or state.node in unsaid]
        self._failed.update(state.node for state in self._unsaid)
        self._say_failures()

    def _say_failures(self) -> None:
        for sentence in sentences(self._unsaid):
            self.note(sentence)
        self._unsaid = []


def columns() -> int:
    """Of the terminal that stderr is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def note(sentence: str) -> None:
    """One line beside the data."""
    say(sentence)
