"""Who started this agent: what it says, what it is told, and whether it is still there.

An agent must not outlive its caller, whatever its own threads are stuck in (a collector in a system call, a write to
a link that is dead). So two threads that do nothing else look after that, and end the process.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.agent.protocol import MAX_FRAME_BYTES, Message, Request, Wire, decode_request

MOST_REPLY_BYTES = 8 * 1024 * 1024  # whoever has more to say waits for the reader
EXIT_GRACE_S = 1.5  # after the caller is gone, whatever a collector is stuck in
UNANSWERED_S = 15.0  # without a caller on stdin: nobody acknowledged for so long what left this machine
KEEPALIVE_S = 5.0  # without a caller on stdin: something is written at least this often
TICK_S = 0.5
TELL_EVERY_BYTES = 16_384

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_WANTED = struct.Struct("=BBBBI")  # struct inet_diag_req_v2 up to its sockid
_SOCKID = struct.Struct("!HH16s16s")  # struct inet_diag_sockid up to its interface
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
_FOUND = struct.Struct("=BBBB48sIII")  # struct inet_diag_msg up to its write queue
_ALL_STATES = 0xFFFFFFFF
# Timers of tcp_diag.c: repeating what was sent, and asking whether anything may be sent at all (the peer's window is
# closed, or our own side drops every packet). A peer that is there answers, which sets the count of tries to 0.
_TRYING = (1, 4)


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


class Outbox:
    """Writes frames from a thread of its own: a caller that reads slowly never delays a sample.

    Replies are kept in order and all of them; of samples and pongs only the newest waits. ``on_broken`` is called in
    the thread when the caller closed its end.
    """

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._wake = threading.Condition()
        self._replies: deque[bytes] = deque()
        self._reply_bytes = 0
        self._newest: dict[str, bytes] = {}
        self._broken = False
        self.writes = 0  # grows with everything that left
        threading.Thread(target=self._run, name="mltop-outbox", daemon=True).start()

    def put_newest(self, kind: str, frame: bytes) -> None:
        """Puts a frame in the place of one of its kind that waits."""
        with self._wake:
            self._newest.pop(kind, None)  # what was put last goes out last
            self._newest[kind] = frame
            self._wake.notify_all()

    def put(self, frame: bytes) -> None:
        """Waits while too much is unread; returns at once when the caller is gone."""
        with self._wake:
            self._wake.wait_for(lambda: self._reply_bytes < MOST_REPLY_BYTES or self._broken)
            if not self._broken:
                self._replies.append(frame)
                self._reply_bytes += len(frame)
                self._wake.notify_all()

    def _run(self) -> None:
        try:
            while True:
                self._write(self._next())
        except OSError:
            with self._wake:
                self._broken = True
                self._wake.notify_all()
            self._on_broken()

    def _next(self) -> bytes:
        with self._wake:
            self._wake.wait_for(lambda: bool(self._replies or self._newest))
            frames = [*self._replies, *self._newest.values()]
            self._replies.clear()
            self._newest.clear()
            self._reply_bytes = 0
            self._wake.notify_all()
        return b"".join(frames)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
            self.writes += 1


class TcpLink:
    """Whether the connection that SSH_CONNECTION (ssh(1)) names is dead: what sshd writes is not acknowledged any more.

    For agents that hear nothing from their caller (pdsh): their samples vanish in sshd's send buffer long before a
    write of theirs blocks, and the kernel gives a connection up only after about 15 minutes (tcp_retries2 in tcp(7)).
    That it repeats itself shows much earlier, by sock_diag(7). (/proc/net/tcp shows it, too, at 20 ms per look.)
    ``connection``: "client port server port", "" for none.
    """

    def __init__(self, connection: str | None = None) -> None:
        words = (os.environ.get("SSH_CONNECTION", "") if connection is None else connection).split()
        self._query = query(*words) if len(words) == 4 else b""
        self._repeating_since: float | None = None

    def unanswered_s(self, now: float) -> float:
        """For how long the kernel has been repeating itself without an answer; ``now`` in seconds of any one clock.

        As precise as it is called often. 0 without a connection by ssh, or where the kernel does not tell.
        """
        if not self._query or not repeats(self._query):
            self._repeating_since = None
            return 0.0
        if self._repeating_since is None:
            self._repeating_since = now
        return now - self._repeating_since


def query(client: str, client_port: str, server: str, server_port: str) -> bytes:
    """The question to the kernel about one connection, b"" when these are no addresses."""
    import ipaddress
    import socket

    try:
        ends = ipaddress.ip_address(server).packed, ipaddress.ip_address(client).packed
        sockid = _SOCKID.pack(int(server_port), int(client_port), *ends)
    except (ValueError, struct.error):  # a link-local address with its interface
        return b""
    family = socket.AF_INET if len(ends[0]) == 4 else socket.AF_INET6
    body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + sockid + _ANY
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body


def repeats(question: bytes) -> bool:
    """Whether the connection has something to send and has tried in vain."""
    import socket

    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
            netlink.settimeout(1.0)
            netlink.send(question)
            answer = netlink.recv(4096)
    except OSError:
        return False  # not in this kernel
    if len(answer) < _HEADER.size + _FOUND.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return False  # an error: there is no such connection
    _, _, timer, tries, _, _, _, unacknowledged = _FOUND.unpack_from(answer, _HEADER.size)
    return bool(timer in _TRYING and tries and unacknowledged)


class Caller:
    """Both directions of the link. ``stop`` is set when the agent is to end, and sets itself when nobody reads."""

    def __init__(self, wire: Wire, terms: Terms, in_fd: int, out_fd: int) -> None:
        self.stop = threading.Event()
        self.outbox = Outbox(out_fd, self.stop.set)
        self._wire, self._terms = wire, terms
        self._in_fd, self._out_fd = in_fd, out_fd
        self._link = TcpLink("" if terms.attended else None)
        self._heard = False
        self._writes_at_ping = 0

    def start(self, handle: Callable[[Request], None], receiving: Callable[[], None]) -> None:
        """``handle`` gets every request but pings, ``receiving`` is called for every 16 KB of a frame that is not there
        yet, both in the reading thread.
        """
        reading = threading.Thread(target=self._read, args=(handle, receiving), name="mltop-requests", daemon=True)
        reading.start()
        threading.Thread(target=self._watch, name="mltop-watchdog", daemon=True).start()

    def send(self, message: Message) -> None:
        message.node = message.node or self._wire.node
        self.outbox.put(self._wire.encode(message))

    def send_newest(self, message: Message) -> None:
        """Instead of one of its kind that still waits."""
        message.node = self._wire.node
        self.outbox.put_newest(message.kind, self._wire.encode(message))

    def leave(self) -> None:
        """End this process: in order if the main thread can, at once if it is stuck."""
        self.stop.set()
        time.sleep(EXIT_GRACE_S)
        leave(1)

    def _read(self, handle: Callable[[Request], None], receiving: Callable[[], None]) -> None:
        buffer = bytearray(self._terms.received)
        self._take_lines(buffer, handle)
        told_bytes = 0
        while True:
            try:
                data = os.read(self._in_fd, 262_144)
            except OSError:  # but for a signal, after which Python reads on
                data = b""
            if not data:
                break
            self._heard = True
            buffer += data
            if b"\n" in data:
                self._take_lines(buffer, handle)
                told_bytes = 0
            elif len(buffer) > MAX_FRAME_BYTES:
                buffer.clear()
                told_bytes = 0
            if len(buffer) - told_bytes >= TELL_EVERY_BYTES:
                told_bytes = len(buffer)
                receiving()
                self.send_newest(Message("progress"))
        if self._terms.attended:
            self.leave()

    def _take_lines(self, buffer: bytearray, handle: Callable[[Request], None]) -> None:
        """Handles all whole lines and leaves the rest in ``buffer``."""
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for request in map(decode_request, lines):
            if request is not None and request.kind == "ping":
                if self.outbox.writes == self._writes_at_ping:  # samples are answer enough while they flow
                    self.send_newest(Message("pong"))
                self._writes_at_ping = self.outbox.writes
            elif request is not None:
                handle(request)

    def _watch(self) -> None:
        """Counts its own ticks: a process that was stopped for a while was not left by its caller meanwhile."""
        tick_s = min(TICK_S, self._terms.silence_s / 4) if self._terms.silence_s else TICK_S
        quiet_s = unwritten_s = 0.0
        writes = self.outbox.writes
        while True:
            time.sleep(tick_s)
            quiet_s = 0.0 if self._heard else quiet_s + tick_s
            unwritten_s = 0.0 if self.outbox.writes != writes else unwritten_s + tick_s
            self._heard, writes = False, self.outbox.writes
            if reader_left(self._out_fd) or self._is_gone(quiet_s, unwritten_s):
                self.leave()
            if not self._terms.attended and unwritten_s >= KEEPALIVE_S:
                self.send_newest(Message("pong"))

    def _is_gone(self, quiet_s: float, unwritten_s: float) -> bool:
        if self._terms.attended:
            return self._terms.silence_s > 0.0 and quiet_s >= self._terms.silence_s
        return unwritten_s >= self._terms.unread_s or self._link.unanswered_s(time.monotonic()) >= UNANSWERED_S


def leave(code: int) -> Any:
    """End this process. A thread that the kernel holds would keep its files open, and sshd waits for their end."""
    with contextlib.suppress(OSError):  # too many open files
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
    os._exit(code)


def reader_left(fd: int) -> bool:
    """Whether nobody reads any more, found without writing: the next sample may be a minute away."""
    poller = select.poll()
    poller.register(fd, 0)  # POLLERR and POLLHUP are always told
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))
