"""The child process as its parent sees it: start it, ask it, end it. Nothing here waits for it."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from mltop.probes.spawn import die_with_parent, python_command

CHILD = "mltop.probes.collect.filesystems.child"
_CHUNK_BYTES = 65536


class Worker:
    """A running child. Raises OSError when it cannot be started. Times are CLOCK_MONOTONIC.

    ``inside``: the path that it asks about and since when; None between requests and before it has begun.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_command(CHILD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",  # it must not keep anything from being unmounted
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one prepared system call)
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        os.set_blocking(self._requests.fileno(), False)
        self._received = b""
        self._asked: list[str] = []
        self.pid = self._process.pid
        self.asked_s: float | None = None
        self.killed_s = 0.0
        self.inside: tuple[str, float] | None = None
        self.has_answered = False

    def ask(self, paths: list[str]) -> None:
        """Only when nothing is under way (``asked_s`` is None)."""
        self.asked_s = time.monotonic()
        self._asked = paths
        request = b"".join(os.fsencode(path) + b"\0" for path in paths) + b"\0"
        try:
            os.write(self._requests.fileno(), request)
        except (BrokenPipeError, BlockingIOError):
            return  # it has ended, or is stuck: both are found by looking at it

    def answers(self) -> list[list[Any]]:
        """What it has said since the last call, without the notes about where it is: ``["full", path, bytes, bytes
        available, inodes, inodes free]`` or ``["error", path, errno]``.
        """
        try:
            while more := os.read(self._answers.fileno(), _CHUNK_BYTES):
                self._received += more
        except BlockingIOError:
            pass
        *lines, self._received = self._received.split(b"\n")
        told: list[list[Any]] = []
        for line in lines:
            kind, *words = line.decode("ascii").split()
            if kind == "done":
                self.asked_s = self.inside = None
                self.has_answered = True
                continue
            path = self._asked[int(words[0])]
            if kind == "in":
                self.inside = (path, float(words[1]))
            else:
                told.append([kind, path, *map(int, words[1:])])
        return told

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """It may outlive this for as long as the kernel holds it (state D)."""
        self._process.kill()
        self.killed_s = time.monotonic()
        self._requests.close()
        self._answers.close()

    def wait(self, timeout_s: float) -> None:
        """After ``kill``: collect it if it ends within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return
