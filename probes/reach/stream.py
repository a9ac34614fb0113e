"""One running channel: the process, frames out of its stdout, bytes into its stdin, and what else it said."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections import deque

from mltop.probes.reach.channel import Channel
from mltop.probes.reach.framing import NOISE_BYTES, Frame, FrameReader
from mltop.probes.reach.tether import tether
from mltop.probes.spawn import die_with_parent

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
