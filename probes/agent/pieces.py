"""Frames in pieces, for carriers that cut long lines (srun at 1,024 bytes, pdsh) and mix those of several nodes.

One piece is one line: ``@MLT1+ <key> <index> <count> <bytes> <part of the frame's JSON>\\n``, at most ``limit`` bytes
long. ``key`` is unique among everything that shares the stream. Runs on every node: Python 3.9, standard library.
"""

from __future__ import annotations

from mltop.probes.agent.protocol import MAX_FRAME_BYTES, payload_of

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

    def __init__(self) -> None:
        self._open: dict[bytes, dict[int, bytes]] = {}

    def take(self, line: bytes) -> bytes | None:
        """A frame's JSON when ``line`` completes one; None otherwise (also for noise, see ``is_piece``)."""
        start = line.find(PIECE_MARK)
        if start < 0:
            return payload_of(line)
        words = line[start + len(PIECE_MARK) :].split(b" ", 4)
        if len(words) != 5 or not all(word.isdigit() for word in words[1:4]) or len(words[4]) != int(words[3]):
            return None
        key, index, count = words[0], int(words[1]), int(words[2])
        parts = self._open.setdefault(key, {})
        parts[index] = words[4]
        if len(parts) < count:
            self._limit(key)
            return None
        del self._open[key]
        return b"".join(parts[at] for at in sorted(parts))

    def _limit(self, newest: bytes) -> None:
        if sum(len(part) for part in self._open[newest].values()) > MAX_FRAME_BYTES:
            del self._open[newest]
        while len(self._open) > self.MOST_OPEN:
            del self._open[next(iter(self._open))]


def is_piece(line: bytes) -> bool:
    return PIECE_MARK in line
