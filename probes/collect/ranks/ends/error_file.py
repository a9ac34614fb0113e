"""What a rank wrote of its own exception into torchelastic's error file, before it ended.

The path is the rank's word and the file its user's, so it is opened only when it is a plain file of that user (a device
or a pipe is never opened), a bounded part of it is read, and its message leaves the node without secrets. A file system
that does not answer holds up a thread of its own and nothing else.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.records.files import Unusable, error_json, read_of
from mltop.probes.collect.redaction.shapes import clipped
from mltop.probes.collect.redaction.values import shown_text

_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_LONGEST_PATH = 4096
_MOST_BYTES = 256 * 1024  # a traceback of a deep stack has some 20 KB
_MOST_CHARACTERS = 300
_MOST_WAITING = 1024
_MOST_USERS = 8
_SLACK_S = 2.0  # its timestamp is in whole seconds


@dataclass(frozen=True)
class ErrorFile:
    """Where it would be, whose it must be, and since when (unix s)."""

    path: str
    uid: int
    since: float


@dataclass(frozen=True)
class RankError:
    """``text``: the last line of the message. ``at``: unix s."""

    text: str
    at: float | None


def error_file_of(root: str, pid: int, uid: int | None, launcher: int, since: float | None) -> ErrorFile | None:
    """Of a rank that lives. In a container it is found by way of its launcher, which may live longer."""
    if uid is None or root != "/proc":
        return None
    path = procfs.read_variables(root, pid, (_VARIABLE,)).get(_VARIABLE, "")
    try:
        is_ours = os.readlink(f"{root}/{pid}/ns/mnt") == os.readlink(f"{root}/self/ns/mnt")
    except OSError:
        return None
    if not path.startswith("/") or len(path) > _LONGEST_PATH or (not is_ours and launcher <= 1):
        return None
    return ErrorFile(path if is_ours else f"{root}/{launcher}/root{path}", uid, since or 0.0)


def read_error_file(file: ErrorFile) -> RankError | None:
    """None when there is none, or it is not what it should be."""
    try:
        data, changed_at = read_of(file.path, _MOST_BYTES, started_at=file.since, uid=file.uid, links=False)
    except Unusable:
        return None
    raised = error_json(data)
    if raised is None:
        return None
    text, written_at, _ = raised
    *_, last = text.splitlines() or [""]
    # The file's time is finer, where it is the same.
    fits = written_at is None or abs(changed_at - written_at) <= _SLACK_S
    # Cut far behind what is shown, as half of a token does not look like one.
    shown = clipped(shown_text(" ".join(last[: 4 * _MOST_CHARACTERS].split())), _MOST_CHARACTERS)
    return RankError(shown, changed_at if fits else float(written_at or 0.0))


class ErrorFiles:
    """Reads them beside the agent's work: ``ask``, and ``answers`` of later looks. Each user's has a thread of its own:
    whoever's file system does not answer holds up nobody else.
    """

    def __init__(self) -> None:
        self._asked: dict[int, queue.Queue[tuple[object, ErrorFile]]] = {}  # by uid
        self._answered: queue.Queue[tuple[object, RankError]] = queue.Queue()

    def ask(self, key: object, file: ErrorFile) -> None:
        asked = self._asked.get(file.uid)
        if asked is None and len(self._asked) < _MOST_USERS:
            asked = self._asked[file.uid] = queue.Queue(_MOST_WAITING)
            threading.Thread(target=self._work, args=(asked,), name="error files", daemon=True).start()
        if asked is not None and not asked.full():  # else the deaths are told without
            asked.put((key, file))

    def answers(self) -> list[tuple[object, RankError]]:
        found = []
        while not self._answered.empty():
            found.append(self._answered.get())
        return found

    def _work(self, asked: queue.Queue[tuple[object, ErrorFile]]) -> None:
        while True:
            key, file = asked.get()
            error = read_error_file(file)
            if error is not None:
                self._answered.put((key, error))
