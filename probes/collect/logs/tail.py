"""The last lines of the files that one process writes to, as they may be shown: the operation "log_tail"."""

from __future__ import annotations

import os
import stat

from mltop.probes.collect.logs.parser import quoted
from mltop.probes.collect.logs.prefixes import without_colours
from mltop.probes.model.acts import LogTail
from mltop.probes.model.text import clean
from mltop.probes.system.paths import proc

MOST_BYTES = 256 * 1024  # of one file
MOST_LINES = 500


def last_lines(pid: int, most: int) -> list[LogTail]:
    """Of standard output and error, where these are regular files; a file that is both comes once."""
    tails: dict[tuple[int, int], LogTail] = {}
    why = ""
    for number in (1, 2):
        try:
            descriptor = os.open(
                f"{proc()}/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        except OSError as error:  # also of a socket, which cannot be opened
            why = why or (error.strerror or "")
            continue
        try:
            name, told = os.readlink(f"{proc()}/{pid}/fd/{number}"), os.fstat(descriptor)
            if not stat.S_ISREG(told.st_mode):
                why = why or "it writes to a pipe or a terminal, not to a file"
            elif (told.st_dev, told.st_ino) not in tails:
                lines = _last(
                    os.pread(descriptor, MOST_BYTES, max(0, told.st_size - MOST_BYTES)), min(most, MOST_LINES)
                )
                tails[told.st_dev, told.st_ino] = LogTail(clean(name, 1024), told.st_size, told.st_mtime, lines)
        except OSError as error:
            why = why or (error.strerror or "")
        finally:
            os.close(descriptor)
    return list(tails.values()) or [LogTail("", why=why or "it has no output")]


def _last(content: bytes, most: int) -> list[str]:
    """Of a progress bar that was written over, its last state."""
    lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")[-most:]
    return [quoted(without_colours(line.rstrip("\r").rpartition("\r")[2])) for line in lines if line or len(lines) > 1]
