"""Our client beside a fake of NCCL's RAS that speaks every dialect, or badly, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from mltop.probes.collect.records.ras_client import Address, NoAnswer, address_of, ask_ras
from tests.fakes.ras import FakeRas, Serve, counts_of, dripping, json_report, saying, speaking, stopped, text_report
from tests.ports import free_ports

COMM = counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)})
HARMLESS = {"CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "STATUS", "VERBOSE STATUS"}


@pytest.fixture
def port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.mark.parametrize(
    ("version", "json_known"),
    [("2.24.3", False), ("2.26.5", False), ("2.28.9", True), ("2.29.2", True), ("2.30.7", True), ("2.31.0", True)],
)
def test_every_dialect(port: int, version: str, json_known: bool) -> None:
    report = json_report([COMM], version) if json_known else text_report([COMM], version)
    with FakeRas(port, [speaking(report, json_known=json_known)]) as fake:
        answer = ask_ras(Address("localhost", port))
    assert (answer.nccl_version, answer.format) == (version, "json" if json_known else "text")
    total = {rank.rank: rank.total for rank in answer.communicators[0].ranks}[5]
    assert total == (69 if version == "2.26.5" else 71)  # its text tells of the kinds that differ only
    assert {*fake.asked} <= HARMLESS
    assert fake.connections == 1


def test_a_rank_that_is_stopped_is_passed_by(port: int) -> None:
    with FakeRas(port, [stopped, stopped, speaking(json_report([COMM]), json_known=True)]) as fake:
        assert ask_ras(Address("127.0.0.1", port)).communicators
        assert fake.connections == 3


def test_nobody_listens(port: int) -> None:
    with pytest.raises(NoAnswer, match=f"cannot connect to port {port}"):
        ask_ras(Address("localhost", port))


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "is no RAS"),
        (saying(b"\x00" * 4096), "no answer of RAS"),
        (saying(b""), "closed the connection"),
        (speaking(json_report([COMM])[:500], json_known=True), "cut off"),
        (speaking("", json_known=True), "cut off"),
        (speaking("Internal error\n", json_known=False), "no report of RAS"),
        (speaking("x" * (17 << 20), json_known=True), "larger than"),
    ],
)
def test_bad_answers(port: int, serve: Serve, why: str) -> None:
    with FakeRas(port, [serve]), pytest.raises(NoAnswer, match=why) as told:
        ask_ras(Address("127.0.0.1", port))
    assert "\n" not in str(told.value)


def test_a_drip_ends_at_the_deadline(port: int) -> None:
    began = time.monotonic()
    with FakeRas(port, [dripping(json_report([COMM]), 0.5)]), pytest.raises(NoAnswer):
        ask_ras(Address("127.0.0.1", port), 2.0)
    assert time.monotonic() - began < 30.0


def test_all_stopped_is_no_endless_wait(port: int) -> None:
    done = threading.Event()

    def ask() -> None:
        with pytest.raises(NoAnswer):
            ask_ras(Address("127.0.0.1", port))
        done.set()

    with FakeRas(port, [stopped]):
        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(60.0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("localhost", 28028)), ("localhost:1234", ("localhost", 1234)), ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 28028)), ("node7", ("node7", 28028)), ("x:0", None), ("x:99999999999", None),
        (":28028", None), ("x:-1", None),
    ],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int] | None) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("host", ["192.0.2.77", "2001:db8::1", "::ffff:198.51.100.7", "ras.example.com", "224.0.0.1"])
def test_nobody_outside_of_this_machine_is_asked(host: str) -> None:
    """A job's user chooses the address: it makes no agent of root's connect there."""
    code = (
        "import sys\n"
        "from mltop.probes.collect.records.ras_client import Address, NoAnswer, ask_ras\n"
        "def seen(event, args):\n"
        "    if event == 'socket.connect' and args[0].type != 2: print('connects', args[1])\n"
        "sys.addaudithook(seen)\n"
        f"try: ask_ras(Address({host!r}, 28028))\n"
        "except NoAnswer as why: print(why)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{host} is no address of this machine\n"
