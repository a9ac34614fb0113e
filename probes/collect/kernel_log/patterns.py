"""Kinds of kernel lines: the same text but for numbers, addresses and names of instances is one pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mltop.probes.collect.kernel_log.records import Record
from mltop.probes.collect.kernel_log.words import shown

MAX_PATTERNS = 4000
MAX_PATTERN_CHARS = 200
MAX_EXAMPLE_CHARS = 240
MAX_CHARS = 600_000  # of all patterns and examples together
DEFAULT_LEVEL = 6  # a line that does not say: info

# Lines of register and stack dumps: they belong to the line before them, which says what happened.
_OF_A_DUMP = re.compile(
    r"\s*(?:\? )?[\w.]+(?:\[\w+\])?\+0x[0-9a-f]+/0x[0-9a-f]+"
    r"|\s*(?:RIP|RSP|R[A-D0-9][XPI0-9]:|CR2|FS:|CS:|Code|Call Trace|PKRU|EIP)\b"
    r"|\s*</?(?:TASK|IRQ|NMI)>|\s*x\d+ ?: [0-9a-f]{16}"
)
_KEPT = re.compile(r"(?P<head>\bS?Xid \([^)]*\)[^:]*: )(?P<code>\d+)")  # which Xid it is is the whole point
_VARYING = re.compile(
    r"(?P<UUID>\b[0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})"
    r"|(?P<MAC>\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}\b)"
    r"|(?P<BDF>\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b)"
    r"|(?P<HEX>\b0x[0-9a-fA-F]+|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b|\b(?=[A-F]*[0-9])[0-9A-F]{8,}\b)"
    r"|(?P<BYTES>\b[0-9a-f]{2}(?: <?[0-9a-f]{2}>?){3,}(?!\w))"
    r"|(?P<NAME>\b(?:veth|cali|lxc|vnet|tap)[0-9a-f]+\b)"
    r"|(?P<N>\d+)"
)


def pattern_of(text: str) -> str:
    """``mlx5_core 0000:5c:00.0: renamed from eth3`` becomes ``mlx#_core BDF: renamed from eth#``."""
    text = shown(text, 2 * MAX_PATTERN_CHARS)
    kept = _KEPT.search(text) if "Xid (" in text else None
    if kept is None:
        return _varying_out(text)[:MAX_PATTERN_CHARS]
    whole = _varying_out(text[: kept.start("code")]) + kept["code"] + _varying_out(text[kept.end("code") :])
    return whole[:MAX_PATTERN_CHARS]


def _varying_out(text: str) -> str:
    return _VARYING.sub(lambda found: "#" if found.lastgroup == "N" else found.lastgroup or "#", text)


@dataclass
class _Kind:
    count: int
    first_at: float | None
    last_at: float | None
    level: int
    example: str


class Patterns:
    """Collects lines. ``left_out``: how many lines had no place among the patterns that are kept."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._chars = 0
        self.left_out = 0

    def add_all(self, records: Iterable[Record]) -> None:
        for record in records:
            if not record.by_user and record.text.strip() and _OF_A_DUMP.match(record.text) is None:
                self.add(record)

    def add(self, record: Record) -> None:
        pattern = pattern_of(record.text)
        level = DEFAULT_LEVEL if record.level is None else record.level
        kind = self._kinds.get(pattern)
        if kind is None:
            self._begin(pattern, record, level)
            return
        kind.count += 1
        kind.last_at = record.at
        kind.level = min(kind.level, level)

    def _begin(self, pattern: str, record: Record, level: int) -> None:
        example = shown(record.text, MAX_EXAMPLE_CHARS)
        chars = len(pattern) + len(example)
        if len(self._kinds) >= MAX_PATTERNS or self._chars + chars > MAX_CHARS:
            self.left_out += 1
            return
        self._chars += chars
        self._kinds[pattern] = _Kind(1, record.at, record.at, level, example)

    def lines(self) -> list[dict[str, Any]]:
        """``pattern``, ``count``, ``first_at`` and ``last_at`` (unix s or None), ``level`` (0 to 7), ``example``."""
        return [{"pattern": pattern, **vars(kind)} for pattern, kind in self._kinds.items()]
