"""A process whose memory never answers: `python -m tests.fakes.silent_memory FOLDER` serves a file by FUSE without
giving its pages, and starts a rank that has one of them in its memory and waits for it with the memory's lock held.

The rank's pid is printed once reads of its environ, cmdline and maps wait forever. The end of this process frees all.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

from tests.fakes import silent_fuse

_GETATTR, _LOOKUP, _OPEN, _READ, _FORGET = 3, 1, 14, 15, 2
_BYTES = 65536
_RANK = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(65536), 1, 2, os.open(sys.argv[1], os.O_RDONLY), ctypes.c_long(0))
memory = os.open("/proc/self/mem", os.O_RDONLY)
threading.Thread(target=lambda: os.pread(memory, 100, page), daemon=True).start()
print("ready", flush=True)
time.sleep(0.5)
libc.mmap(None, ctypes.c_size_t(4096), 1, 34, -1, ctypes.c_long(0))
"""


def _attributes(node: int) -> bytes:
    mode = 0o40755 if node == 1 else 0o100755
    return struct.pack("=QQQQQQIIIIIIIIII", node, _BYTES, 128, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(fuse: int) -> None:
    while True:
        _, opcode, unique, node, *_ = struct.unpack_from("=IIQQIIII", os.read(fuse, 1 << 20))
        answers = {
            26: silent_fuse._INIT_OUT,
            _LOOKUP: struct.pack("=QQQQII", 2, 0, 1000, 1000, 0, 0) + _attributes(2),
            _GETATTR: struct.pack("=QII", 1000, 0, 0) + _attributes(node),
            _OPEN: struct.pack("=QII", 1, 0, 0),
        }
        if opcode in (_READ, _FORGET, 36):
            continue
        body, error = answers.get(opcode, b""), 0 if opcode in answers else -38
        os.write(fuse, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


def main(folder: str) -> None:
    silent_fuse.private_mounts()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    mount = ctypes.CDLL(None).mount
    assert mount(b"server:/data", folder.encode(), b"fuse.silent", ctypes.c_ulong(0), options) == 0
    threading.Thread(target=_serve, args=(fuse,), daemon=True).start()
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    words = [sys.executable, "-c", _RANK, f"{folder}/libtorch_python.so"]
    rank = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
    assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
    time.sleep(1.0)
    print(rank.pid, flush=True)
    sys.stdin.read()
    rank.kill()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
