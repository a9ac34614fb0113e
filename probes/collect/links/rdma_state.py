"""State, physical state and rate of one RDMA port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mltop.probes.collect.links import words
from mltop.probes.collect.links.counters import Refused
from mltop.probes.collect.links.files import REFUSED, Attribute, OpenFiles

_Value = TypeVar("_Value")


class PortState:
    """``refused``: why the port is not asked any more. ``gone``: it used to answer, now its files are not there.

    ``unreadable``: by file, why it has no value now.
    """

    def __init__(self, folder: str, files: OpenFiles) -> None:
        self._state_file = files.attribute(f"{folder}/state")
        self._seldom_files = (files.attribute(f"{folder}/phys_state"), files.attribute(f"{folder}/rate"))
        self.state: str | None = None
        self.physical_state: str | None = None
        self.rate_bits_per_s: float | None = None
        self.refused: str | None = None
        self.gone = False
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """The state."""
        answered = self.state is not None
        self.state = self._text("state", self._state_file, words.state_word)
        self.gone = answered and self.state is None and self.refused is None

    def read_seldom(self) -> None:
        """The physical state and the rate."""
        physical, rate = self._seldom_files
        self.physical_state = self._text("phys_state", physical, words.state_word)
        self.rate_bits_per_s = self._text("rate", rate, words.rate_bits_per_s)

    def replaced(self) -> bool:
        return self._state_file.replaced()

    def close(self) -> None:
        for file in (self._state_file, *self._seldom_files):
            file.close()

    def _text(self, name: str, file: Attribute, meaning: Callable[[bytes], _Value | None]) -> _Value | None:
        if self.refused is not None:
            return None
        self.unreadable.pop(name, None)
        try:
            data = file.read()
        except OSError as error:
            if error.errno in REFUSED:
                self.refused = str(Refused(name, error))
            else:
                self.unreadable[name] = error.strerror or type(error).__name__
            return None
        value = meaning(data)
        if value is None:
            self.unreadable[name] = f"reads {data[:20]!r}"
        return value
