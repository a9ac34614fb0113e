"""Ports that tests give to what they start (tests/ports.py)."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.ports import BLOCK, EPHEMERAL, free_port, free_ports


def of_the_kernel(port: int) -> bool:
    """Whether it may give this port to any connection."""
    low, high = map(int, EPHEMERAL.read_text().split())
    return low <= port <= high


def test_neighbours_that_no_connection_gets() -> None:
    given = [free_ports(4) for _ in range(10)]
    assert all(ports == list(range(ports[0], ports[0] + 4)) for ports in given)
    assert len({port for ports in given for port in ports}) == 40
    assert not any(of_the_kernel(port) for ports in given for port in ports)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_what_is_used_is_passed_over(kind: socket.SocketKind, address: str) -> None:
    used = free_ports(2)[1]
    with socket.socket(socket.AF_INET, kind) as user:
        user.bind((address, used))
        everything = {port for _ in range(BLOCK) for port in free_ports(2)}
    assert used not in everything and len(everything) > BLOCK / 2


def test_two_processes_have_none_in_common() -> None:
    ours = {free_port() for _ in range(BLOCK)}
    program = f"from tests.ports import *; print(*(free_port() for _ in range({BLOCK}))); input()"
    others = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    theirs = []
    for other in others:
        assert other.stdout is not None
        theirs.append(set(map(int, other.stdout.readline().split())))
    for other in others:
        other.communicate("\n", 30)
    assert ours and all(theirs) and len(ours) + sum(map(len, theirs)) == len(ours.union(*theirs))
