"""Samples and dumps as they come from nodes and from files: decoded within bounds, or one sentence why not.

A node may send anything. How much memory a sample takes once it is decoded is bounded before it is: a GPU of twelve
bytes of JSON ("{"index":1},") becomes an object of thousands.
"""

from __future__ import annotations

import msgspec

from mltop.probes.agent.protocol import Message
from mltop.probes.model import Gap, Sample
from mltop.probes.model.receipt import LARGE_BYTES, MOST_GPUS, MOST_RANKS, Refused, admit
from mltop.probes.reach.glance import Glance, SampleFrame
from mltop.probes.reach.sifting import sift

MOST_SAMPLE_BYTES = 4 * 1024 * 1024  # of JSON: fifty times what a node of 8 GPUs sends
# What decoding raises; of JSON nested too deep and of bytes that are no UTF-8, msgspec does not make errors of its own.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, Refused)
MANY_OBJECTS = 4096  # 8 GPUs with their ports make 1,000
_MOST_OF = {"gpus": MOST_GPUS, "ranks": MOST_RANKS, "links": 4096, "pci": 16_384, "kernel_events": 4096, "gaps": 16_384}


class _Shape(msgspec.Struct):
    """How many there are of what takes most memory."""

    gpus: list[msgspec.Raw] = []
    ranks: list[msgspec.Raw] = []
    links: list[msgspec.Raw] = []
    pci: list[msgspec.Raw] = []
    kernel_events: list[msgspec.Raw] = []
    gaps: list[msgspec.Raw] = []


class _ShapeFrame(msgspec.Struct):
    sample: _Shape | None = None


_shapes = msgspec.json.Decoder(_Shape)
_shapes_of_frames = msgspec.json.Decoder(_ShapeFrame)
_samples = msgspec.json.Decoder(Sample)
_messages = msgspec.json.Decoder(Message)
_glances = msgspec.json.Decoder(SampleFrame)


def sample_of_frame(payload: bytes) -> tuple[Sample | None, list[Gap]]:
    """The sample of an agent's frame, None when it has none, and what was left out of it. Raises UNREADABLE."""
    if _may_be_too_much(payload):
        _bounded(payload, _shapes_of_frames.decode(payload).sample)
    sample = _messages.decode(payload).sample
    return sample, [] if sample is None else admit(sample, len(payload) > LARGE_BYTES) + sift(sample)


def sample_of_line(line: bytes) -> Sample:
    """One line of a recording; its gaps say what was left out. Raises UNREADABLE."""
    if _may_be_too_much(line):
        _bounded(line, _shapes.decode(line))
    sample = _samples.decode(line)
    sample.gaps += admit(sample, len(line) > LARGE_BYTES) + sift(sample)
    return sample


def glance_of_frame(payload: bytes) -> Glance | None:
    """What views of all nodes need of a frame, None when it has no sample. Raises UNREADABLE."""
    if _may_be_too_much(payload):
        _bounded(payload, _shapes_of_frames.decode(payload).sample)
    glance = _glances.decode(payload).sample
    return None if glance is None else glance.admitted()


def why_unreadable(error: Exception) -> str:
    """Behind "is": which kind of UNREADABLE it was; anything else is a bug of ours, and says so."""
    if isinstance(error, Refused):
        return f"refused: {error}"
    if not isinstance(error, UNREADABLE):
        return f"more than mltop can read: {type(error).__name__}: {error} (please report)"
    return f"not readable, or of another version: {error or type(error).__name__}"


def too_large(payload: bytes) -> str:
    """Why a sample of so many bytes is not even kept, "" when it may be."""
    if len(payload) <= MOST_SAMPLE_BYTES:
        return ""
    return f"its sample has {len(payload) / 1e6:.1f} MB of JSON (at most {MOST_SAMPLE_BYTES / 1e6:.1f})"


def _may_be_too_much(payload: bytes) -> bool:
    """A look that costs little: samples that are usual need not be gone through twice."""
    return len(payload) > LARGE_BYTES or payload.count(b"{") > MANY_OBJECTS


def _bounded(payload: bytes, shape: _Shape | None) -> None:
    if too_large(payload):
        raise Refused(too_large(payload))
    for name, most in _MOST_OF.items():
        count = len(getattr(shape, name, ()))
        if count > most:
            raise Refused(f"its sample has {count} {name.replace('_', ' ')} (at most {most})")
