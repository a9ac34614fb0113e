"""The files that nodes ask for (the bundle, py-spy): made outside the hub's thread and once per machine type, and sent
on the streams that want them: which, how often, and how long they may take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mltop.probes.agent.protocol import Boot, Request, encode
from mltop.probes.model.text import plain_text
from mltop.probes.reach.stream import Stream

MOST_KEPT = 16  # two files of a few machine types; a machine's name comes from a node, which may tell anything
FILES = ("bundle", "py-spy")
FILES_A_MINUTE = 8  # a node that asks for more is broken, or means no good
SLOW_BYTES_PER_S = 5_000  # a link may be so slow; how much of a file has arrived is not seen from here

Post = Callable[[Callable[[], None]], None]
FileFor = Callable[[str, str], Request]  # (name, machine) -> the frame that carries it
PySpyFor = Callable[[str], str]  # machine -> SHA-256 of its py-spy, "" for none


class Files:
    """Makes files, one at a time. For the hub's thread: what is called back runs where ``post`` says."""

    def __init__(self, post: Post, file_for: FileFor | None = None, py_spy_for: PySpyFor | None = None) -> None:
        self._post = post
        self._file_for, self._py_spy_for = file_for, py_spy_for
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="mltop-files")
        self._files: dict[tuple[str, str], Future[Any]] = {}

    def frame(self, name: str, machine: str, then: Callable[[bytes], None]) -> None:
        """Calls ``then`` with the whole frame that carries this file, or the error why there is none."""

        def answer(made: bytes | Exception) -> None:
            if isinstance(made, Exception):
                reason = plain_text(f"cannot make {name} for {machine}: {type(made).__name__}: {made}")
                made = encode(Request("file", op=name, args={"error": reason}))
            then(made)

        self._want((name, machine), lambda: encode(self._request(name, machine)), answer)

    def py_spy_sha256(self, machine: str, then: Callable[[str | Exception], None]) -> None:
        """Calls ``then`` with "" when there is none for this machine, an exception when that cannot be found out."""
        self._want(("", machine), lambda: self._sha256(machine), then)

    def _want(self, key: tuple[str, str], make: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Calls ``then`` with what was made, or with the error. An error is not kept: the next node tries again."""

        def answer(made: Future[Any]) -> None:
            error = made.exception()
            if error is not None:
                self._files.pop(key, None)
            then(made.result() if error is None else error)

        if key not in self._files:
            self._files[key] = self._maker.submit(make)
            while len(self._files) > MOST_KEPT:
                del self._files[next(iter(self._files))]
        self._files[key].add_done_callback(lambda made: self._post(lambda: answer(made)))

    def _sha256(self, machine: str) -> str:
        from mltop.probes.reach import bundle  # hashes and compresses: only where a node asks for it

        return (self._py_spy_for or bundle.py_spy_sha256)(machine)

    def _request(self, name: str, machine: str) -> Request:
        from mltop.probes.reach import bundle

        return (self._file_for or bundle.file_for)(name, machine)


class Uploads:
    """The files sent on one running channel, in the hub's thread. ``until``: when they arrived over a slow link."""

    def __init__(self, files: Files, stream: Stream, on_sent: Callable[[int], None]) -> None:
        """``on_sent(bytes)`` when a file begins to go out, while the channel is the one that runs."""
        self._files, self._stream, self._on_sent = files, stream, on_sent
        self._sent: set[tuple[str, str]] = set()
        self._being_made: set[tuple[str, str]] = set()
        self._asked_at: dict[str, deque[float]] = {}
        self.until = 0.0

    def needs(self, node: str, name: str, boot: Boot | None, again: bool) -> str:
        """Sends a file: only an agent that installed itself asks, and gets what is for the machine its bootstrap saw.

        ``again``: also when it was sent on this stream before. Returns why the node is not served any more, "" while it
        is.
        """
        if name not in FILES or boot is None or (not again and (name, boot.machine) in self._sent):
            return ""
        now = time.monotonic()
        asked_at = self._asked_at.setdefault(node, deque(maxlen=FILES_A_MINUTE))
        if len(asked_at) == FILES_A_MINUTE and now - asked_at[0] <= 60.0:
            return f"it asked for more than {FILES_A_MINUTE} files within a minute"
        asked_at.append(now)
        self._send(name, boot.machine)
        return ""

    def arrived(self, now: float) -> None:
        """Ends the guess when the files arrive: the node says how far it is."""
        self.until = min(self.until, now)

    def _send(self, name: str, machine: str) -> None:
        """Where the stream reaches several nodes, what is under way for one is for all of them. A node that asks when
        it has gone by needs it again: who did not wait for it dropped it.
        """
        file = (name, machine)
        if file in self._being_made or (file in self._sent and self._stream.unsent_bytes > 0):
            return
        self._sent.add(file)
        self._being_made.add(file)

        def send(frame: bytes) -> None:
            self._being_made.discard(file)
            if not self._stream.is_ending:
                self.until = max(time.monotonic(), self.until) + len(frame) / SLOW_BYTES_PER_S
                self._stream.send(frame)
                self._on_sent(len(frame))

        self._files.frame(name, machine, send)
