"""The child process: asks each filesystem that it is told to how full it is. One thread; sleeps in between.

Request, on stdin: paths, each with a NUL behind it, then one more NUL. Answers, lines on stdout, in which a path is the
position that it had in the request: ``in POSITION SINCE`` before each call (CLOCK_MONOTONIC), then
``full POSITION BYTES AVAILABLE INODES FREE`` or ``error POSITION ERRNO``; after the last ``done``.

It imports what Python itself has loaded anyway, no more: it is there all the time, and json would be a third of it.
"""

from __future__ import annotations

import os
import time

_CHUNK_BYTES = 65536


def main() -> None:
    """Ends at end-of-file on stdin, and when nobody reads its answers."""
    received = b""
    try:
        while more := os.read(0, _CHUNK_BYTES):
            received += more
            while b"\0\0" in received:
                request, _, received = received.partition(b"\0\0")
                for position, path in enumerate(request.split(b"\0")):
                    tell(f"in {position} {time.monotonic()!r}")
                    tell(look(position, path))
                tell("done")
    except BrokenPipeError:
        return


def look(position: int, path: bytes) -> str:
    """One answer. Blocks for as long as the filesystem does."""
    try:
        sizes = os.statvfs(path)
    except OSError as error:
        return f"error {position} {error.errno}"
    size = sizes.f_frsize
    return f"full {position} {sizes.f_blocks * size} {sizes.f_bavail * size} {sizes.f_files} {sizes.f_favail}"


def tell(answer: str) -> None:
    os.write(1, answer.encode() + b"\n")
