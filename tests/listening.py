"""What processes listen on, by their own open sockets (proc(5)), and not by what they were told."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

_LISTEN = "0A"  # include/net/tcp_states.h


@dataclass(frozen=True)
class Listening:
    """``address`` "0.0.0.0" or "::": every one of the machine."""

    pid: int
    address: str
    port: int


def listening(pids: Iterable[int], proc: Path = Path("/proc")) -> set[Listening]:
    """Of TCP. A process that ends meanwhile has none."""
    found = set()
    for pid in pids:
        try:
            inodes = set(map(_target, (proc / str(pid) / "fd").iterdir()))
            lines = [line for name in ("tcp", "tcp6") for line in _lines(proc / str(pid) / "net" / name)]
        except OSError:
            continue
        for words in lines:
            if words[3] == _LISTEN and f"socket:[{words[9]}]" in inodes:
                address, _, port = words[1].partition(":")
                found.add(Listening(pid, _text(address), int(port, 16)))
    return found


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []


def _text(address: str) -> str:
    """The kernel prints each 32 bits in the machine's order."""
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    packed = ipaddress.ip_address(b"".join(words))
    return str(getattr(packed, "ipv4_mapped", None) or packed)


@dataclass
class Watch:
    """Looks all the time at what the processes that ``pids`` gives listen on, until the end of the block."""

    pids: Callable[[], Iterable[int]]
    seen: set[Listening] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            self.seen |= listening(self.pids())
            self._over.wait(0.002)

    def addresses(self) -> set[str]:
        return {one.address for one in self.seen}
