"""From bytes that somebody else wrote to objects: every malformed shape is one sentence, and memory stays bounded."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from mltop.probes.model import Sample
from mltop.probes.record.limits import LATEST, MOST_NODE_CHARS, MOST_SAMPLE_OBJECTS

Kind = TypeVar("Kind")
VALUES_PER_OBJECT = 25  # numbers and texts; ours have up to 12
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\xef\xbb\xbf": "UTF-8 with a mark", b"\x1f\x8b": "gzip"}


class BadRecording(Exception):
    """A path that is not a capture or recording; the message is one line that says why."""


def decode(data: bytes, kind: type[Kind], where: str, most_objects: int) -> Kind:
    """JSON text as ``kind``. Raises BadRecording, whose message begins with ``where``.

    ``most_objects``: of so many, text is not decoded at all. Whoever hides brackets in strings is refused earlier.
    """
    objects, values = data.count(b"{") + data.count(b"["), data.count(b",")
    if objects > most_objects or values > most_objects * VALUES_PER_OBJECT:
        raise BadRecording(f"{where}: {max(objects, values):,} values are more than mltop takes")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise BadRecording(f"{where}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadRecording(f"{where}: {_encoding(data) or error}") from None
    except RecursionError:
        raise BadRecording(f"{where}: brackets within brackets, too deep to be read") from None


def _encoding(data: bytes) -> str:
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            return f"is {name}, not plain UTF-8"
    return ""


def decode_sample(line: bytes, where: str) -> Sample:
    """One sample, whole and checked: every sample that comes from a file passes here. Raises BadRecording."""
    sample = decode(line, Sample, where, MOST_SAMPLE_OBJECTS)
    if len(sample.node) > MOST_NODE_CHARS:
        raise BadRecording(f"{where}: a node's name has {len(sample.node):,} characters")
    if not -LATEST < sample.sampled_at < LATEST:
        raise BadRecording(f"{where}: sampled_at {sample.sampled_at:g} is no time")
    return sample
