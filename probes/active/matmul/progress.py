"""Says how far a probe is, a few times a second at most."""

from __future__ import annotations

import time

from mltop.probes.active.child import stage

_PAUSE_S = 0.2


class Progress:
    """``deadlines_s``: of the stages, as the order has them."""

    def __init__(self, device: str, deadlines_s: dict[str, float]) -> None:
        self._device = device
        self._deadlines_s = deadlines_s
        self._told_s = 0.0
        self.stage = ""

    def begin(self, name: str, text: str = "") -> None:
        self.stage = name
        self._told_s = time.monotonic()
        stage(name, self._device, text=text, deadline_s=self._deadlines_s.get(name))

    def tell(self, fraction: float, text: str = "") -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _PAUSE_S:
            self._told_s = now_s
            stage(self.stage, self._device, fraction=round(fraction, 3), text=text)
