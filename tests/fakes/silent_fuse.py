"""A filesystem of our own that answers when it is told to: FUSE's protocol in as few lines as a mount needs.

Run it in a process of its own after ``private_mounts()``: nobody else on the machine then sees the mount, and the
kernel takes it away with the process. Layouts: linux/fuse.h, version 7.31.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_INIT, _STATFS, _INTERRUPT = 26, 17, 36
_IN_HEADER = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT_HEADER = struct.Struct("=IiQ")  # length, error, unique
_INIT_OUT = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0)
_SMALLEST_READ = 8192
BLOCKS, AVAILABLE, FILES, FREE, BLOCK_BYTES = 1000, 250, 100, 40, 4096
_STATFS_OUT = struct.pack("=QQQQQIIII24x", BLOCKS, AVAILABLE, AVAILABLE, FILES, FREE, BLOCK_BYTES, 255, BLOCK_BYTES, 0)


# udev lets everybody open it; on a machine without udev only root may.
needs_fuse = pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse that this user may open: nothing else hangs so"
)


def private_mounts() -> None:
    """This process and those it starts get mounts of their own; works without root where user namespaces do."""
    uid, gid = os.geteuid(), os.getegid()
    _checked("unshare", _LIBC.unshare(_CLONE_NEWNS | (0 if uid == 0 else _CLONE_NEWUSER)))
    if uid != 0:
        for name, text in (("uid_map", f"0 {uid} 1"), ("setgroups", "deny"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _checked("mount", _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))


class SilentFuse:
    """A mounted filesystem. ``accepts``: it takes statvfs's request, after which not even SIGKILL ends who asked."""

    def __init__(self, path: str, accepts: bool = True) -> None:
        self._fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        _checked("mount", _LIBC.mount(b"server:/data", path.encode(), b"fuse.silent", ctypes.c_ulong(0), options))
        self._accepts = threading.Event()
        self._answers = threading.Event()
        self._waiting: list[int] = []
        self._lock = threading.Lock()
        if accepts:
            self._accepts.set()
        threading.Thread(target=self._serve, daemon=True).start()

    def answer(self) -> None:
        """From now on, and what was asked before."""
        with self._lock:
            self._answers.set()
            for unique in self._waiting:
                self._reply(unique, _STATFS_OUT)
            self._waiting.clear()
        self._accepts.set()

    def _serve(self) -> None:
        first = True
        while first or self._accepts.wait():
            request = os.read(self._fd, _SMALLEST_READ)
            _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
            first = False
            if opcode == _INIT:
                self._reply(unique, _INIT_OUT)
            elif opcode == _STATFS:
                with self._lock:
                    if self._answers.is_set():
                        self._reply(unique, _STATFS_OUT)
                    else:
                        self._waiting.append(unique)
            elif opcode != _INTERRUPT:
                self._reply(unique, b"", -38)  # ENOSYS

    def _reply(self, unique: int, body: bytes, error: int = 0) -> None:
        try:
            os.write(self._fd, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), error, unique) + body)
        except FileNotFoundError:
            return  # who asked was interrupted meanwhile


def _checked(call: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
