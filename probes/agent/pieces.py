"""Frames in pieces, for carriers that cut long lines (srun at 1,024 bytes, pdsh) and mix those of several nodes.

One piece is one line: ``@MLT1+ <key> <index> <count> <bytes> <part of the frame's JSON>\\n``, at most ``limit`` bytes
long. ``key`` is unique among everything that shares the stream. Runs on every node: Python 3.9, standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.agent.protocol import MARK, MAX_FRAME_BYTES, TEXT_MARK, payload_of

PIECE_MARK = b"@MLT1+ "
_HEADER_ROOM = 40  # index, count, bytes and blanks


def split(payload: bytes, key: str, limit: int) -> list[bytes]:
    """The lines that carry ``payload`` (ASCII JSON); ``key`` has no blanks."""
    room = limit - len(PIECE_MARK) - len(key) - _HEADER_ROOM
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
