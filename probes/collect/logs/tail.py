"""The last lines of the files that one rank writes to, as they may be shown: the operation "log_tail"."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from mltop.probes.collect.logs.parser import quoted
from mltop.probes.collect.logs.pipes import Destination, FileId
from mltop.probes.collect.logs.prefixes import speaker_of, without_colours
from mltop.probes.model import RankSample
from mltop.probes.model.acts import LogTail
from mltop.probes.model.text import clean
from mltop.probes.system.paths import proc

MOST_BYTES = 256 * 1024  # of one file
MOST_LINES = 500


def last_lines(pid: int, most: int, behind_pipes: Mapping[FileId, Destination] | None = None) -> list[LogTail]:
    """Of standard output and error, where these are regular files; a file that is both comes once. ``behind_pipes``:
    what ranks of this node write to through others; of those files without lines that say that another rank wrote them.
    """
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
                lines = _lines(descriptor, told.st_size)[-min(most, MOST_LINES) :]
                tails[told.st_dev, told.st_ino] = _tail(name, told, lines)
        except OSError as error:
            why = why or (error.strerror or "")
        finally:
            os.close(descriptor)
    for file, destination in (behind_pipes or {}).items():
        rank = destination.writers.get(pid)
        if rank is not None and file not in tails:
            tails.update(_behind(destination, file, rank, min(most, MOST_LINES)))
    return list(tails.values()) or [LogTail("", why=why or "it has no output")]


def _behind(destination: Destination, file: FileId, rank: RankSample, most: int) -> dict[FileId, LogTail]:
    try:
        descriptor = os.open(destination.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        name, told = os.readlink(destination.path), os.fstat(descriptor)
        if (told.st_dev, told.st_ino) != file or not stat.S_ISREG(told.st_mode):  # another one by now
            return {}
        lines = [line for line in _lines(descriptor, told.st_size) if _may_be_of(line, rank)]
    except OSError:
        return {}
    finally:
        os.close(descriptor)
    return {file: _tail(name, told, lines[-most:])}


def _may_be_of(line: str, rank: RankSample) -> bool:
    speaker, _ = speaker_of(without_colours(line))
    number = speaker.task if speaker.rank is None and rank.launcher == "srun" else speaker.rank
    return number is None or number == rank.rank


def _tail(name: str, told: os.stat_result, lines: list[str]) -> LogTail:
    """Of a progress bar that was written over, its last state."""
    shown = [quoted(without_colours(line.rstrip("\r").rpartition("\r")[2])) for line in lines if line or len(lines) > 1]
    return LogTail(clean(name, 1024), told.st_size, told.st_mtime, shown)


def _lines(descriptor: int, size: int) -> list[str]:
    content = os.pread(descriptor, MOST_BYTES, max(0, size - MOST_BYTES))
    return content.decode("utf-8", "replace").rstrip("\n").split("\n")
