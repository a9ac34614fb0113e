"""What the hub reads of every frame before anything else."""

from __future__ import annotations

import msgspec


class SampleHead(msgspec.Struct):
    sampled_at: float


class Envelope(msgspec.Struct):
    """As much of a frame as most of them need: the rest of a sample is decoded when somebody looks at it."""

    kind: str
    node: str = ""
    sample: SampleHead | None = None
