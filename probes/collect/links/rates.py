"""Bytes per second from two looks at a port's byte counters."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import Gap
from mltop.probes.plausible import LINKS

SHORTEST_S = 0.05

FIRST = "first sample: rates need two"
STARTED_ANEW = "the byte counters started anew"
_MOST = LINKS["rx_bytes_per_s"].high


@dataclass
class ByteMeter:
    """``unit_bytes``: what one count stands for. ``why``: why the newest rates are None, "" when they are not.

    ``code``: Gap.code of rates that cannot be.
    """

    unit_bytes: int = 1
    why: str = FIRST
    code: str = ""
    _last: tuple[float, int, int] | None = None

    def rates(self, now: float, received: int | None, sent: int | None) -> tuple[float | None, float | None]:
        """Since the look before. A counter that went back gives no rate: it was reset, it cannot wrap (64 bits)."""
        self.code = ""
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
        scale = self.unit_bytes / (now - last[0])
        rates = (received - last[1]) * scale, (sent - last[2]) * scale
        if max(rates) > _MOST:
            self.why, self.code = f"the byte counters went on by {max(rates):.2g} bytes/s: no port does", "implausible"
            return None, None
        self.why = ""
        return rates

    def gaps(self, name: str) -> list[Gap]:
        """Of the newest rates, but for a first sample's and where the counters' own gaps say it."""
        if self.why == STARTED_ANEW:
            return [Gap(f"{name}.rates", self.why, kind="starting")]
        return [Gap(f"{name}.rates", self.why, code=self.code)] if self.code else []
