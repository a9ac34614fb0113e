"""The child process: one JSON line per request on stdin, one JSON line per answer on stdout, one thread.

Request: ``{"at_s": seconds of any one clock, "skip": [NVML indexes], "without": ["events", "activity"],
"again": bool, "resumes": bool}``; "resumes": whoever asks has had values before, of another child perhaps.
Answer: ``{"gpus": [...], "xids": [{"index": NVML index or null, "code"}]}`` with, for each GPU that is not skipped, one
of:
    ``{"index", "uuid", "read": {tier: {"values": {field: value}, "problems": {field: problem}}}}``
    ``{"index", "uuid", "lost": [call, code], "gone": bool}``
where a problem is a ``Failure`` or a ``Problem`` of codes.py, and a tier that was not read again or has not changed is
not in ``read`` (unless asked "again"); or, without the library, ``{"down": ...}`` with one of:
    ``{"kind": "nvml", "call", "code"}``, ``{"kind": "pynvml" | "library" | "old_driver", "text"}``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import Breadcrumb, NvmlError, OldDriverError, load
from mltop.probes.collect.timing import Backoff
from mltop.probes.system.paths import trim_memory

if TYPE_CHECKING:
    from mltop.probes.collect.nvml.reader import Reader

_NAME = "libnvidia-ml.so.1"


def loaded_library() -> tuple[str, object]:
    """Where this process has the library from, "" for none, and which file that was."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith(_NAME.removesuffix("1")):
                path = os.path.join("/", os.path.dirname(path), _NAME)  # the loader's name leads to the file
                return path, identity(path)
    return "", None


def identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


# A GPU that was reset may only be found again when the library is initialised anew. That takes seconds and
# may hang, so it is tried rarely.
REINIT_FIRST_S = 60.0
REINIT_LONGEST_S = 600.0


def main() -> None:
    """Argument: the file descriptor of the breadcrumb. Ends at end-of-file on stdin."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a driver library prints must not end up between our answers
    poller = Poller(Breadcrumb(int(sys.argv[1])))
    for line in sys.stdin.buffer:
        answer = poller.poll(json.loads(line))
        answers.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        if poller.is_outdated:
            # A library that was loaded stays, even when its file is another one by now: after an upgrade of the driver
            # only a fresh image of this process finds the new one.
            from mltop.probes.system.spawn import python_command

            os.dup2(answers.fileno(), 1)
            command = python_command(__name__, sys.argv[1])
            os.execv(command[0], command)


class Poller:
    """The library as far as it is initialised, and its devices."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self._crumb = crumb
        self._reader: Reader | None = None
        self._library: tuple[str, object] = "", None
        self._has_read = False
        self.is_outdated = False  # another version of the library lies where ours was loaded from, and ours is refused
        self._reinit: Backoff | None = None  # while GPUs are lost

    def poll(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers one request."""
        now_s = time.monotonic()
        try:
            if self._reader is not None and self._reinit is not None and now_s >= self._reinit.next_s:
                self._reinit.failed(now_s)
                self._shut_down()
            if self._reader is not None:
                with contextlib.suppress(NvmlError):
                    return self._read(request)
                # It worked and fails now: it may only have to be initialised anew; else that says what is wrong.
                self._shut_down()
            return self._read(request)
        except ImportError as error:
            return {"down": {"kind": "pynvml", "text": str(error)}}
        except OSError as error:
            return {"down": {"kind": "library", "text": str(error)}}
        except OldDriverError as old:
            return {"down": {"kind": "old_driver", "text": str(old)}}
        except NvmlError as failure:
            self._shut_down()
            if failure.code == codes.LIB_RM_VERSION_MISMATCH:  # as after an upgrade of the driver
                path, loaded = self._library
                self.is_outdated = identity(path) not in (None, loaded)
            return {"down": {"kind": "nvml", "call": failure.call, "code": failure.code}}
        finally:
            self._crumb.clear()

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises what ``start_reader`` raises, and NvmlError."""
        starts_anew = self._reader is None and (self._has_read or request.get("resumes", False))
        if self._reader is None:
            try:
                self._reader = start_reader(self._crumb)
            finally:
                if not self._library[0]:
                    self._library = loaded_library()
        gpus = self._reader.read(
            request["at_s"],
            frozenset(request["skip"]),
            request["again"],
            "activity" not in request["without"],
            # The others' rates must not go blank for two samples because one GPU was lost.
            twice=starts_anew,
        )
        xids = [] if "events" in request["without"] else self._reader.read_events()
        if not self._reader.devices.any_lost():
            self._reinit = None
        elif self._reinit is None:
            self._reinit = Backoff(REINIT_FIRST_S, REINIT_LONGEST_S)
            self._reinit.failed(time.monotonic())
        self._has_read = True
        return {"gpus": gpus, "xids": xids}

    def _shut_down(self) -> None:
        if self._reader is not None:
            self._reader.shut_down()
            self._reader = None


def start_reader(crumb: Breadcrumb) -> Reader:
    """Load and initialise NVML; raises what ``load`` raises, and OldDriverError."""
    calls = load(crumb)
    # Imports pynvml, whose absence must come out of ``load`` as an answer, so it cannot stand at the top.
    from mltop.probes.collect.nvml.reader import Reader

    trim_memory()
    reader = Reader(calls)
    if reader.devices.too_old:
        reader.shut_down()
        raise OldDriverError(reader.devices.too_old)
    return reader
