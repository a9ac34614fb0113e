"""The child process: asks each filesystem that it is told to how full it is. One thread; sleeps in between.

Request, one JSON line on stdin: ``[path, ...]``. Answers, JSON lines on stdout: ``["in", path, since]`` before each
call (CLOCK_MONOTONIC), then ``["full", path, bytes, bytes available, inodes, inodes free]`` or
``["error", path, errno]``; after the last ``["done"]``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Ends at end-of-file on stdin, and when nobody reads its answers."""
    try:
        for line in sys.stdin.buffer:
            for path in json.loads(line):
                tell(["in", path, time.monotonic()])
                tell(look(path))
            tell(["done"])
    except BrokenPipeError:
        return


def look(path: str) -> list[Any]:
    """One answer. Blocks for as long as the filesystem does."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return ["error", path, error.errno]
    size = found.f_frsize
    return ["full", path, found.f_blocks * size, found.f_bavail * size, found.f_files, found.f_favail]


def tell(answer: list[Any]) -> None:
    os.write(1, json.dumps(answer, separators=(",", ":")).encode() + b"\n")
