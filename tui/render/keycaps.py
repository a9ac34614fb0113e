"""How keys are written in sentences: as the user has set them, else as they are by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# A key of each action that a sentence names; a test compares it with the bindings.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "overview": "1",
        "node": "2",
        "ranks": "3",
        "stacks": "4",
        "events": "6",
        "probes": "7",
        "incidents": "8",
        "dump": "t",
        "matmul": "M",
        "all_reduce": "A",
        "pause": "p",
        "now": "End",
        "back": "Esc",
        "help": "?",
        "filter": "/",
        "log": "l",
        "open": "Enter",
        "top": "g",
        "signal": "F9",
        "unreadable": "u",
        "compare": "x",
        "ras": "i",
        "next_table": "Tab",
        "dump_once": "y",
        "always": "a",
        "no_dump": "n",
    }
)


class Keycaps:
    """By the name of the action. Whoever draws sets the user's before the first line is made."""

    def __init__(self) -> None:
        self._chosen: Mapping[str, str] = {}

    def use(self, chosen: Mapping[str, str]) -> None:
        """``chosen``: the keys that the user gives to actions, as they are written for people."""
        self._chosen = dict(chosen)

    def __getitem__(self, action: str) -> str:
        return self._chosen.get(action) or DEFAULTS[action]


KEYCAPS = Keycaps()
