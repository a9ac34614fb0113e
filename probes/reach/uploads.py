"""The files that nodes ask for (the bundle, py-spy): made outside the hub's thread and once per machine type, and sent
on the streams that want them: which, how often, and how long they may take.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
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
Key = tuple[str, str]
Make = Callable[[], Any]


class Files:
    """Makes files, one at a time. For the hub's thread: what is called back runs where ``post`` says."""

    def __init__(self, post: Post, file_for: FileFor | None = None, py_spy_for: PySpyFor | None = None) -> None:
        self._post = post
        self._file_for, self._py_spy_for = file_for, py_spy_for
        self._files: dict[Key, Any] = {}
        self._waiting: dict[Key, list[Callable[[Any], None]]] = {}
        self._to_make: deque[tuple[Key, Make]] = deque()
        self._making = False

    def frame(self, name: str, machine: str, then: Callable[[bytes], None]) -> None:
        """Calls ``then`` with the whole frame that carries this file, or the error why there is none."""
        self._want((name, machine), lambda: encode(self._request(name, machine)), then)

    def py_spy_sha256(self, machine: str, then: Callable[[str | Exception], None]) -> None:
        """Calls ``then`` with "" when there is none for this machine, an exception when that cannot be found out."""
        self._want(("", machine), lambda: self._sha256(machine), then)

    def _want(self, key: Key, make: Make, then: Callable[[Any], None]) -> None:
        if key in self._files:
            then(self._files[key])
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            self._waiting[key] = [then]
            self._to_make.append((key, make))
            self._make_next()

    def _make_next(self) -> None:
        if self._to_make and not self._making:
            self._making = True
            threading.Thread(target=self._make, args=self._to_make.popleft(), name="mltop-files", daemon=True).start()

    def _make(self, key: Key, make: Make) -> None:
        file = make()
        self._post(lambda: self._hand_out(key, file))

    def _hand_out(self, key: Key, file: Any) -> None:
        self._files[key] = file
        while len(self._files) > MOST_KEPT:
            del self._files[next(iter(self._files))]
        self._making = False
        self._make_next()
        for then in self._waiting.pop(key):
            then(file)

    def _sha256(self, machine: str) -> str | Exception:
        try:
            from mltop.probes.reach import bundle  # hashes and compresses: only where a node asks for it

            return (self._py_spy_for or bundle.py_spy_sha256)(machine)
        except Exception as error:  # noqa: BLE001 - whoever asked for stacks is told
            return error

    def _request(self, name: str, machine: str) -> Request:
        try:
            from mltop.probes.reach import bundle

            return (self._file_for or bundle.file_for)(name, machine)
        except Exception as error:  # noqa: BLE001 - the node is told, and its state says so
            reason = plain_text(f"cannot make {name} for {machine}: {type(error).__name__}: {error}")
            return Request("file", op=name, args={"error": reason})


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
