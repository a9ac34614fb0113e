"""From raw lines of one log to events: cheap for the many that say nothing, and across lines that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltop.probes.collect.kernel_log.decode import NEEDLES, decode
from mltop.probes.collect.kernel_log.records import Record, parse
from mltop.probes.model import KernelEvent

# The journal's way to write texts with line breaks; the words in them cannot be looked for.
_LISTS_OF_BYTES = (b'MESSAGE":[', b'MESSAGE" : [')
_ANY = (*NEEDLES, *_LISTS_OF_BYTES)
_BEGUN = "NVRM: The NVIDIA GPU "  # "… 0000:18:00.0", "(PCI ID: …) installed in this system has", "fallen off the bus …"
_BEGUN_LINES = 3


class Decoder:
    """Feed it the lines of one log in order. ``source``: as in KernelEvent. ``boot_at``: unix s, may be set anew."""

    def __init__(self, source: str, boot_at: float) -> None:
        self._source = source
        self.boot_at = boot_at
        self._before = b""  # the line before, of the last batch
        self._begun: Record | None = None
        self._begun_lines = 0

    def feed(self, batch: Sequence[bytes], now: float) -> Iterator[KernelEvent]:
        """``now``: unix s, for lines that do not say when they were written."""
        together = b"\n".join(batch)
        needles = [needle for needle in _ANY if needle in together]
        before, self._before = self._before, batch[-1] if batch else self._before
        if not needles and self._begun is None:
            return
        for line in batch:
            if self._begun is not None or any(needle in line for needle in needles):
                event = self._event(self._dated(line, before, now))
                if event is not None:
                    yield event
            before = line

    def _dated(self, line: bytes, before: bytes, now: float) -> Record:
        """`dmesg` writes the time of a record of several lines before the first one only."""
        record = parse(line, self.boot_at, now)
        if record.at is not None:
            return record
        at = parse(before, self.boot_at, now).at if before else None
        return record._replace(at=now if at is None else at)

    def _event(self, record: Record) -> KernelEvent | None:
        at = record.at or 0.0
        begun = self._begun
        if begun is not None:
            begun = begun._replace(text=f"{begun.text}\n{record.text.strip()}")
            self._begun_lines += 1
            goes_on = "NVRM:" in record.text and self._begun_lines < _BEGUN_LINES
            event = decode(begun.text, begun.at or at, self._source) if "fallen off" in record.text else None
            self._begun = begun if goes_on and event is None else None
            if event is not None:
                return event
        event = decode(record.text, at, self._source)
        if event is None and _BEGUN in record.text:
            self._begun, self._begun_lines = record, 0
        return event
