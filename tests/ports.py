"""Ports of this machine that stay free until what a test starts listens there.

One that the kernel chose (bind to port 0) and that was let go is among those it gives to connections: any test may have
it meanwhile. These lie outside of that range, and no two processes take theirs from the same block.
Python 3.10.
"""

from __future__ import annotations

import random
import socket
from functools import cache
from pathlib import Path
from threading import Lock

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, HIGHEST = 10_000, 65_535  # below: services that a machine may start at any time
BLOCK = 200
_LOCK = Lock()


class _Block:
    """``BLOCK`` neighbouring ports that are this process's while it lives; each is given again after all others."""

    def __init__(self) -> None:
        firsts = _firsts_of_blocks()
        random.shuffle(firsts)
        self._at = 0
        for self._first in firsts:
            # Its name is the claim: of a network namespace, as ports are, and gone with the process.
            self._claim = socket.socket(socket.AF_UNIX)
            try:
                self._claim.bind(f"\0mltop-tests-ports-{self._first}")
            except OSError:
                self._claim.close()
                continue
            return
        raise AssertionError("all blocks of ports are taken: do that many tests run?")

    def take(self, count: int) -> list[int]:
        for _ in range(BLOCK):
            if self._at + count > BLOCK:
                self._at = 0
            ports = [self._first + self._at + number for number in range(count)]
            used = [number for number, port in enumerate(ports) if not _is_free(port)]
            self._at += used[-1] + 1 if used else count
            if not used:
                return ports
        raise AssertionError(f"no {count} of the ports from {self._first} to {self._first + BLOCK} are free")


@cache
def _block() -> _Block:
    return _Block()


def free_ports(count: int) -> list[int]:
    """Neighbours that nobody uses, for TCP or UDP; ``count`` <= BLOCK."""
    with _LOCK:
        return _block().take(count)


def free_port() -> int:
    return free_ports(1)[0]


def _firsts_of_blocks() -> list[int]:
    """Those below the kernel's range or above it: where there are more. Raises AssertionError where it has them all."""
    low, high = map(int, EPHEMERAL.read_text().split())
    below, above = range(LOWEST, low - BLOCK + 1, BLOCK), range(high + 1, HIGHEST - BLOCK + 2, BLOCK)
    firsts = list(max(below, above, key=len))
    assert firsts, f"{EPHEMERAL} is {low} to {high}: no port beyond it is left for the tests"
    return firsts


def _is_free(port: int) -> bool:
    """On all addresses."""
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.bind(("", port))
    except OSError:
        return False
    return True
