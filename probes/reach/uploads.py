"""The files that the nodes of one stream ask for, on their way: which, how often, and how long they may take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from mltop.probes.agent.protocol import Boot
from mltop.probes.reach.carrier import Carrier
from mltop.probes.reach.files import Files

FILES = ("bundle", "py-spy")
FILES_A_MINUTE = 8  # a node that asks for more is broken, or means no good
SLOW_BYTES_PER_S = 5_000  # a link may be so slow; how much of a file has arrived is not seen from here


class TooManyFilesError(Exception):
    """A node asks again and again."""


class Uploads:
    """Of one running channel, in the hub's thread. ``until``: when what was sent has arrived over a slow link."""

    def __init__(self, files: Files, carrier: Carrier, on_sent: Callable[[int], None]) -> None:
        """``on_sent(bytes)`` when a file begins to go out, while the channel is the one that runs."""
        self._files, self._carrier, self._on_sent = files, carrier, on_sent
        self._sent: set[tuple[str, str]] = set()
        self._being_made: set[tuple[str, str]] = set()
        self._asked_at: dict[str, deque[float]] = {}
        self.until = 0.0

    def needs(self, node: str, name: str, boot: Boot | None, again: bool) -> None:
        """Only an agent that installed itself asks, and gets what is for the machine that its bootstrap saw.

        ``again``: also when it was sent on this stream before. Raises TooManyFilesError.
        """
        if name not in FILES or boot is None or (not again and (name, boot.machine) in self._sent):
            return
        now = time.monotonic()
        asked_at = self._asked_at.setdefault(node, deque(maxlen=FILES_A_MINUTE))
        if len(asked_at) == FILES_A_MINUTE and now - asked_at[0] <= 60.0:
            raise TooManyFilesError(f"it asked for more than {FILES_A_MINUTE} files within a minute")
        asked_at.append(now)
        self._send(name, boot.machine)

    def arrived(self, now: float) -> None:
        """The node tells how far it is: nothing has to be guessed."""
        self.until = min(self.until, now)

    def _send(self, name: str, machine: str) -> None:
        """Where the stream reaches several nodes, what is under way for one is for all of them. A node that asks when
        it has gone by needs it again: who did not wait for it dropped it.
        """
        wanted = (name, machine)
        if wanted in self._being_made or (wanted in self._sent and self._carrier.unsent_bytes > 0):
            return
        self._sent.add(wanted)
        self._being_made.add(wanted)

        def send(frame: bytes) -> None:
            self._being_made.discard(wanted)
            if not self._carrier.is_ending:
                self.until = max(time.monotonic(), self.until) + len(frame) / SLOW_BYTES_PER_S
                self._carrier.send(frame)
                self._on_sent(len(frame))

        self._files.frame(name, machine, send)
