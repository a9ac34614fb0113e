"""Which lock a thread asks for and which it holds, by the source of its user's lines: ``with self.lock:``.

Python tells of a lock neither its name nor its owner: where one thread stands in front of a block and another inside of
one of the same name, the reader knows both.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from mltop.probes.collect.redaction.values import without_tokens
from mltop.probes.collect.stacks.frames import python_frames
from mltop.probes.collect.stacks.ownership import is_users, short_file
from mltop.probes.collect.stacks.waiting import code_of

ReadLine = Callable[[str, int], Optional[str]]  # (file as py-spy names it, line) → its text

_NAME = r"([A-Za-z_][\w.]*)(?:\[[^\]]*\])?"
_WITH = re.compile(rf"\s*(?:async )?with {_NAME}\s*(?:as \w+\s*)?[:,]")
_ACQUIRE = re.compile(rf"{_NAME}\.acquire\(")
_RELEASE = re.compile(rf"{_NAME}\.release\(")
_OF_FILES = re.compile(r"\b(flock|lockf)\(")
_DEFINES = re.compile(r"\s*(?:async )?def |\s*class ")
_MOST_LINES = 400  # of a function, above the line that a frame stands in
_MOST_FRAMES = 12  # of the user's
# What stands between the user's line and the wait, where a lock is made of others.
_LOCKS_OWN = ("threading.py", "multiprocessing/synchronize.py", "multiprocess/synchronize.py")


def asked_lock(raw: list[dict[str, Any]], read_line: ReadLine) -> str:
    """The lock that the leaf's line of these frames (leaf first, as py-spy has them) asks for: "self.lock", or "".
    Of a lock on a file it is the call: "flock", "lockf".
    """
    for frame in python_frames(raw):
        if is_users(frame):
            code = code_of(read_line(frame["filename"], frame["line"]) or "")
            found = _WITH.match(code) or _ACQUIRE.search(code) or _OF_FILES.search(code)
            return without_tokens(found.group(1)) if found else ""
        if short_file(frame) not in _LOCKS_OWN:
            return ""
    return ""


def held_locks(raw: list[dict[str, Any]], read_line: ReadLine) -> list[str]:
    """The locks in whose blocks the user's frames stand, the innermost first. What is asked for is not held yet."""
    held: list[str] = []
    asked = asked_lock(raw, read_line)
    users = [frame for frame in python_frames(raw) if is_users(frame)]
    for frame in users[:_MOST_FRAMES]:
        held += _held_at(frame["filename"], frame["line"], read_line)
    return [without_tokens(name) for name in dict.fromkeys(held) if name != asked]


def _held_at(file: str, line: int, read_line: ReadLine) -> list[str]:
    """By the blocks that the line is indented into, and by what was acquired above it in its function."""
    text = read_line(file, line)
    if text is None:
        return []
    held: list[str] = []
    released: set[str] = set()
    depth = _indent(text)
    for number in range(line - 1, max(0, line - _MOST_LINES), -1):
        text = read_line(file, number)
        if text is None or not text.strip() or text.lstrip().startswith("#"):
            continue
        code, here = code_of(text), _indent(text)
        if here < depth:
            depth = here
            block = _WITH.match(code)
            held += [block.group(1)] if block else []
            if _DEFINES.match(code):
                break
        released.update(found.group(1) for found in _RELEASE.finditer(code))
        acquired = _ACQUIRE.search(code) if here <= depth else None
        if acquired and acquired.group(1) not in released:
            held.append(acquired.group(1))
    return held


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
