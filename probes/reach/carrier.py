"""A stream on the hub's poller: frames in, bytes out, and an end that is waited for without waiting."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from mltop.probes.model.text import plain_text
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.ending import Ending
from mltop.probes.reach.framing import NOISE_BYTES
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.stream import Stream

REAP_POLL_S = 0.01
KILLED_GRACE_S = 0.5  # for a process to go after SIGKILL; one stuck in the kernel is left behind
STDERR_READS = 8  # of what it said last
MOST_NAME = 80  # characters of a node's name that a node made up


class Misnamed(Exception):
    """A frame of ``node`` names another one."""

    def __init__(self, node: str, named: str) -> None:
        super().__init__(f"it sends frames in the name of {plain_text(named, MOST_NAME)}")
        self.node = node


class Reaper:
    """Streams that are ending: asked to, then killed, then released."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._ending: list[tuple[Carrier, float]] = []

    def __len__(self) -> int:
        return len(self._ending)

    def add(self, carrier: Carrier) -> None:
        self._ending.append((carrier, time.monotonic() + self._grace_s))

    def look(self, now: float) -> None:
        """Call it every REAP_POLL_S while there are any."""
        looked_at, self._ending = self._ending, []  # an end may lead to others
        for carrier, deadline in looked_at:
            stream = carrier.stream
            if stream.has_ended() or now > deadline + KILLED_GRACE_S:
                carrier.finish()
                continue
            if now > deadline:
                stream.kill()
            self._ending.append((carrier, deadline))

    def hurry(self, now: float, grace_s: float) -> None:
        """Nobody gets longer than ``grace_s`` from now on."""
        self._ending = [(carrier, min(deadline, now + grace_s)) for carrier, deadline in self._ending]


class Carrier:
    """Starts ``channel``; raises OSError when it cannot.

    ``on_frame(payload, label)`` for every frame until the end, ``label`` as in Frame (``speaker`` says whose it is);
    ``on_end(exit code or None, last words)`` once, when the process is gone, whoever began its end;
    ``on_node_end(node, ending)`` for what ``channel.node_ending`` finds.
    """

    def __init__(
        self,
        channel: Channel,
        poller: Poller,
        reaper: Reaper,
        *,
        on_frame: Callable[[bytes, str], None],
        on_end: Callable[[int | None, str], None],
        on_node_end: Callable[[str, Ending], None],
    ) -> None:
        self.stream = Stream(channel, poller.buffer)
        self._poller, self._reaper = poller, reaper
        self._on_frame, self._on_end, self._on_node_end = on_frame, on_end, on_node_end
        self._speakers = channel.speakers() if channel.speakers is not None else None
        self._stderr_line = b""  # not ended yet
        self._ending = False
        poller.watch(self.stream.stdout_fd, self._read_stdout)
        poller.watch(self.stream.stderr_fd, self._read_stderr)
        if channel.opening:
            self.send(channel.opening)

    def send(self, data: bytes) -> None:
        """What cannot be written any more is dropped: the end of stdout follows."""
        if not self._ending and self.stream.send(data) and self.stream.unsent_bytes:
            self._watch_stdin()

    @property
    def unsent_bytes(self) -> int:
        return self.stream.unsent_bytes

    @property
    def is_ending(self) -> bool:
        return self._ending

    def watch(self) -> None:
        """Its process may be gone although something that it started still holds the pipes."""
        if self.stream.has_ended():
            self.end()

    def speaker(self, label: str, named: str) -> str | None:
        """Whose a frame is that came behind ``label`` and names the node ``named``.

        By the carrier's label, where it has labels; None for nobody's. Raises Misnamed for one that names another node.
        """
        if self._speakers is None:
            return named
        node = self._speakers.node_of(label)
        if node is None:
            self._hear()
            node = self._speakers.node_of(label) or self._speakers.claim(label, named)
        if node is not None and named not in ("", node):
            raise Misnamed(node, named)
        return node

    def end(self) -> None:
        if self._ending:
            return
        self._ending = True
        self._poller.unwatch(self.stream.stdout_fd)
        self._poller.unwatch(self.stream.stdin_fd)
        self.stream.begin_end()
        self._reaper.add(self)

    def finish(self) -> None:
        """For the reaper: the process is gone."""
        for _ in range(STDERR_READS):
            said = self.stream.read_stderr()
            if not said:
                break
            self._take_stderr(said)
        self._poller.unwatch(self.stream.stderr_fd)
        self.stream.close()
        self._on_end(self.stream.exit_code, self.stream.last_words())

    def _read_stdout(self) -> None:
        frames = self.stream.read_frames()
        if frames is None:
            self.end()
            return
        for frame in frames:
            if self._ending:
                return
            self._on_frame(frame.payload, frame.label)
        if not self._ending:
            self._pause(self.stream.stdout_fd)

    def _hear(self) -> None:
        """All that stands on stderr now: what says who speaks is written before the first line of who does."""
        if self._poller.watches(self.stream.stderr_fd):
            for _ in range(STDERR_READS):
                said = self.stream.read_stderr()
                if not said:
                    return
                self._take_stderr(said)

    def _read_stderr(self) -> None:
        said = self.stream.read_stderr()
        if said is None:
            self._poller.unwatch(self.stream.stderr_fd)
            return
        self._take_stderr(said)
        self._pause(self.stream.stderr_fd)

    def _take_stderr(self, said: bytes) -> None:
        node_ending = self.stream.channel.node_ending
        if node_ending is None and self._speakers is None:
            return
        *lines, rest = (self._stderr_line + said).split(b"\n")
        self._stderr_line = rest[-NOISE_BYTES:]
        for line in lines:
            text = line[:NOISE_BYTES].decode("utf-8", "replace")
            if self._speakers is not None:
                self._speakers.hear(text)
            ended = node_ending(text) if node_ending is not None else None
            if ended is not None:
                self._on_node_end(*ended)

    def _pause(self, fd: int) -> None:
        pause_s = self.stream.pause_s(time.monotonic())
        if pause_s > 0.0:
            self._poller.pause(fd, pause_s)

    def _watch_stdin(self) -> None:
        if not self._poller.watches(self.stream.stdin_fd):
            self._poller.watch(self.stream.stdin_fd, self._write_stdin, selectors.EVENT_WRITE)

    def _write_stdin(self) -> None:
        if not self.stream.flush() or not self.stream.unsent_bytes:
            self._poller.unwatch(self.stream.stdin_fd)
