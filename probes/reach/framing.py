"""Bytes of one channel cut into frames. What is not a frame costs bounded memory and is kept for a diagnosis."""

from __future__ import annotations

from typing import NamedTuple

from mltop.probes.agent.protocol import MARK, MAX_FRAME_BYTES, PIECE_MARK, TEXT_MARK, Assembler, frame_size, is_piece

NOISE_BYTES = 4096  # how much of it is kept
EVERY_MARK = b"MLT1"  # is in all of them
LINE_COST_BYTES = 100  # what looking at one line costs, as if it had so many bytes more
LINE_BYTES = 65_536  # a longer line is noise unless a frame began in it
LABEL_BYTES = 512  # that a carrier may write before a line
MOST_LABELS = 1024
_LABEL_END = b": "


class Frame(NamedTuple):
    """``label``: what the carrier says of who wrote the line, "" from one that carries a single node."""

    label: str
    payload: bytes


class FrameReader:
    """Cuts what it is fed into frames. ``noise_bytes`` counts what was not a frame, by what it costs.

    ``labelled``: the carrier writes "LABEL: " before each line (pdsh, srun). Pieces of a frame are put together per
    label: the key that stands in them is their sender's choice.
    """

    def __init__(self, labelled: bool = False) -> None:
        self._labelled = labelled
        self._line_bytes = LINE_BYTES + LABEL_BYTES if labelled else LINE_BYTES
        self._buffer = bytearray()
        self._most_bytes = self._line_bytes  # how long the unfinished line may grow
        self._assemblers: dict[bytes, Assembler] = {b"": Assembler()}
        self._noise = bytearray()
        self.noise_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Takes in what arrived. Returns all frames that are complete now."""
        if not self._buffer and data.startswith(MARK) and not self._labelled:
            size = frame_size(data, len(MARK))
            if size is not None and sum(size) + 1 == len(data) and data.endswith(b"\n"):  # nearly always
                return [Frame("", data[size[1] : -1])]
        self._buffer += data
        frames: list[Frame] = []
        if b"\n" in data:
            frames = [] if self._labelled else self._frames_at_start()
            whole, newline, _ = self._buffer.rpartition(b"\n") if self._buffer else (b"", b"", b"")
            if newline:
                del self._buffer[: len(whole) + 1]
                frames += self._frames(bytes(whole))
            self._most_bytes = self._line_bytes
        self._bound()
        return frames

    def _frames_at_start(self) -> list[Frame]:
        """Takes the frames off that stand one behind the other, which is what a channel of many nodes brings: megabytes
        a second, each byte copied once.
        """
        frames, at = [], 0
        with memoryview(self._buffer) as view:
            while self._buffer.startswith(MARK, at):
                size = frame_size(self._buffer, at + len(MARK))
                end = sum(size) if size is not None else len(view)
                if size is None or end >= len(view) or view[end] != ord("\n"):
                    break
                frames.append(Frame("", bytes(view[size[1] : end])))
                at = end + 1
        del self._buffer[:at]
        return frames

    def _frames(self, whole: bytes) -> list[Frame]:
        if EVERY_MARK not in whole:
            self._keep(whole + b"\n")
            return []
        frames = []
        for line in whole.split(b"\n"):
            label, words = self._parted(line)
            payload = self._assembler(label).take(words)
            if payload is not None:
                frames.append(Frame(label.decode("utf-8", "replace"), payload))
            elif not is_piece(words):
                self._keep(line + b"\n")
                self.noise_bytes += LINE_COST_BYTES
        return frames

    def _parted(self, line: bytes) -> tuple[bytes, bytes]:
        """The carrier's label, and what the node wrote; of a line without a label nothing."""
        if not self._labelled:
            return b"", line
        label, end, words = line.partition(_LABEL_END)
        return (label.strip(), words) if end and len(label) <= LABEL_BYTES else (b"", b"")

    def _assembler(self, label: bytes) -> Assembler:
        if label not in self._assemblers:
            if len(self._assemblers) > MOST_LABELS:
                del self._assemblers[next(iter(self._assemblers))]
            self._assemblers[label] = Assembler(MAX_FRAME_BYTES)
        return self._assemblers[label]

    @property
    def noise(self) -> str:
        """The newest of what was not a frame, an unfinished line included."""
        unfinished = bytes(self._buffer[-NOISE_BYTES:]) if self._most_bytes == self._line_bytes else b""
        return (bytes(self._noise) + unfinished)[-NOISE_BYTES:].decode("utf-8", "replace")

    def _bound(self) -> None:
        """Drops an unfinished line that grew too long, up to where a frame may have begun in it."""
        if len(self._buffer) <= self._most_bytes:
            return
        start = self._frame_start()
        if start is None:
            start = len(self._buffer) - max(len(MARK), len(TEXT_MARK), len(PIECE_MARK)) - 10
            self._most_bytes = self._line_bytes
        self._keep(bytes(self._buffer[:start]))
        del self._buffer[:start]

    def _frame_start(self) -> int | None:
        """Where a frame begins that the line may still complete; sets how long the line may grow for it."""
        for mark in (MARK, TEXT_MARK):
            start = self._buffer.find(mark)
            while start >= 0:
                size = frame_size(self._buffer, start + len(mark))
                if size is not None and size[0] <= MAX_FRAME_BYTES and sum(size) >= len(self._buffer):
                    self._most_bytes = sum(size) - start
                    return start
                start = self._buffer.find(mark, start + 1)
        return None

    def _keep(self, data: bytes) -> None:
        self.noise_bytes += len(data)
        self._noise += data[-NOISE_BYTES:]
        del self._noise[:-NOISE_BYTES]
