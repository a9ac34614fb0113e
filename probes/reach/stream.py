"""How a process is started that the kernel kills when we die (prctl(2), PR_SET_PDEATHSIG).

One running channel: the process, frames out of its stdout, bytes into its stdin, and what else it said.

A stream on the hub's poller: frames in, bytes out, and an end that is waited for without waiting.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable

from mltop.probes.model.text import plain_text
from mltop.probes.reach.channel import Channel, Ending
from mltop.probes.reach.framing import NOISE_BYTES, Frame, FrameReader
from mltop.probes.reach.poller import Poller
from mltop.probes.system.spawn import die_with_parent

_DEADLINE_S = 5.0


@functools.cache
def tether() -> tuple[str, ...]:
    """What to write before a command for that: setpriv(1) of util-linux 2.33 or newer; empty where there is none.

    The other way, Python's preexec_fn, costs a fork(2), which copies our page tables: 9 ms of a process with 150 MB,
    where this takes 1 ms. The signal comes when the thread that started the process ends.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    try:
        told = subprocess.run(
            [program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (program, "--pdeathsig", "KILL", "--") if b"--pdeathsig" in told.stdout else ()


STDERR_BYTES = 65_536
# Noise is read at this rate beyond a first burst: `yes` in a start-up file must not cost a core.
NOISE_BYTES_PER_S = 6_000_000
NOISE_BURST_BYTES = 262_144
# A byte of a frame counts as so many of noise: a node that sends samples as fast as it can must not cost a core
# either. 256 nodes of one pdsh send 8 MB/s, and a burst of stacks comes at 30.
FRAME_COST = 0.2


class Stream:
    """A started channel, used by the hub's thread only: no call waits. Raises OSError when it cannot start."""

    def __init__(self, channel: Channel, buffer: memoryview) -> None:
        """``buffer`` is lent by the thread that reads: os.read would allocate a pipe's capacity for every sample."""
        self.channel = channel
        self._buffer = buffer
        if shutil.which(channel.argv[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), channel.argv[0])
        tied = tether() if channel.dies_with_us else ()
        self.process = subprocess.Popen(
            (*tied, *channel.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            # Without a preexec_fn Python uses vfork(2), which does not copy this process's page tables.
            preexec_fn=die_with_parent if channel.dies_with_us and not tied else None,  # noqa: PLW1509 - it makes one prctl call
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin_fd = self.process.stdin.fileno()
        self.stdout_fd = self.process.stdout.fileno()
        self.stderr_fd = self.process.stderr.fileno()
        for fd in (self.stdin_fd, self.stdout_fd, self.stderr_fd):
            os.set_blocking(fd, False)
        self._frames = FrameReader(labelled=channel.speakers is not None)
        self._said = bytearray()  # on stderr
        self._outgoing: deque[memoryview] = deque()
        self._noise_debt = 0.0
        self._noise_at = 0.0
        self.killed = False

    def read_frames(self) -> list[Frame] | None:
        """All frames that are complete now; None at the end of the stream."""
        try:
            count = os.readv(self.stdout_fd, (self._buffer,))
        except BlockingIOError:
            return []
        if not count:
            return None
        data = bytes(self._buffer[:count])
        before = self._frames.noise_bytes
        frames = self._frames.feed(data)
        noise = self._frames.noise_bytes - before
        self._noise_debt += noise + FRAME_COST * max(0, count - noise)
        return frames

    def read_stderr(self) -> bytes | None:
        """What the process says there now; None at its end. The newest is kept."""
        try:
            data = os.read(self.stderr_fd, STDERR_BYTES)
        except BlockingIOError:
            return b""
        self._said += data[-NOISE_BYTES:]
        del self._said[:-NOISE_BYTES]
        self._noise_debt += len(data)
        return data or None

    def pause_s(self, now: float) -> float:
        """How long not to read from it, because of the noise it makes."""
        if not self._noise_debt:
            return 0.0
        self._noise_debt = max(0.0, self._noise_debt - NOISE_BYTES_PER_S * (now - self._noise_at))
        self._noise_at = now
        return max(0.0, (self._noise_debt - NOISE_BURST_BYTES) / NOISE_BYTES_PER_S)

    def send(self, data: bytes) -> bool:
        """Queue bytes for its stdin and write what it takes now; False when it takes none any more."""
        self._outgoing.append(memoryview(data))
        return self.flush() if len(self._outgoing) == 1 else True

    def flush(self) -> bool:
        """Write what waits, as far as the pipe takes it; False when its other end is closed."""
        try:
            while self._outgoing:
                head = self._outgoing[0]
                written = os.write(self.stdin_fd, head)
                if written < len(head):
                    self._outgoing[0] = head[written:]
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            return True
        except OSError:
            self._outgoing.clear()
            return False
        return True

    @property
    def unsent_bytes(self) -> int:
        return sum(len(part) for part in self._outgoing)

    def last_words(self) -> str:
        """The last lines of stderr if it said any, or of what was not a frame: usually why the process ended."""
        for text in (self._said.decode("utf-8", "replace"), self._frames.noise):
            lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
            if any(lines):
                return "\n".join(line for line in lines if line)
        return ""

    @property
    def noise(self) -> str:
        """The newest of what came on stdout and was not a frame."""
        return self._frames.noise

    def begin_end(self) -> None:
        """Close its stdin, which ends an agent and ssh; what does not hang on stdin gets SIGTERM."""
        self._outgoing.clear()
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.channel.takes_requests and self.process.returncode is None:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """The whole process group: a launcher may have started others (ProxyCommand, pdsh's ssh)."""
        if self.process.returncode is None:
            self.killed = True
            self._signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether its process is gone; what is left of its group then is killed."""
        if self.process.returncode is not None:
            return True
        # Not reaped before the group is killed: until then its number cannot be another's.
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._signal(signal.SIGKILL)
        self.process.wait()
        return True

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and when only our SIGKILL ended it."""
        return None if self.killed else self.process.returncode

    def close(self) -> None:
        """Release the pipes."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


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
