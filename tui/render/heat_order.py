"""In which order nodes stand: by name, or those with problems first. A node moves only when its status changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

BETTER_FOR_S = 10.0  # a node that recovers stays among the problems for so long: what flaps does not jump
RANKS = {"crit": 0, "warn": 1}
FINE = 2  # connecting nodes stand among the good ones: at the start nothing moves when they answer
_DIGITS = re.compile(r"(\d+)")


@lru_cache(maxsize=8192)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which node9 comes before node10."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)


class WorstFirst:
    """Remembers which rank each node has and since when it would deserve a better one."""

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}
        self._better_since: dict[str, float] = {}

    def ordered(self, nodes: Iterable[tuple[str, str]], now_s: float) -> list[tuple[str, int]]:
        """(name, rank) of ``nodes``, pairs of (name, status); ``now_s`` grows from call to call."""
        names = []
        for name, status in nodes:
            names.append(name)
            self._update(name, RANKS.get(status, FINE), now_s)
        ranks = self._ranks
        return [(name, ranks[name]) for name in sorted(names, key=lambda name: (ranks[name], natural(name)))]

    def _update(self, name: str, rank: int, now_s: float) -> None:
        held = self._ranks.get(name)
        if held is None or rank <= held:
            self._ranks[name] = rank
            self._better_since.pop(name, None)
        elif now_s - self._better_since.setdefault(name, now_s) >= BETTER_FOR_S:
            self._ranks[name] = rank
            del self._better_since[name]


def by_name(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural)
