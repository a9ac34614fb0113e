"""Who started this agent: what it says, and whether it is still there.

An agent must not outlive its caller, whatever its own threads are stuck in (a collector in a system call, a write to
a link that is dead). So two threads that do nothing else look after that, and end the process.
"""

from __future__ import annotations

import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Callable

from mltop.probes.agent.outbox import Outbox
from mltop.probes.agent.protocol import MAX_FRAME_BYTES, Request, decode_request
from mltop.probes.agent.tcp_link import TcpLink

EXIT_GRACE_S = 1.5  # after the caller is gone, whatever a collector is stuck in
UNANSWERED_S = 15.0  # without a caller on stdin: nobody acknowledged for so long what left this machine
KEEPALIVE_S = 5.0  # without a caller on stdin: something is written at least this often
TICK_S = 0.5
TELL_EVERY_BYTES = 16_384
_GONE = select.POLLERR | select.POLLHUP


@dataclass
class Terms:
    """How the caller shows that it is there.

    ``attended``: our stdin is the caller, and its end is ours; ``silence_s``: so is this long without a byte on it
    (0: any silence is fine); ``unread_s``: without a caller on stdin, this long nobody took what we write;
    ``received``: what was read from stdin before.
    """

    attended: bool = True
    silence_s: float = 0.0
    received: bytes = b""
    unread_s: float = 20.0


class Caller:
    """``handle`` gets every request but pings, ``receiving`` is called for every 16 KB of a frame that is not there
    yet, both in the reading thread; ``stop`` asks the main thread to end.
    """

    def __init__(
        self,
        in_fd: int,
        out_fd: int,
        terms: Terms,
        *,
        outbox: Outbox,
        pong: bytes,
        handle: Callable[[Request], None],
        receiving: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._in_fd, self._out_fd = in_fd, out_fd
        self._terms = terms
        self._outbox = outbox
        self._pong = pong
        self._handle = handle
        self._receiving = receiving
        self._stop = stop
        self._link = TcpLink()
        self._heard = False
        self._writes_at_ping = 0

    def start(self) -> None:
        threading.Thread(target=self._read, name="mltop-requests", daemon=True).start()
        threading.Thread(target=self._watch, name="mltop-watchdog", daemon=True).start()

    def leave(self) -> None:
        """End this process: in order if the main thread can, at once if it is stuck."""
        self._stop()
        time.sleep(EXIT_GRACE_S)
        os._exit(1)

    def _read(self) -> None:
        buffer = bytearray(self._terms.received)
        self._take_lines(buffer)
        told_bytes = 0
        while True:
            try:
                data = os.read(self._in_fd, 262_144)
            except InterruptedError:
                continue
            except OSError:
                data = b""
            if not data:
                break
            self._heard = True
            buffer += data
            if b"\n" in data:
                self._take_lines(buffer)
                told_bytes = 0
            elif len(buffer) > MAX_FRAME_BYTES:
                buffer.clear()
                told_bytes = 0
            if len(buffer) - told_bytes >= TELL_EVERY_BYTES:
                told_bytes = len(buffer)
                self._receiving()
        if self._terms.attended:
            self.leave()

    def _take_lines(self, buffer: bytearray) -> None:
        """Handles all whole lines and leaves the rest in ``buffer``."""
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for line in lines:
            request = decode_request(line)
            if request is None:
                continue
            if request.kind == "ping":
                self._answer_ping()
            else:
                self._handle(request)

    def _answer_ping(self) -> None:
        """Samples are answer enough while they flow."""
        if self._outbox.writes == self._writes_at_ping:
            self._outbox.put_newest("pong", self._pong)
        self._writes_at_ping = self._outbox.writes

    def _watch(self) -> None:
        """Counts its own ticks: a process that was stopped for a while was not left by its caller meanwhile."""
        tick_s = min(TICK_S, self._terms.silence_s / 4) if self._terms.silence_s else TICK_S
        quiet_s = unwritten_s = 0.0
        writes = self._outbox.writes
        while True:
            time.sleep(tick_s)
            quiet_s = 0.0 if self._heard else quiet_s + tick_s
            unwritten_s = 0.0 if self._outbox.writes != writes else unwritten_s + tick_s
            self._heard, writes = False, self._outbox.writes
            if self._reader_left() or self._is_gone(quiet_s, unwritten_s):
                self.leave()
            if not self._terms.attended and unwritten_s >= KEEPALIVE_S:
                self._outbox.put_newest("pong", self._pong)

    def _is_gone(self, quiet_s: float, unwritten_s: float) -> bool:
        if self._terms.attended:
            return self._terms.silence_s > 0.0 and quiet_s >= self._terms.silence_s
        return unwritten_s >= self._terms.unread_s or self._link.unanswered_s(time.monotonic()) >= UNANSWERED_S

    def _reader_left(self) -> bool:
        """Without writing: the next sample may be a minute away."""
        poller = select.poll()
        poller.register(self._out_fd, 0)  # POLLERR and POLLHUP are always told
        return any(event & _GONE for _, event in poller.poll(0))
