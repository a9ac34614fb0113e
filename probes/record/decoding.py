"""From bytes that somebody else wrote to objects: every malformed shape is one sentence, and memory stays bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from mltop.probes.model import Sample
from mltop.probes.model.receipt import Refused
from mltop.probes.reach.receiving import sample_of_line
from mltop.probes.record.limits import MOST_NODE_CHARS, MOST_SAMPLE_OBJECTS

Kind = TypeVar("Kind")
VALUES_PER_OBJECT = 25  # numbers and texts; ours have up to 12
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\xef\xbb\xbf": "UTF-8 with a mark", b"\x1f\x8b": "gzip"}


class BadRecording(Exception):
    """A path that is not a capture or recording; the message is one line that says why."""


def decode(data: bytes, kind: type[Kind], where: str, most_objects: int) -> Kind:
    """JSON text as ``kind``. Raises BadRecording, whose message begins with ``where``.

    ``most_objects``: of so many, text is not decoded at all. Whoever hides brackets in strings is refused earlier.
    """
    _refuse_many(data, where, most_objects)
    with told(where, data):
        return msgspec.json.decode(data, type=kind)


def decode_sample(line: bytes, where: str) -> Sample:
    """One sample, whole and checked: every sample that comes from a file passes here. Raises BadRecording."""
    _refuse_many(line, where, MOST_SAMPLE_OBJECTS)
    with told(where, line):
        sample = sample_of_line(line)
    if len(sample.node) > MOST_NODE_CHARS:
        raise BadRecording(f"{where}: a node's name has {len(sample.node):,} characters")
    return sample


def _refuse_many(data: bytes, where: str, most_objects: int) -> None:
    objects, values = data.count(b"{") + data.count(b"["), data.count(b",")
    if objects > most_objects or values > most_objects * VALUES_PER_OBJECT:
        raise BadRecording(f"{where}: {max(objects, values):,} values are more than mltop takes")


@contextlib.contextmanager
def told(where: str, data: bytes = b"") -> Iterator[None]:
    """What decoding and receiving raise becomes a BadRecording that begins with ``where``."""
    try:
        yield
    except (msgspec.ValidationError, Refused) as error:
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
