"""Bytes per second from two looks at a port's byte counters."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_S = 0.05

FIRST = "first sample: rates need two"
STARTED_ANEW = "the byte counters started anew"


@dataclass
class ByteMeter:
    """``unit_bytes``: what one count stands for. ``why``: why the newest rates are None, "" when they are not."""

    unit_bytes: int = 1
    why: str = FIRST
    _last: tuple[float, int, int] | None = None

    def rates(self, now: float, received: int | None, sent: int | None) -> tuple[float | None, float | None]:
        """Since the look before. A counter that went back gives no rate: it was reset, it cannot wrap (64 bits)."""
        if received is None or sent is None:
            self._last, self.why = None, "the byte counters cannot be read"
            return None, None
        last, self._last = self._last, (now, received, sent)
        if last is None or now - last[0] < SHORTEST_S:
            self.why = FIRST
            return None, None
        if received < last[1] or sent < last[2]:
            self.why = STARTED_ANEW
            return None, None
        self.why = ""
        scale = self.unit_bytes / (now - last[0])
        return (received - last[1]) * scale, (sent - last[2]) * scale
