"""How often what is read."""

from __future__ import annotations

SELDOM_S = 5.0
LISTED_S = 10.0
_TURNS = 5
_EARLY_S = 0.5  # looks come once a second, some a little early


class Tier:
    """Something that is due every so often, and at first. ``turn``: a number of its own for each of several such: they
    are all done at first, the second time comes early, and from then on they take turns.
    """

    def __init__(self, every_s: float = SELDOM_S, turn: int = 0) -> None:
        self._every_s = every_s
        self._early_s = every_s * (turn % _TURNS) / _TURNS
        self._done_at: float | None = None  # less by how much early the next time is
        self._read_at: float | None = None

    def due(self, now: float) -> bool:
        """Also when the clock went back."""
        return self._done_at is None or not 0 <= now - self._done_at < self._every_s - _EARLY_S

    def done(self, now: float) -> None:
        self._read_at, self._done_at = now, now - self._early_s
        self._early_s = 0.0

    @property
    def read_at(self) -> float | None:
        """When it was done last."""
        return self._read_at

    def hurry(self) -> None:
        """Make it due at the next look."""
        self._done_at = None
