"""The last lines of the files that one rank writes to, as they may be shown: the operation "log_tail"."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mltop.probes.collect.logs.parser import quoted
from mltop.probes.collect.logs.pipes import Destination, FileId
from mltop.probes.collect.logs.prefixes import speaker_of, without_colours
from mltop.probes.collect.redaction.values import without_tokens
from mltop.probes.model import RankSample
from mltop.probes.model.acts import LogTail
from mltop.probes.model.text import clean
from mltop.probes.system.files import BadFile, open_regular
from mltop.probes.system.paths import proc

MOST_BYTES = 256 * 1024  # of one file
MOST_LINES = 500


def last_lines(pid: int, most: int, behind_pipes: Mapping[FileId, Destination] | None = None) -> list[LogTail]:
    """Of standard output and error, where these are regular files; a file that is both comes once. ``behind_pipes``:
    what ranks of this node write to through others; of those files without lines that say that another rank wrote them.
    """
    behind = behind_pipes or {}
    wanted: list[tuple[str, FileId | None, RankSample | None]] = [
        *((f"{proc()}/{pid}/fd/{number}", None, None) for number in (1, 2)),
        *((each.path, file, each.writers[pid]) for file, each in behind.items() if pid in each.writers),
    ]
    tails: dict[FileId, LogTail] = {}
    why = ""
    for path, file, rank in wanted:
        try:
            with os.fdopen(open_regular(path), "rb") as stream:
                status = os.fstat(stream.fileno())
                found = (status.st_dev, status.st_ino)
                if found not in tails and file in (None, found):  # else another one by now
                    stream.seek(max(0, status.st_size - MOST_BYTES))
                    text = stream.read(MOST_BYTES).decode("utf-8", "replace").rstrip("\n")
                    lines = [line for line in text.split("\n") if rank is None or _may_be_of(line, rank)]
                    lines = lines[-min(most, MOST_LINES) :]
                    # Of a progress bar that was written over, its last state.
                    last_states = [line.rstrip("\r").rpartition("\r")[2] for line in lines if line or len(lines) > 1]
                    shown = [quoted(without_colours(line)) for line in last_states]
                    name = without_tokens(clean(os.readlink(path), 1024))
                    tails[found] = LogTail(name, status.st_size, status.st_mtime, shown)
        except BadFile:
            why = why or "it writes to a pipe or a terminal, not to a file"
        except OSError as error:
            why = why or (error.strerror or "")
    return list(tails.values()) or [LogTail("", why=why or "it has no output")]


def _may_be_of(line: str, rank: RankSample) -> bool:
    speaker, _ = speaker_of(without_colours(line))
    number = speaker.task if speaker.rank is None and rank.launcher == "srun" else speaker.rank
    return number is None or number == rank.rank
