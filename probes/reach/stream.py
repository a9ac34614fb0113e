"""One running channel: the process, its bytes cut into frames, and what else it said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

from mltop.probes.agent.protocol import MAX_FRAME_BYTES, Request, encode, payload_of
from mltop.probes.reach.channel import Channel
from mltop.probes.spawn import die_with_parent

READ_BYTES = 262_144
NOISE_BYTES = 4096  # how much of what is not a frame is kept for a diagnosis


class Stream:
    """A started channel. Only the hub's thread reads; any thread may write."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.process = subprocess.Popen(
            channel.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the function only makes one prctl call
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._stdin_fd = self.process.stdin.fileno()
        self.stdout_fd = self.process.stdout.fileno()
        self.stderr_fd = self.process.stderr.fileno()
        for fd in (self._stdin_fd, self.stdout_fd, self.stderr_fd):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        self._noise = bytearray()
        self._write_lock = threading.Lock()
        self._ended = False

    def read_frames(self) -> list[bytes] | None:
        """The JSON payloads of all frames that are complete now; None at the end of the stream."""
        try:
            data = os.read(self.stdout_fd, READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._buffer += data
        if b"\n" not in data:
            if len(self._buffer) > MAX_FRAME_BYTES:
                self._keep_noise(bytes(self._buffer[:NOISE_BYTES]))
                self._buffer.clear()
            return []
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        payloads = []
        for line in lines:
            payload = payload_of(line)
            if payload is None:
                self._keep_noise(line[:NOISE_BYTES] + b"\n")
            else:
                payloads.append(payload)
        return payloads

    def read_stderr(self) -> bool:
        """Keep what the process says on stderr; False at its end."""
        try:
            data = os.read(self.stderr_fd, READ_BYTES)
        except BlockingIOError:
            return True
        self._keep_noise(data)
        return bool(data)

    def send(self, request: Request) -> bool:
        """Write one request; False when the process does not take it (gone, or its pipe is full)."""
        frame = encode(request)
        with self._write_lock:
            if self._ended:
                return False
            try:
                return os.write(self._stdin_fd, frame) == len(frame)
            except OSError:
                return False

    def last_words(self) -> str:
        """The last line that was not a frame: usually why the process ended."""
        lines = [line.strip() for line in self._noise.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def end(self, grace_s: float = 1.0) -> None:
        """Close its stdin, which ends an agent; kill the process group if it outlives the grace."""
        with self._write_lock, contextlib.suppress(OSError):
            assert self.process.stdin
            self._ended = True  # its descriptor's number may soon be another file's
            self.process.stdin.close()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _keep_noise(self, data: bytes) -> None:
        self._noise += data
        del self._noise[:-NOISE_BYTES]
