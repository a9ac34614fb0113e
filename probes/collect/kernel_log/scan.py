"""Every kind of line that this boot's kernel log has: read on request, from beginning to end.

The same text but for numbers, addresses and names of instances is one kind, a pattern.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mltop.probes.collect.kernel_log.readers import (
    MOST_LINES,
    GrowingFile,
    LogFiles,
    Reader,
    command,
    open_log,
    open_reader,
)
from mltop.probes.collect.kernel_log.records import Record, parse, shown
from mltop.probes.model import Gap

READ_S = 10.0  # of a whole ring of 16 MB
TAIL_BYTES = 8 * 1024 * 1024  # of kern.log
PAUSE_EVERY = 2000  # lines: this runs beside the agent's loop, which wants its turn
PAUSE_S = 0.002
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
    xid = _KEPT.search(text) if "Xid (" in text else None
    if xid is None:
        return _varying_out(text)[:MAX_PATTERN_CHARS]
    whole = _varying_out(text[: xid.start("code")]) + xid["code"] + _varying_out(text[xid.end("code") :])
    return whole[:MAX_PATTERN_CHARS]


def _varying_out(text: str) -> str:
    return _VARYING.sub(lambda varying: "#" if varying.lastgroup == "N" else varying.lastgroup or "#", text)


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
        if kind is not None:
            kind.count += 1
            kind.last_at = record.at
            kind.level = min(kind.level, level)
            return
        example = shown(record.text, MAX_EXAMPLE_CHARS)
        chars = len(pattern) + len(example)
        if len(self._kinds) >= MAX_PATTERNS or self._chars + chars > MAX_CHARS:
            self.left_out += 1
            return
        self._chars += chars
        self._kinds[pattern] = _Kind(1, record.at, record.at, level, example)

    def lines(self) -> list[dict[str, Any]]:
        """Each: ``pattern``, ``count``, ``first_at``, ``last_at`` (unix s or None), ``level`` (0 to 7), ``example``."""
        return [{"pattern": pattern, **vars(kind)} for pattern, kind in self._kinds.items()]


def kernel_lines() -> dict[str, Any]:
    """``{"lines": [...], "gap": {what, why, fix, kind} or None}`` of this node; ``lines`` as in ``Patterns.lines``.

    Takes a second or more where the log is long: for a request's thread. Never raises for what cannot be read.
    """
    lines, gap = scan(LogFiles.usual(), time.time())
    return {"lines": lines, "gap": None if gap is None else vars(gap)}


def scan(files: LogFiles, now: float) -> tuple[list[dict[str, Any]], Gap | None]:
    """The first source that can be read, as in ``KernelLogSource``; ``now``: unix s."""
    tried: list[str] = []
    patterns = Patterns()
    boot_at = files.boot_time(now)
    raw = _raw_lines(files, tried)
    if raw is None:
        return [], files.unreadable(tried)
    try:
        patterns.add_all(_of_this_boot(raw, boot_at, now))
    except TimeoutError as error:
        return patterns.lines(), Gap.about("kernel_log", "lines", why=str(error))
    if patterns.left_out:
        why = f"too many kinds of lines: {patterns.left_out} lines are not among those listed"
        return patterns.lines(), Gap.about("kernel_log", "lines", why=why)
    return patterns.lines(), None


def _of_this_boot(raw: Iterator[bytes], boot_at: float, now: float) -> Iterator[Record]:
    for count, line in enumerate(raw, 1):
        record = parse(line, boot_at, now)
        if record.at is None or record.at >= boot_at - 5.0:
            yield record
        if count % PAUSE_EVERY == 0:
            time.sleep(PAUSE_S)


def _raw_lines(files: LogFiles, tried: list[str]) -> Iterator[bytes] | None:
    reader, why = open_reader(files, "kmsg")
    if reader is not None:
        return _all_of(reader)
    tried.append(why)
    if files.journalctl:
        lines = _journal_lines(files.journalctl, tried)
        if lines:
            return iter(lines)
    fd, why = open_log(files.kern_log)
    if fd is not None:
        return _all_of(GrowingFile(fd, TAIL_BYTES))
    tried.append(f"{files.kern_log}: {why}")
    return None


def _all_of(reader: Reader) -> Iterator[bytes]:
    """Raises TimeoutError when the log grows as fast as it is read."""
    until = time.monotonic() + READ_S
    try:
        while not reader.is_current:
            for batch in reader.batches(until):
                yield from batch
            if time.monotonic() > until and not reader.is_current:
                raise TimeoutError(f"the log is longer than what {READ_S:g} s can read")
        for batch in reader.batches(until):  # a file's last line without a line break
            yield from batch
    finally:
        reader.close()


def _journal_lines(program: str, tried: list[str]) -> list[bytes]:
    try:
        done = subprocess.run(
            command(program, f"--lines={MOST_LINES}"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READ_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        tried.append(f"{program}: {error}")
        return []
    lines = [line for line in done.stdout.split(b"\n") if line[:1] == b"{"]
    if not lines:
        tried.append("journal: no permission, or no journal")
    return lines
