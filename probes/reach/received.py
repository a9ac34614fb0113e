"""A sample as it came, decoded as far as somebody asked."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mltop.probes.model import Sample
from mltop.probes.reach.glance import Glance

_DECODING = threading.Lock()  # for a moment, and rarely by two: one for all


class Received:
    """``glance`` is there at once; the whole sample when it is asked for, decoded once. For any thread."""

    __slots__ = ("_decode", "_decoded", "_sample", "asked", "glance", "payload", "slow")

    def __init__(
        self, payload: bytes, glance: Glance, decode: Callable[[bytes, bytes], Sample | None], slow: bytes = b""
    ) -> None:
        """``slow``: the "slow" frame that holds the rest of it. ``decode`` is given both and returns None when the
        sample cannot be decoded; it sees to it that the user learns of it.
        """
        self.payload = payload
        self.slow = slow
        self.glance = glance
        self.asked = False  # somebody wanted the whole sample
        self._decode = decode
        self._decoded = False
        self._sample: Sample | None = None

    def sample(self) -> Sample | None:
        self.asked = True
        return self.decoded()

    def decoded(self) -> Sample | None:
        """As ``sample``, for who does not look at it but knows that somebody will."""
        if not self._decoded:
            with _DECODING:
                if not self._decoded:
                    self._sample = self._decode(self.payload, self.slow)
                    self._decoded = True
        return self._sample
