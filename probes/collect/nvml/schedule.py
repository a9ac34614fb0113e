"""When each tier of each GPU is read again. The slow tiers of a machine are spread over the polls."""

from __future__ import annotations

from mltop.probes.collect.nvml.device import Reading

SLACK_S = 0.5  # polls come once a second, and never exactly
_STEPS = 5


class Schedule:
    """Of one GPU. Times are the requests' clock."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._told: dict[str, Reading] = {}

    def forget(self) -> None:
        """Everything is due again, and news."""
        self._due_s.clear()
        self._told.clear()

    def is_due(self, tier: str, every_s: float, offset: int, at_s: float) -> bool:
        """Also plans the next time. ``offset``: a number of its own for each GPU and tier.

        Everything is due at the first poll. The second time comes early, by the offset, so that from then on GPUs and
        tiers take turns.
        """
        due_s = self._due_s.get(tier)
        if due_s is None:
            self._due_s[tier] = at_s + every_s * (offset % _STEPS + 1) / _STEPS
            return True
        if at_s < due_s - SLACK_S:
            return False
        self._due_s[tier] = max(due_s, at_s - SLACK_S) + every_s
        return True

    def put_off(self, tier: str, due_s: float) -> None:
        """It is due then, and not before."""
        self._due_s[tier] = due_s

    def is_news(self, tier: str, reading: Reading) -> bool:
        """Whether it differs from what was told before: the agent keeps what it is not told again."""
        before = self._told.get(tier)
        self._told[tier] = reading
        if before is None or before is reading:
            return before is None
        return before.values != reading.values or before.problems != reading.problems
