"""Python stacks that stand in files: faulthandler's, torch's debug server's dumps of all ranks, and the place where a
failed collective was launched; as digests, which are merged as those that py-spy takes. Python 3.9.

Source: CPython's Python/traceback.c and Lib/test/test_faulthandler.py, torch/distributed/debug/_debug_handlers.py,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.probes.collect.records.files import read_of
from mltop.probes.collect.records.values import rank_number
from mltop.probes.collect.stacks.digest import Origin, digest_threads
from mltop.probes.model import StackDigest

MOST_BYTES = 64 << 20
MOST_THREADS = 65_536  # of one file
MOST_FRAMES = 256
_SECTION = re.compile(r"=== Rank (\d{1,8}): .{0,300} ===\s*")
# From Python 3.14 on with the thread's name in brackets.
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]{1,16}(?: \[(.{0,64})\])? \(most recent call first\):\s*")
_ALONE = re.compile(r"Stack \(most recent call first\):\s*")
_FRAME = re.compile(r'\s+File "(.{1,4096}?)", line (\d{1,9}|\?\?\?) in (.{1,500})')
_FAILED = "Stack trace of the failed collective:"
_LAUNCHED = re.compile(r"\s*#\d{1,4} (.{1,500}?) from (.{1,4096}):(\d{1,9})\s*")
_MAIN_ID = 1  # of the thread that is taken for the main one


@dataclass
class _Thread:
    name: str
    frames: list[dict[str, Any]] = field(default_factory=list)


def read_stacks(path: Path | str, rank: int | None = None) -> list[StackDigest]:
    """The stacks in a file. ``rank``: whose it is, where no line of it says so. Raises Unusable (``files.py``)."""
    content, at = read_of(path, MOST_BYTES)
    return parse_stacks(content.decode("utf-8", "replace").splitlines(), rank=rank, at=at)


def parse_stacks(lines: Iterable[str], *, rank: int | None = None, at: float | None = None) -> list[StackDigest]:
    """The digests of each rank's threads, its main one first. Between the stacks there may be anything, as in a log."""
    digests: list[StackDigest] = []
    for of_rank, threads in _ranks(lines, rank):
        digests += _digests(threads, of_rank, at)
    return digests


def _ranks(lines: Iterable[str], rank: int | None) -> Iterator[tuple[int | None, list[_Thread]]]:
    threads: list[_Thread] = []
    is_open = False  # whether the next line may be a frame of the last thread
    for line in lines:
        if section := _SECTION.fullmatch(line):
            if threads:
                yield rank, threads
            rank, threads, is_open = rank_number(section[1]), [], False
        elif len(threads) < MOST_THREADS and ((head := _THREAD.search(line)) or _ALONE.fullmatch(line)):
            threads.append(_Thread(head[1] or "" if head else ""))
            is_open = True
        elif is_open and (frame := _FRAME.match(line)):
            if len(threads[-1].frames) < MOST_FRAMES:
                threads[-1].frames.append(_frame(frame[3].strip(), frame[1], frame[2]))
        else:
            is_open = False
    if threads:
        yield rank, threads


def _frame(function: str, path: str, line: str) -> dict[str, Any]:
    """As py-spy has it."""
    return {"name": function, "filename": path, "line": int(line) if line.isdigit() else 0, "module": None}


def _digests(threads: list[_Thread], rank: int | None, at: float | None) -> list[StackDigest]:
    """faulthandler begins with the newest thread: the last one is the main one."""
    main = threads[-1]
    told = [
        {
            "os_thread_id": _MAIN_ID if thread is main else _MAIN_ID + 1 + number,
            "thread_name": thread.name or None,
            "frames": thread.frames,
        }
        for number, thread in enumerate(threads)
    ]
    origin = Origin(StackDigest(rank, 0, taken_at=at), _MAIN_ID)
    return digest_threads(told, origin, ints=False, read_line=lambda *_: None)


def failed_collective(lines: Iterable[str], *, rank: int | None = None) -> StackDigest | None:
    """Where the collective that timed out was launched, as torch's log has it when its flight recorder is on: where
    the thread was then, not where it is. None where ``lines`` have no such stack.
    """
    frames: list[dict[str, Any]] = []
    began = False
    for line in lines:
        began = began or _FAILED in line
        match = _LAUNCHED.search(line) if began else None
        if match is not None and len(frames) < MOST_FRAMES:
            frames.append(_frame(match[1], match[2], match[3]))
        elif frames:
            break
    if not frames:
        return None
    (digest, *_) = _digests([_Thread("", frames)], rank, None)
    return digest
