"""What fails through a bug of ours while something is shown: it costs its row or its part of a pane, and is said once.

Nodes and their users decide what is drawn. Whatever they find that breaks a row, the engineer who watches 512 nodes
must not lose the screen over it.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

from mltop.probes.model.text import plain_text
from mltop.probes.system.limits import limit_words

Result = TypeVar("Result")


def words_of(error: BaseException) -> str:
    """What an unexpected error is, without secrets."""
    from mltop.probes.collect.redaction.values import shown_text

    return f"{type(error).__name__}: {plain_text(shown_text(str(error)))}"


class Failures:
    """What has failed so far, by where it happened, not by whose row it was. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[object, tuple[str, Exception]] = {}
        self._unsaid: list[str] = []
        self._listener: Callable[[], object] = lambda: None

    def listen(self, listener: Callable[[], object]) -> None:
        """``listener`` runs, in the thread where something failed, when there is something to be said."""
        self._listener = listener

    def take(self, what: str, error: Exception) -> str:
        """Returns a sentence to be shown in place of what failed."""
        sentence = f"{what} failed: {limit_words(error) or f'{words_of(error)} (please report)'}"
        frames = traceback.extract_tb(error.__traceback__)
        place = tuple((frame.filename, frame.lineno) for frame in (*frames[:2], *frames[-1:]))
        with self._lock:
            is_new = place not in self._by_place
            if is_new:
                self._by_place[place] = sentence, error
                self._unsaid.append(sentence)
        if is_new:
            self._listener()
        return sentence

    def unsaid(self) -> str:
        """The first sentence that was not shown yet, and how many more there are; "" when there is none."""
        with self._lock:
            sentences, self._unsaid = self._unsaid, []
        more = f"; and {len(sentences) - 1} more" if len(sentences) > 1 else ""
        return sentences[0] + more if sentences else ""

    def all(self) -> list[tuple[str, Exception]]:
        """All sentences and errors, each once, for the end of the program."""
        with self._lock:
            return list(self._by_place.values())

    def forget(self) -> None:
        with self._lock:
            self._by_place.clear()
            self._unsaid.clear()
            self._listener = lambda: None


FAILURES = Failures()


def guarded(what: str, make: Callable[[], Result], instead: Result) -> Result:
    """What ``make`` returns, or ``instead`` of it when it fails."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the screen says so, and goes on
        FAILURES.take(what, error)
        return instead
