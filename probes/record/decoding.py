"""What mltop takes of recordings and captures, which others may have made: memory and time stay bounded.

Where a limit is hit, or the shape is wrong, one line says so and nothing is judged. The reasons of the limits:

- A line of a recording is a frame of an agent, and no agent sends larger ones.
- A sample of 8 GPUs has 60 KB: 1 GB is five hours of one node at 1 Hz. The largest that mltop writes itself is a
  capture of 16,384 nodes with three samples each: 3 GB. In memory they are packed and need a fifteenth of that.
- Text of 1 MB can become 200 MB of objects (``[{},{},{},…``), so what would become objects is counted before.
- Dumps are judged together and must all be in memory: 16 rounds of 4,096 ranks have about 600,000 parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from mltop.probes.agent.protocol import MAX_FRAME_BYTES
from mltop.probes.model import Sample
from mltop.probes.model.receipt import MOST_TIME_S, Refused, admit_told, said
from mltop.probes.reach.receiving import own_type, sample_of_line
from mltop.probes.reach.targets.nodesets import MOST_NAME_CHARS, MOST_NODES

MOST_RECORDED_NODES = MOST_NODES
MOST_NODE_CHARS = MOST_NAME_CHARS
MOST_LINE_BYTES = MAX_FRAME_BYTES
MOST_SAMPLE_OBJECTS = 30_000  # of 64 GPUs with their links, ranks, ports and processes: 10,000
MOST_RECORDING_BYTES = 4 << 30  # unpacked, of all recordings in a capture together
MOST_SAMPLES = 1_000_000  # a week of one node at 1 Hz: 604,800
MOST_PACKED_BYTES = 384 << 20  # of samples, as they are kept in memory

MOST_FILES = 200_000  # in a folder: 16,384 nodes with 8 ranks each have 131,072
MOST_MANIFEST_BYTES = 32 << 20
MOST_MANIFEST_OBJECTS = 8 * MOST_NODES  # states, and how each node was reached
MOST_VERDICT_BYTES = 256 << 20
MOST_DUMP_BYTES = 64 << 20  # of one process: 100 rounds, or one with the stacks of 64 children as py-spy saw them
MOST_DUMP_OBJECTS = 400_000
MOST_DUMP_PARTS = 1_000_000  # of all: dumps, digests, counters and different stacks' frames
MOST_TOLD = 200_000  # objects and lists in incidents and findings: 100 of each on 1,000 nodes
MOST_RECORDS = 4_000_000  # likewise in records: 30 operations of 6 groups on 4,096 ranks
MOST_PROBLEMS = 20  # of a manifest that are said one by one

VALUES_PER_OBJECT = 25  # numbers and texts; ours have up to 12
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\xef\xbb\xbf": "UTF-8 with a mark", b"\x1f\x8b": "gzip"}

Kind = TypeVar("Kind")


class BadRecording(Exception):
    """A path that is not a capture or recording; the message is one line that says why."""


class NoCapture(BadRecording):
    """A folder or an archive that mltop did not make."""


def decode(data: bytes, kind: type[Kind], where: str, most_objects: int) -> Kind:
    """JSON text as ``kind``. Raises BadRecording, whose message begins with ``where``.

    ``most_objects``: of so many, text is not decoded at all. Whoever hides brackets in strings is refused earlier.
    """
    _refuse_many(data, where, most_objects)
    with failing_at(where, data):
        return msgspec.json.decode(data, type=kind, dec_hook=own_type)


def decode_shown(data: bytes, kind: type[Kind], where: str, most_objects: int) -> Kind:
    """As ``decode``, of what people will read: every text made plain, every time one that a calendar has."""
    content: object = decode(data, Any, where, most_objects)
    with failing_at(where):
        return msgspec.convert(admit_told(content), kind, dec_hook=own_type)


def decode_sample(line: bytes, where: str) -> Sample:
    """One sample, whole and checked: every sample that comes from a file passes here. Raises BadRecording."""
    _refuse_many(line, where, MOST_SAMPLE_OBJECTS)
    with failing_at(where, line):
        sample = sample_of_line(line)
    if len(sample.node) > MOST_NODE_CHARS:
        raise BadRecording(f"{where}: a node's name has {len(sample.node):,} characters")
    return sample


class SampleHead(msgspec.Struct):
    """Of a sample what it is filed by."""

    node: str
    sampled_at: float


_heads = msgspec.json.Decoder(SampleHead)


def decode_head(line: bytes, where: str) -> SampleHead:
    """As ``decode_sample``, in a thirtieth of its time; what else is wrong with it, ``decode_sample`` says later."""
    _refuse_many(line, where, MOST_SAMPLE_OBJECTS)
    with failing_at(where, line):
        head = _heads.decode(line)
        if not 0 <= head.sampled_at <= MOST_TIME_S:
            raise Refused(f"its sampled_at, {said(head.sampled_at)}, is no time")
    if not 0 < len(head.node) <= MOST_NODE_CHARS:
        raise BadRecording(f"{where}: a node's name has {len(head.node):,} characters")
    return head


def _refuse_many(data: bytes, where: str, most_objects: int) -> None:
    objects, values = data.count(b"{") + data.count(b"["), data.count(b",")
    if objects > most_objects or values > most_objects * VALUES_PER_OBJECT:
        raise BadRecording(f"{where}: {max(objects, values):,} values are more than mltop takes")


@contextlib.contextmanager
def failing_at(where: str, data: bytes = b"") -> Iterator[None]:
    """Turns what decoding and receiving raise into a BadRecording that begins with ``where``."""
    try:
        yield
    except (msgspec.ValidationError, Refused) as error:
        raise BadRecording(f"{where}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
        raise BadRecording(f"{where}: {f'is {encoding}, not plain UTF-8' if encoding else error}") from None
    except RecursionError:
        raise BadRecording(f"{where}: brackets within brackets, too deep to be read") from None
