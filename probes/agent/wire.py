"""How one agent's frames look on the way out: which mark, how long a line may be."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from mltop.probes.agent.pieces import split
from mltop.probes.agent.protocol import (
    MARK,
    TEXT_MARK,
    Message,
    encode,
    encode_light,
    payload_of,
)
from mltop.probes.model import Sample


@dataclass
class Wire:
    """``text``: no NUL bytes; ``frame_bytes``: the longest line the carrier keeps whole, 0 for any length."""

    node: str
    text: bool = False
    frame_bytes: int = 0
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def encode(self, message: Message) -> bytes:
        """One frame, in pieces where it is too long."""
        return self._whole(encode(message, self._mark))

    def encode_light(self, sample: Sample) -> bytes:
        """A sample without what the whole one before it has told."""
        return self._whole(encode_light(sample, self._mark))

    @property
    def _mark(self) -> bytes:
        return TEXT_MARK if self.text else MARK

    def _whole(self, frame: bytes) -> bytes:
        if not self.frame_bytes or len(frame) <= self.frame_bytes:
            return frame
        payload = payload_of(frame[:-1])
        assert payload is not None
        return b"".join(split(payload, f"{self.node}:{os.getpid()}:{next(self._serial)}", self.frame_bytes))
