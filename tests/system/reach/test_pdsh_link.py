"""A dead link seen from the far end, where nobody sends anything: what the kernel tells about the connection."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mltop.probes.agent.caller import TcpLink
from tests.hosts.cluster import Hosts
from tests.hosts.host import Host
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts

# Writes to its caller like an agent, and what it sees of the link into a file.
PROGRAM = """
import os, sys, time
from mltop.probes.agent.caller import TcpLink
link = TcpLink()
while True:
    print("x" * 1000, flush=True)
    with open("/tmp/seen.new", "w") as file:
        file.write(f"{link.unanswered_s(time.monotonic())} {time.monotonic()}")
    os.rename("/tmp/seen.new", "/tmp/seen")
    time.sleep(0.1)
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(1) as cluster:
        yield cluster


@pytest.fixture
def watched(hosts: Hosts) -> Iterator[Host]:
    """h01, where the program runs by ssh from the login node."""
    host = hosts["h01"]
    (host.home / "watch.py").write_text(PROGRAM)
    path = hosts.mltop_environment()["PYTHONPATH"]
    ssh = hosts.login.start(
        ["ssh", "-o", "BatchMode=yes", "h01", f"PYTHONPATH={path} {sys.executable} watch.py"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: seen(host), what="the program")
        yield host
    finally:
        hosts.login.kill_strangers()
        ssh.wait(10)


def seen(host: Host) -> tuple[float, float] | None:
    """How long nothing was acknowledged, and when that was looked at."""
    try:
        unanswered_s, now = host.inside("/tmp/seen").read_text().split()
    except FileNotFoundError:
        return None
    return float(unanswered_s), float(now)


def unanswered_s(host: Host) -> float:
    found = seen(host)
    assert found
    return found[0]


def test_a_cut_link_is_seen_from_its_far_end_and_so_is_its_return(watched: Host) -> None:
    assert unanswered_s(watched) == 0.0
    watched.cut_link()
    wait_until(lambda: unanswered_s(watched) > 3.0, what="the time that nobody answers")
    before = seen(watched)
    wait_until(lambda: unanswered_s(watched) > 4.0, what="more of it")
    after = seen(watched)
    assert before and after
    assert after[0] - before[0] == pytest.approx(after[1] - before[1], abs=0.01)
    watched.restore_link()
    wait_until(lambda: unanswered_s(watched) == 0.0, 60, "an answer")


@pytest.mark.parametrize("connection", ["", "garbage", "a b c d", "fe80::1%eth0 1 fe80::2%eth0 22", "::1 1 ::1 2"])
def test_no_connection_is_no_dead_one(connection: str) -> None:
    link = TcpLink(connection)
    assert [link.unanswered_s(now) for now in (1.0, 50.0)] == [0.0, 0.0]


def test_a_reader_that_is_only_slow_is_not_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, (host, port) = server.accept()
        with peer:
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    peer.send(b"x" * 65536)
            link = TcpLink(f"{host} {port} 127.0.0.1 {server.getsockname()[1]}")
            assert [link.unanswered_s(now) for now in (1.0, 50.0)] == [0.0, 0.0]
            assert client.recv(1) == b"x"
