"""The child that imports torch once and forks the ranks.

It stays single-threaded, so every fork is safe, also that of a rank in place of a dead one. It serves its launcher
over a SEQPACKET socket, one JSON object per packet:
    -> {"fork": local rank, "setup": {...}} with two descriptors: the rank's channel and its output
    -> {"fork": STORE, "store": [address, port]} with the listening socket       -> {"kill": [local ranks]}
    <- {"imported": {...}} or {"failed": why}     <- {"forked": local, "pid"}     <- {"ended": local, "status"}
The end of the socket ends it, and with it every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mltop.probes.active.all_reduce import rank
from mltop.probes.active.all_reduce.options import DEFAULTS
from mltop.probes.active.all_reduce.rank import Progress
from mltop.probes.active.torch_support import Unusable, import_torch
from mltop.probes.system.spawn import die_with_parent

PACKET_BYTES = 1 << 17
_IOLBF = 1  # stdio.h
STORE = -1  # the store's server, by the place of a local rank


def fork_importer(progress: Progress) -> tuple[int, socket.socket, int]:
    """The importer's pid, the launcher's end of its socket, and the end of a pipe from which what it prints is read.

    Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, printed = os.pipe()
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        os.close(printed)
        return pid, ours, output
    code = 1
    try:
        begin_child(launcher, printed)
        ours.close()
        os.close(output)
        _Importer(theirs, progress).run()
        code = 0
    except BaseException:  # noqa: BLE001 - it would go on as a second launcher
        traceback.print_exc()
    finally:
        os._exit(code)


def begin_child(parent: int, output: int) -> None:
    """First thing after a fork: die with ``parent``; stdin is empty, what is printed goes to ``output``."""
    with contextlib.suppress(OSError):  # a sandbox may refuse it: the end of the socket still ends us
        die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(empty)
    os.close(output)


class _Importer:
    def __init__(self, control: socket.socket, progress: Progress) -> None:
        self._control = control
        self._progress = progress
        self._children: dict[int, int] = {}  # pid -> local rank

    def run(self) -> None:
        os.environ.update({name: value for name, value in DEFAULTS.items() if name not in os.environ})
        began = time.monotonic()
        try:
            about = about_torch()
        except Unusable as error:
            self._say({"failed": error.why})
            return
        self._say({"imported": {**about, "import_s": round(time.monotonic() - began, 3)}})
        gc.freeze()  # the collector would otherwise copy every page of torch into every rank
        self._serve()

    def _serve(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._control.fileno(), woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
                if not packet:
                    break
                order = json.loads(packet)
                if "kill" in order:
                    self._kill(pid for pid, local in self._children.items() if local in order["kill"])
                else:
                    self._fork(order, descriptors, (woken, wake))
        self._kill(self._children)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _kill(self, pids: Iterable[int]) -> None:
        """Ours until they are reaped: no number means another process."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, order: dict[str, Any], descriptors: list[int], private: tuple[int, int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(order, descriptors, parent, private)
        self._children[pid] = order["fork"]
        for descriptor in descriptors:
            os.close(descriptor)
        self._say({"forked": order["fork"], "pid": pid})

    def _become(self, order: dict[str, Any], descriptors: list[int], parent: int, private: tuple[int, int]) -> NoReturn:
        """Makes the new child a rank or the store, until its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in private:
                os.close(descriptor)
            self._control.close()
            is_store = order["fork"] == STORE
            begin_child(parent, os.dup(2) if is_store else descriptors[1])
            line_buffered()
            if is_store:
                address, port = order["store"]
                serve_store(address, port, descriptors[0])
            else:
                setup = rank.Setup(**order["setup"])
                os.environ.update(setup.env)
                rank.serve(socket.socket(fileno=descriptors[0]), self._progress, setup)
            code = 0
        except BaseException:  # noqa: BLE001 - it would go on as a second importer
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._say({"ended": self._children.pop(pid, STORE), "status": status})

    def _say(self, packet: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone: so are we, at once
            self._control.send(json.dumps(packet).encode())


def about_torch() -> dict[str, Any]:
    """What the ready event says of torch. Raises Unusable."""
    torch, dist = import_torch(), import_torch("torch.distributed")
    rank.prepare()
    available = dist.is_available()
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "gloo": bool(available and dist.is_gloo_available()),
        "nccl": bool(available and dist.is_nccl_available()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
    }


def line_buffered() -> None:
    """NCCL writes to C's stdout, which is a pipe here: its last lines, of a failure, would be lost in a buffer."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, ctypes.c_int(_IOLBF), ctypes.c_size_t(0))


def serve_store(address: str, port: int, listening: int) -> NoReturn:
    """The key-value store in which the ranks find each other, until it is killed. It takes over the socket: one that
    torch opens listens on every interface.
    """
    import torch.distributed as dist

    make = partial(dist.TCPStore, address, port, None, True, wait_for_workers=False, master_listen_fd=listening)
    try:
        _store = make()
    except NotImplementedError:  # torch 2.4 to 2.7: not with libuv, their default
        _store = make(use_libuv=False)
    while True:
        signal.pause()
