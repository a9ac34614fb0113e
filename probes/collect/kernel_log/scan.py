"""Every kind of line that this boot's kernel log has: read on request, from beginning to end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from mltop.probes.collect.kernel_log.journal import MOST_LINES, command
from mltop.probes.collect.kernel_log.patterns import Patterns
from mltop.probes.collect.kernel_log.places import (
    Places,
    boot_time,
    default_places,
    is_device,
    is_there,
    open_log,
    unreadable,
)
from mltop.probes.collect.kernel_log.readers import GrowingFile, KmsgDevice, Reader
from mltop.probes.collect.kernel_log.records import Record, parse
from mltop.probes.model import Gap

READ_S = 10.0  # of a whole ring of 16 MB
TAIL_BYTES = 8 * 1024 * 1024  # of kern.log
PAUSE_EVERY = 2000  # lines: this runs beside the agent's loop, which wants its turn
PAUSE_S = 0.002


def kernel_lines() -> dict[str, Any]:
    """``{"lines": [...], "gap": {what, why, fix, kind} or None}`` of this node; ``lines`` as in ``Patterns.lines``.

    Takes a second or more where the log is long: for a request's thread. Never raises for what cannot be read.
    """
    lines, gap = scan(default_places(), time.time())
    return {"lines": lines, "gap": None if gap is None else vars(gap)}


def scan(places: Places, now: float) -> tuple[list[dict[str, Any]], Gap | None]:
    """The first source that can be read, as in ``KernelLogSource``; ``now``: unix s."""
    tried: list[str] = []
    patterns = Patterns()
    boot_at = boot_time(places, now)
    raw = _raw_lines(places, tried)
    if raw is None:
        return [], unreadable(tried, is_there(places.kmsg))
    try:
        patterns.add_all(_of_this_boot(raw, boot_at, now))
    except TimeoutError as error:
        return patterns.lines(), Gap("kernel_log.lines", str(error))
    if patterns.left_out:
        why = f"too many kinds of lines: {patterns.left_out} lines are not among those listed"
        return patterns.lines(), Gap("kernel_log.lines", why)
    return patterns.lines(), None


def _of_this_boot(raw: Iterator[bytes], boot_at: float, now: float) -> Iterator[Record]:
    for count, line in enumerate(raw, 1):
        record = parse(line, boot_at, now)
        if record.at is None or record.at >= boot_at - 5.0:
            yield record
        if count % PAUSE_EVERY == 0:
            time.sleep(PAUSE_S)


def _raw_lines(places: Places, tried: list[str]) -> Iterator[bytes] | None:
    fd, why = open_log(places.kmsg)
    if fd is not None:
        return _all_of(KmsgDevice(fd) if is_device(fd) else GrowingFile(fd))
    tried.append(f"{places.kmsg}: {why}")
    if places.journalctl:
        lines = _journal_lines(places.journalctl, tried)
        if lines:
            return iter(lines)
    fd, why = open_log(places.kern_log)
    if fd is not None:
        return _all_of(GrowingFile(fd, TAIL_BYTES))
    tried.append(f"{places.kern_log}: {why}")
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
