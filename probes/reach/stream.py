"""A running channel on the hub's poller: frames out of its stdout, bytes into its stdin, what else it said, its end.

No call here waits: all of it is for the hub's one thread.
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
from collections.abc import Callable, Collection

from mltop.probes.model.text import clean, plain_text
from mltop.probes.reach.channel import Channel, Ending
from mltop.probes.reach.framing import NOISE_BYTES, FrameReader
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.programs import run_program
from mltop.probes.system.spawn import die_with_parent

STDERR_BYTES = 65_536
STDERR_READS = 8  # of what it said last
# Noise is read at this rate beyond a first burst: `yes` in a start-up file must not cost a core.
NOISE_BYTES_PER_S = 6_000_000
NOISE_BURST_BYTES = 262_144
# A byte of a frame counts as so many of noise: a node that sends samples as fast as it can must not cost a core
# either. 256 nodes of one pdsh send 8 MB/s, and a burst of stacks comes at 30.
FRAME_COST = 0.2
MOST_NAME_CHARS = 80  # of a node's name that a node made up
REAP_POLL_S = 0.01
KILLED_GRACE_S = 0.5  # for a process to go after SIGKILL; one stuck in the kernel is left behind
_SETPRIV_S = 5.0


class Misnamed(Exception):
    """A frame of ``node`` names another one."""

    def __init__(self, node: str, named: str) -> None:
        super().__init__(f"it sends frames in the name of {plain_text(named, MOST_NAME_CHARS)}")
        self.node = node


class Reaper:
    """The streams that are ending: asked to, then killed, then released. ``poller``: what they are all watched by."""

    def __init__(self, poller: Poller, grace_s: float) -> None:
        self.poller = poller
        self._grace_s = grace_s
        self._ending: list[tuple[Stream, float]] = []

    def __len__(self) -> int:
        return len(self._ending)

    def add(self, stream: Stream) -> None:
        self._ending.append((stream, time.monotonic() + self._grace_s))

    def look(self, now: float) -> None:
        """Kills and releases what is due; called every REAP_POLL_S while there are any."""
        due, self._ending = self._ending, []  # an end may lead to others
        for stream, deadline in due:
            if stream.has_ended() or now > deadline + KILLED_GRACE_S:
                stream.finish()
                continue
            if now > deadline:
                stream.kill()
            self._ending.append((stream, deadline))

    def hurry(self, now: float, grace_s: float) -> None:
        """No stream gets longer than ``grace_s`` from now on."""
        self._ending = [(stream, min(deadline, now + grace_s)) for stream, deadline in self._ending]


class Stream:
    """The process of ``channel``, started. Raises OSError when it cannot be.

    ``on_frame(payload, label)`` is called for every frame until the end, ``label`` as in Frame (``node_of`` says whose
    it is); ``on_end(exit code or None)`` once, when the process is gone, whoever began its end;
    ``on_node_end(node, ending)`` for what ``channel.node_endings`` finds.
    """

    def __init__(
        self,
        channel: Channel,
        reaper: Reaper,
        *,
        on_frame: Callable[[bytes, str], None],
        on_end: Callable[[int | None], None],
        on_node_end: Callable[[str, Ending], None],
    ) -> None:
        self.channel = channel
        self._poller, self._reaper = reaper.poller, reaper
        self._on_frame, self._on_end, self._on_node_end = on_frame, on_end, on_node_end
        self._process = start(channel)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        self._speakers = channel.speakers() if channel.speakers is not None else None
        self._node_ending = channel.node_endings() if channel.node_endings is not None else None
        self._frames = FrameReader(labelled=channel.speakers is not None)
        self._errors = bytearray()  # the newest of stderr
        self._stderr_line = b""  # not ended yet
        self._outgoing: deque[memoryview] = deque()
        self._noise_debt = self._noise_at = 0.0
        self.is_ending = self._killed = False
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._poller.watch(self._stdout, self._read_stdout)
        self._poller.watch(self._stderr, self._read_stderr)

    # Out.

    def send(self, data: bytes) -> None:
        """Queues bytes for its stdin. What cannot be written any more is dropped: the end of stdout follows."""
        if not self.is_ending:
            self._outgoing.append(memoryview(data))
            self._write()

    @property
    def unsent_bytes(self) -> int:
        return sum(len(part) for part in self._outgoing)

    def _write(self) -> None:
        """Writes what waits, as far as the pipe takes it; the rest when it takes more."""
        try:
            while self._outgoing:
                head = self._outgoing[0]
                written = os.write(self._stdin, head)
                if written < len(head):
                    self._outgoing[0] = head[written:]
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:  # its other end is closed
            self._outgoing.clear()
        if not self._outgoing:
            self._poller.unwatch(self._stdin)
        elif not self._poller.watches(self._stdin):
            self._poller.watch(self._stdin, self._write, selectors.EVENT_WRITE)

    # In.

    def node_of(self, label: str, named: str, nodes: Collection[str]) -> str | None:
        """Which of ``nodes`` sent a frame that came behind ``label`` and names the node ``named``; None for no one.

        The label decides where the channel has labels, else the frame, unless there is a single node. Raises Misnamed
        for a frame that names another node than its label.
        """
        if self._speakers is None:
            return named if named in nodes else next(iter(nodes)) if len(nodes) == 1 else None
        node = self._speakers.node_of(label)
        if node is None:
            self._read_all_stderr()  # what says who speaks is written before the first line of who does
            node = self._speakers.node_of(label) or self._speakers.claim(label, named)
        if node is not None and named not in ("", node):
            raise Misnamed(node, named)
        return node if node in nodes else None

    def last_output(self) -> str:
        """The last lines of stderr if there are any, or of what was not a frame: usually why the process ended."""
        for text in (self._errors.decode("utf-8", "replace"), self.noise):
            lines = [clean(line).strip() for line in text.splitlines()]
            if any(lines):
                return "\n".join(line for line in lines if line)
        return ""

    @property
    def prompt(self) -> str:
        """The line that it stopped in, "" for none: a question, mostly."""
        unfinished = (text.rpartition("\n")[2] for text in (self._errors.decode("utf-8", "replace"), self.noise))
        return next(filter(None, map(plain_text, unfinished)), "")

    def forget_output(self) -> None:
        """Drops what was said so far: the login's words (a banner) are no reason for an end after it."""
        self._read_all_stderr()
        self._errors.clear()
        self._frames = FrameReader(labelled=self._speakers is not None)

    @property
    def noise(self) -> str:
        """The newest of what came on stdout and was not a frame."""
        return self._frames.noise

    def _read_stdout(self) -> None:
        buffer = self._poller.buffer  # os.read would allocate a pipe's capacity for every sample
        try:
            count = os.readv(self._stdout, (buffer,))
        except BlockingIOError:
            return
        if not count:
            self.end()
            return
        noise_before = self._frames.noise_bytes
        frames = self._frames.feed(bytes(buffer[:count]))
        noise = self._frames.noise_bytes - noise_before
        self._noise_debt += noise + FRAME_COST * max(0, count - noise)
        for frame in frames:
            if self.is_ending:
                return
            self._on_frame(frame.payload, frame.label)
        if not self.is_ending:
            self._pause(self._stdout)

    def _read_stderr(self) -> None:
        output = self._take_stderr()
        if output is None:
            self._poller.unwatch(self._stderr)
        elif output:
            self._pause(self._stderr)

    def _read_all_stderr(self) -> None:
        if self._poller.watches(self._stderr):
            for _ in range(STDERR_READS):
                if not self._take_stderr():
                    return

    def _take_stderr(self) -> bytes | None:
        """Reads what is there now; None at its end. The newest is kept."""
        try:
            output = os.read(self._stderr, STDERR_BYTES)
        except BlockingIOError:
            return b""
        if not output:
            return None
        self._errors += output[-NOISE_BYTES:]
        del self._errors[:-NOISE_BYTES]
        self._noise_debt += len(output)
        if self._node_ending is None and self._speakers is None:
            return output
        *lines, rest = (self._stderr_line + output).split(b"\n")
        self._stderr_line = rest[-NOISE_BYTES:]
        for line in lines:
            text = line[:NOISE_BYTES].decode("utf-8", "replace")
            if self._speakers is not None:
                self._speakers.hear(text)
            ended = self._node_ending(text) if self._node_ending is not None else None
            if ended is not None:
                self._on_node_end(*ended)
        return output

    def _pause(self, fd: int) -> None:
        """Leaves ``fd`` unread for a while, because of the noise it makes."""
        if not self._noise_debt:
            return
        now = time.monotonic()
        self._noise_debt = max(0.0, self._noise_debt - NOISE_BYTES_PER_S * (now - self._noise_at))
        self._noise_at = now
        if self._noise_debt > NOISE_BURST_BYTES:
            self._poller.pause(fd, (self._noise_debt - NOISE_BURST_BYTES) / NOISE_BYTES_PER_S)

    # Its end.

    def watch(self) -> None:
        """Ends the stream when its process is gone although something that it started still holds the pipes."""
        if self.has_ended():
            self.end()

    def end(self) -> None:
        """Closes its stdin, which ends an agent and ssh; what does not hang on stdin gets SIGTERM."""
        if self.is_ending:
            return
        self.is_ending = True
        self._poller.unwatch(self._stdout)
        self._poller.unwatch(self._stdin)
        self._outgoing.clear()
        with contextlib.suppress(OSError):
            self._pipes[0].close()
        if not self.channel.takes_requests and self._process.returncode is None:
            self._signal(signal.SIGTERM)
        self._reaper.add(self)

    def kill(self) -> None:
        """Kills the whole process group: a launcher may have started others (ProxyCommand, pdsh's ssh)."""
        if self._process.returncode is None:
            self._killed = True
            self._signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether its process is gone; what is left of its group then is killed."""
        if self._process.returncode is not None:
            return True
        # Not reaped before the group is killed: until then its number cannot be another's.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._signal(signal.SIGKILL)
        self._process.wait()
        return True

    def finish(self) -> None:
        """Called by the reaper when the process is gone. The exit code is None when only our SIGKILL ended it."""
        self._read_all_stderr()
        self._poller.unwatch(self._stderr)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        self._on_end(None if self._killed else self._process.returncode)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def start(channel: Channel) -> subprocess.Popen[bytes]:
    """The channel's process, leader of a group of its own. Raises OSError."""
    if shutil.which(channel.argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), channel.argv[0])
    setpriv = dying_with_us() if channel.dies_with_us else ()
    return subprocess.Popen(
        (*setpriv, *channel.argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        # Without a preexec_fn Python uses vfork(2), which does not copy this process's page tables.
        preexec_fn=die_with_parent if channel.dies_with_us and not setpriv else None,  # noqa: PLW1509 - it makes one prctl call
    )


@functools.cache
def dying_with_us() -> tuple[str, ...]:
    """The words before a command by which the kernel kills it when we die (prctl(2), PR_SET_PDEATHSIG): setpriv(1) of
    util-linux 2.33 or newer; empty where there is none.

    The other way, Python's preexec_fn, costs a fork(2), which copies our page tables: 9 ms of a process with 150 MB,
    where this takes 1 ms. The signal comes when the thread that started the process ends.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    try:
        usage = run_program((program, "--help"), _SETPRIV_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (program, "--pdeathsig", "KILL", "--") if "--pdeathsig" in usage else ()
