"""How processes end, as the kernel tells it: its process events (the proc connector) and pidfds.

The proc connector tells everything that happens to any process. A filter in the kernel leaves of it the ends and
crashes of the processes that are watched: what others fork and end fills no queue and wakes nobody. It needs
CAP_NET_ADMIN before Linux 6.6, and always the machine's first PID and network namespaces. A pidfd tells since Linux
6.15, in any namespace and to anybody, how its process ended, but not when.

Sources: drivers/connector/{connector,cn_proc}.c, include/uapi/linux/{cn_proc,connector,netlink,filter,pidfd}.h.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from mltop.probes.collect.sysfile import OpenFiles

_NETLINK_CONNECTOR, _PROC_GROUP = 11, 1  # CN_IDX_PROC
_LISTEN, _IGNORE = 1, 2  # PROC_CN_MCAST_LISTEN, PROC_CN_MCAST_IGNORE
_EXIT, _CORE_DUMP = 0x80000000, 0x40000000  # PROC_EVENT_EXIT, PROC_EVENT_COREDUMP
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_QUEUE_BYTES = 2 << 20  # room for some 5,000 ends between two looks; the kernel takes it as it is needed
_MOST_A_LOOK = 8192
MOST_WATCHED = 2000  # the filter has to fit into net.core.optmem_max, which was 20 KiB for long
# Behind struct nlmsghdr (16 bytes) and struct cn_msg (20): what, processor, time, thread, process and exit status.
_EVENT = struct.Struct("=36xIIQiiI")
_WHAT_AT, _THREAD_AT, _PROCESS_AT = 36, 52, 56
_ADDRESS_OF_KERNEL = 0

_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO, _IOWR(0xFF, 11, 64 bytes)
_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=Q52xi")


class Event(NamedTuple):
    """``status``: as of wait(2), None while it only dumps core. ``at``: monotonic s. ``thread``: which one it was."""

    pid: int
    status: int | None
    at: float
    thread: int


class ProcessEvents:
    """Ends of the processes that are watched. Has a socket only while there are some. For one thread."""

    def __init__(self, is_possible: bool = True) -> None:
        self.is_possible = is_possible
        self._socket: socket.socket | None = None
        self._watched: frozenset[int] = frozenset()

    def watch(self, pids: Collection[int]) -> None:
        """From now on these, at most MOST_WATCHED of them."""
        watched = frozenset(sorted(pids)[:MOST_WATCHED] if len(pids) > MOST_WATCHED else pids)
        if watched == self._watched or not self.is_possible:
            return
        self._watched = watched
        if not watched:
            self.close()
            return
        try:
            if self._socket is None:
                self._socket = _opened(watched)
            else:
                _attach(self._socket, watched)
        except OSError:  # no permission, another namespace, a kernel without it: nothing that a later try would change
            self.is_possible = False
            self.close()

    def read(self) -> Iterator[Event]:
        """What came since the last look, in its order. What the queue had no room for is lost."""
        for _ in range(_MOST_A_LOOK if self._socket is not None else 0):
            assert self._socket is not None
            try:
                data, (sender, _) = self._socket.recvfrom(256)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # some are lost, the others are there
                    continue
                self.is_possible = False
                self.close()
                return
            if sender == _ADDRESS_OF_KERNEL and len(data) >= _EVENT.size:
                what, _, at_ns, thread, pid, status = _EVENT.unpack_from(data)
                if what == _CORE_DUMP or (what == _EXIT and thread == pid):
                    yield Event(pid, status if what == _EXIT else None, at_ns / 1e9, thread)

    def close(self) -> None:
        """Before Linux 6.6 the kernel went on making events for a listener that did not take leave."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(_message(_IGNORE))
            self._socket.close()
            self._socket = None
        self._watched = frozenset()


def _opened(watched: frozenset[int]) -> socket.socket:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_NETLINK, kind, _NETLINK_CONNECTOR)
    try:
        _attach(opened, watched)
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
        except OSError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
        opened.bind((0, _PROC_GROUP))
        opened.send(_message(_LISTEN))
    except OSError:
        opened.close()
        raise
    return opened


def _message(operation: int) -> bytes:
    connector = struct.pack("=IIIIHHI", 1, 1, 0, 0, 4, 0, operation)  # struct cn_msg of CN_IDX_PROC, CN_VAL_PROC
    return struct.pack("=IHHII", 16 + len(connector), 3, 0, 0, 0) + connector  # NLMSG_DONE


def _attach(opened: socket.socket, watched: frozenset[int]) -> None:
    import ctypes  # the kernel wants the program's address

    program = exit_filter(watched)
    memory = ctypes.create_string_buffer(program, len(program))
    address = struct.pack("HP", len(program) // 8, ctypes.addressof(memory))  # struct sock_fprog
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, address)


def exit_filter(watched: Collection[int]) -> bytes:
    """A classic BPF program (Documentation/networking/filter.rst) that passes core dumps of these processes, and the
    ends of their first threads.
    """
    load, equal, equal_x, jump, to_x, give = 0x20, 0x15, 0x1D, 0x05, 0x07, 0x06
    every = 0xFFFFFFFF
    program = [
        (load, 0, 0, _WHAT_AT),
        (equal, 2, 0, socket.htonl(_EXIT)),
        (equal, 6, 0, socket.htonl(_CORE_DUMP)),
        (give, 0, 0, 0),
        (load, 0, 0, _THREAD_AT),
        (to_x, 0, 0, 0),
        (load, 0, 0, _PROCESS_AT),
        (equal_x, 1, 0, 0),
        (give, 0, 0, 0),
        (load, 0, 0, _PROCESS_AT),
    ]
    pids = sorted(watched)
    for begin in range(0, len(pids), 250):  # a jump goes over 255 instructions at most
        some = pids[begin : begin + 250]
        program += [(equal, len(some) - place, 0, socket.htonl(pid)) for place, pid in enumerate(some)]
        program += [(jump, 0, 0, 1), (give, 0, 0, every)]
    program.append((give, 0, 0, 0))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class Handle:
    """A pidfd. ``status`` is known when the process has ended and its parent has taken notice."""

    def __init__(self, pid: int, open_files: OpenFiles) -> None:
        self._descriptor, self._open_files = -1, open_files
        if open_files.left > 0 and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
                open_files.left -= 1
        if self._descriptor >= 0 and self._info() is None:
            self.close()

    def status(self) -> int | None:
        """As of wait(2)."""
        info = self._info()
        return info[1] if info is not None and info[0] & _INFO_EXIT else None

    def _info(self) -> tuple[int, int] | None:
        if self._descriptor < 0:
            return None
        answer = bytearray(_INFO.pack(_INFO_EXIT, 0))
        try:
            fcntl.ioctl(self._descriptor, _GET_INFO, answer)
        except OSError as error:
            # ESRCH: it has ended, and nobody has been told how.
            return (0, 0) if isinstance(error, ProcessLookupError) else None
        mask, status = _INFO.unpack(answer)
        return mask, status

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._open_files.left += 1

    def __del__(self) -> None:
        self.close()
