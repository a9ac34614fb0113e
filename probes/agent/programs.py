"""Programs that the caller sends when they are first needed: asked for, checked, kept in the cache or in memory."""

from __future__ import annotations

import binascii
import contextlib
import os
import threading
import time
import zlib
from queue import Empty, SimpleQueue
from typing import Callable

from mltop.probes.agent.protocol import Message, Request
from mltop.probes.system.blobs import read_file
from mltop.probes.system.blobs import sha256 as hash_of
from mltop.probes.system.spawn import memory_file

WAIT_S = 60.0  # without a sign that more of it arrives: 3 MB take minutes over a slow link
_POLL_S = 0.05  # how late a cancel may be
_MOST_BYTES = 256 * 1024 * 1024
_GZIP = 31  # zlib's name for it
_STARTS_WITHIN_S = 10.0


class Unavailable(Exception):
    """Why a program cannot be had; ``fix`` is what to do."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


class _Awaited:
    """One file that the caller was asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: SimpleQueue[bytes | Unavailable] = SimpleQueue()
        self.progress_s = time.monotonic()


class Programs:
    """The programs of one agent. ``can_ask`` is False where nothing can be sent to it (pdsh); ``wait_s``: how long one
    that was asked for may make no progress.
    """

    def __init__(self, send: Callable[[Message], None], can_ask: bool = True, wait_s: float = WAIT_S) -> None:
        self._send = send
        self._wait_s = wait_s
        self._can_ask = can_ask
        self._cache = os.environ.get("MLTOP_CACHE", "")
        self._obtaining = threading.Lock()  # one at a time, so that two requests send for one file once
        self._awaited: _Awaited | None = None
        self._paths: dict[str, str] = {}  # of programs that run, by sha256

    def receive(self, request: Request) -> None:
        """A frame of kind "file" has come. What nobody waits for is dropped."""
        awaited = self._awaited
        if awaited is not None and request.op == awaited.name:
            awaited.answers.put(unpacked(request))

    def receiving(self) -> None:
        """Some more of a long frame has arrived, which may be the file."""
        awaited = self._awaited
        if awaited is not None:
            awaited.progress_s = time.monotonic()

    def program(self, name: str, sha256: str, request_id: int, cancelled: threading.Event) -> str:
        """Path of a program that has this hash and runs. Raises Unavailable, also when ``cancelled`` is set."""
        while not self._obtaining.acquire(timeout=_POLL_S):
            if cancelled.is_set():
                raise Unavailable("cancelled")
        try:
            path = self._paths.get(sha256, "")
            if not _is_there(path):
                path = self._paths[sha256] = self._obtain(name, sha256, request_id, cancelled)
            return path
        finally:
            self._obtaining.release()

    def _obtain(self, name: str, sha256: str, request_id: int, cancelled: threading.Event) -> str:
        path = f"{self._cache}/{name}-{sha256}" if self._cache else ""
        content = read_file(path)  # once per agent: 8 MB take 10 ms
        if hash_of(content) != sha256:
            content = self._ask(name, request_id, cancelled)
            if hash_of(content) != sha256:
                raise Unavailable(f"the {name} that came is not the one that was announced", "try again")
            path = _keep(path, content)
        return path if runs(path) else _in_memory(name, content)

    def _ask(self, name: str, request_id: int, cancelled: threading.Event) -> bytes:
        if not self._can_ask:
            fix = f"once by ssh: mltop stacks -w NODE; or pip install {name} there"
            raise Unavailable(f"{name} is not on this node, and it cannot be sent this way", fix)
        awaited = self._awaited = _Awaited(name)
        try:
            self._send(Message("need", id=request_id, data={"file": name, "machine": os.uname().machine}))
            answer = self._wait(awaited, cancelled)
        finally:
            self._awaited = None
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def _wait(self, awaited: _Awaited, cancelled: threading.Event) -> bytes | Unavailable:
        while time.monotonic() - awaited.progress_s < self._wait_s:
            if cancelled.is_set():
                return Unavailable("cancelled")
            with contextlib.suppress(Empty):
                return awaited.answers.get(timeout=_POLL_S)
        return Unavailable(f"{awaited.name} did not arrive: nothing came for {self._wait_s:g} s")


def unpacked(request: Request) -> bytes | Unavailable:
    """The bytes of a file frame, which must have the hash that it names."""
    args = request.args
    if args.get("error"):
        return Unavailable(str(args["error"]), str(args.get("fix", "")))
    try:
        content = zlib.decompressobj(_GZIP).decompress(binascii.a2b_base64(args["data"]), _MOST_BYTES)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        return Unavailable(f"{request.op} arrived damaged: {error}", "try again")
    if hash_of(content) != args.get("sha256"):
        return Unavailable(f"{request.op} arrived damaged: its sha256 is another", "try again")
    return content


def _keep(path: str, content: bytes) -> str:
    """``path`` once the file is there, "" when it cannot be written (no cache, read-only, full)."""
    if not path:
        return ""
    beside = f"{os.path.dirname(path)}/.tmp.{os.urandom(8).hex()}"
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        return ""
    return path


def _in_memory(name: str, content: bytes) -> str:
    """The path of a program in memory: for caches where nothing may be executed, and for no cache."""
    try:
        path = memory_file(name, content)
    except OSError as error:
        raise Unavailable(f"{name} runs neither from the cache nor from memory: {error.strerror}") from error
    if not runs(path):
        raise Unavailable(f"{name} was sent, but this node does not run programs that are not installed")
    return path


def runs(path: str) -> bool:
    """Whether it starts: not where it is forbidden (noexec, a policy of the kernel), or built for another machine."""
    if not _is_there(path):
        return False
    import subprocess

    command = [path, "--version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STARTS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _is_there(path: str) -> bool:
    """Touches it, too: what was not used for long is removed from the cache by a newer version."""
    try:
        if path:
            os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.exists(path)  # a read-only cache
    return bool(path)
