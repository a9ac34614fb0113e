"""Frames between an agent and its caller.

One frame is one line: ``\\x00MLT1 <bytes> <JSON>\\n``. The marker starts every line, so that output of shell
start-up files, binary noise and cut-off lines are told apart from frames and skipped, at any point of the stream.
Carriers that do not keep a NUL byte get the mark ``@MLT1 ``. Those that cut long lines (srun at 1,024 bytes, pdsh), and
mix the lines of several nodes, get pieces: ``@MLT1+ <key> <index> <count> <bytes> <part of the frame's JSON>\\n``. The
key is unique among everything that shares the stream. Runs on every node: Python 3.9, standard library only.

Agent to caller (``kind``): stage0 (a Python waits for stage 1: before that another program may read what is sent),
boot (stage 1 of the bootstrap: is the bundle there?), hello, row (every second), sample (a whole one), parts (what its
ranks are and do), judged (what its health rules find), facts (what nodes are compared by), these when they have
changed (frames.py), part, done, error
(``id`` 0: of the node itself, its agent does not start), need (this request waits for the file ``data["file"]``), pong
(the answer to a ping when nothing else was written since the last one; without a caller on stdin every 5 s), progress
(also of stage 1: some more of a long frame has arrived, about every 16 KB; the caller cannot see how much of what it
wrote is still on its way).
Caller to agent: request, cancel, watch (send whole samples for ``args["seconds"]``), ping (every few seconds, so that
an agent notices a dead link), file (``op`` is the
file's name; ``args``: sha256, data (base64 of gzip), or error (why there is none)).
A request or cancel that names another node is not for this agent. Closing the agent's stdin ends the agent.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mltop.probes.model import RankStacks, Sample, to_json
from mltop.probes.model.encoding import to_short_json
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.model.news.judged import Fact, JobPart, Judged, PartNumbers

MARK = b"\x00MLT1 "
TEXT_MARK = b"@MLT1 "
VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024
_SIZE_DIGITS = 9
PIECE_MARK = b"@MLT1+ "
_PIECE_HEADER_ROOM = 40  # index, count, bytes and blanks

MessageKind = Literal[
    "stage0",
    "boot",
    "hello",
    "row",
    "sample",
    "parts",
    "judged",
    "facts",
    "part",
    "done",
    "error",
    "need",
    "pong",
    "progress",
]
RequestKind = Literal["request", "cancel", "watch", "ping", "file"]
Operation = Literal[
    "stacks",
    "doctor",
    "kernel_lines",
    "probe",
    "probe_tell",
    "signal",
    "signal_facts",
    "diagnose",
    "log_tail",
    "ras",
    "records",
    "history",
]


@dataclass
class Hello:
    """First frame of an agent: who it is and what it runs on."""

    version: str
    protocol: int
    pid: int
    python: str
    hostname: str
    machine: str


@dataclass
class Boot:
    """First frame of stage 1, before any of our packages run on the node.

    ``machine``: platform.machine(); ``python``: "3.11.7 at /usr/bin/python3"; ``root``: the cache folder in use, ""
    for memory only; ``cached``: the bundle was there and whole; ``notes``: what was tried before ("~/.cache: ...").
    """

    machine: str
    python: str
    root: str = ""
    cached: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass
class Row:
    """One sample as numbers. ``lanes``: a row of model/news/row.py, in base64; ``numbers``: one for each part."""

    at: float
    lanes: str = ""
    numbers: list[PartNumbers] = field(default_factory=list)


@dataclass
class Message:
    """One frame from an agent. ``node`` is set where one stream carries several nodes (simulated fleets, pdsh)."""

    kind: MessageKind
    node: str = ""
    id: int = 0
    boot: Boot | None = None
    hello: Hello | None = None
    row: Row | None = None
    sample: Sample | None = None
    parts: list[JobPart] | None = None
    judged: Judged | None = None
    facts: list[Fact] | None = None
    stacks: RankStacks | None = None
    records: RankRecords | None = None  # beside stacks, where these were asked for
    expected: int | None = None  # how many parts this request will have
    packed: str = ""  # of history: a sample's JSON, by zlib, in base64
    data: dict[str, Any] = field(default_factory=dict)  # what other operations answer
    error: str = ""
    fix: str = ""


@dataclass
class Request:
    """One frame to an agent. ``op``: an Operation, or a file's name; ``node`` as in Message, "" for all.

    probe (args: active/supervisor/request.py): each event of it (model/probe.py) is a part, its fields the part's data;
    the end is done with {"cancelled": bool}. probe_tell (args: key, line): for the processes of the probe that runs.
    """

    kind: RequestKind
    id: int = 0
    op: str = ""
    node: str = ""
    args: dict[str, Any] = field(default_factory=dict)


_DEFAULTS: dict[type, dict[str, Any]] = {Message: vars(Message("boot")), Request: vars(Request("ping"))}
_REQUEST_TYPES = {name: type(value) for name, value in _DEFAULTS[Request].items()}


def encode(message: Message | Request, mark: bytes = MARK) -> bytes:
    """One frame. Fields that hold their default are left out."""
    return framed(_payload(message), mark)


def framed(payload: bytes, mark: bytes) -> bytes:
    return b"%s%d %s\n" % (mark, len(payload), payload)


def _payload(message: Message | Request) -> bytes:
    default = _DEFAULTS[type(message)]
    fields = {name: value for name, value in vars(message).items() if name == "kind" or value != default[name]}
    return (to_short_json if message.kind == "sample" else to_json)(fields).encode()


def payload_of(line: bytes) -> bytes | None:
    """The JSON bytes of one received line (without its newline), or None when the line does not end with a frame."""
    for mark in (MARK, TEXT_MARK):
        start = line.find(mark)
        while start >= 0:
            size = frame_size(line, start + len(mark))
            if size is not None and size[1] + size[0] == len(line):
                return line[size[1] :]
            start = line.find(mark, start + len(mark))
    return None


def frame_size(line: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """How many bytes the JSON of a frame has, whose mark ends at ``at``, and where it begins."""
    blank = line.find(b" ", at, at + _SIZE_DIGITS + 1)
    digits = line[at:blank]
    return (int(digits), blank + 1) if blank > 0 and digits.isdigit() else None


def decode_request(line: bytes) -> Request | None:
    """A request from one received line; None for noise and wrong types, unknown fields are ignored."""
    payload = payload_of(line)
    if payload is None:
        return None
    try:
        fields = json.loads(payload)
    except ValueError:
        return None
    values = (
        {name: value for name, value in fields.items() if name in _REQUEST_TYPES} if isinstance(fields, dict) else {}
    )
    if values.get("kind") not in get_args(RequestKind):
        return None
    if not all(isinstance(value, _REQUEST_TYPES[name]) for name, value in values.items()):
        return None
    return Request(**values)


def split(payload: bytes, key: str, limit: int) -> list[bytes]:
    """The lines that carry ``payload`` (ASCII JSON); ``key`` has no blanks."""
    room = limit - len(PIECE_MARK) - len(key) - _PIECE_HEADER_ROOM
    if room <= 0:
        raise ValueError(f"a limit of {limit} bytes leaves no room for data")
    parts = [payload[start : start + room] for start in range(0, len(payload), room)]
    return [
        b"%s%s %d %d %d %s\n" % (PIECE_MARK, key.encode(), index, len(parts), len(part), part)
        for index, part in enumerate(parts)
    ]


class Assembler:
    """Puts pieces together again; whole frames pass through. A piece that is damaged costs its frame only."""

    MOST_OPEN = 4096  # frames: more than that are the remains of senders that are gone
    MOST_OPEN_BYTES = 4 * MAX_FRAME_BYTES

    def __init__(self, most_open_bytes: int = MOST_OPEN_BYTES) -> None:
        self._most_open_bytes = most_open_bytes
        self._open: dict[bytes, _Frame] = {}
        self._bytes = 0

    def take(self, line: bytes) -> bytes | None:
        """A frame's JSON when ``line`` completes one; None otherwise (also for noise, see ``is_piece``)."""
        start = line.find(PIECE_MARK)
        if start < 0 or line.startswith((MARK, TEXT_MARK)):  # a frame may carry our mark inside
            return payload_of(line)
        words = line[start + len(PIECE_MARK) :].split(b" ", 4)
        if len(words) != 5 or not all(word.isdigit() and len(word) < 10 for word in words[1:4]):
            return None
        key, part, (index, count, size) = words[0], words[4], [int(word) for word in words[1:4]]
        if size != len(part) or index >= count:
            return None
        frame = self._open.get(key)
        if frame is None or frame.count != count:
            self._drop(key)
            frame = self._open[key] = _Frame(count)
        more = len(part) - len(frame.parts.get(index, b""))
        frame.parts[index] = part
        frame.size += more
        self._bytes += more
        if len(frame.parts) == count:
            self._drop(key)
            return b"".join(frame.parts[at] for at in range(count))
        self._limit(key)
        return None

    def _limit(self, newest: bytes) -> None:
        if self._open[newest].size > MAX_FRAME_BYTES:
            self._drop(newest)
        while len(self._open) > self.MOST_OPEN or self._bytes > self._most_open_bytes:
            self._drop(next(iter(self._open)))

    def _drop(self, key: bytes) -> None:
        frame = self._open.pop(key, None)
        if frame is not None:
            self._bytes -= frame.size


@dataclass
class _Frame:
    """A frame that is not complete: its parts by index."""

    count: int
    parts: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


def is_piece(line: bytes) -> bool:
    return PIECE_MARK in line


@dataclass
class Wire:
    """How one agent's frames look on the way out. ``text``: no NUL bytes; ``frame_bytes``: the longest line the carrier
    keeps whole, 0 for any length: a longer frame goes in pieces.
    """

    node: str
    text: bool = False
    frame_bytes: int = 0
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def encode(self, message: Message) -> bytes:
        return self._lines(_payload(message))

    def _lines(self, payload: bytes) -> bytes:
        frame = framed(payload, TEXT_MARK if self.text else MARK)
        if not self.frame_bytes or len(frame) <= self.frame_bytes:
            return frame
        return b"".join(split(payload, f"{self.node}:{os.getpid()}:{next(self._serial)}", self.frame_bytes))
