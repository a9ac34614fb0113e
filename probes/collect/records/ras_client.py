"""Asks NCCL's RAS for its status: one connection, one question, a deadline, and never anything that changes a job.

The socket is shared by all ranks of a node, and the kernel picks who answers: one that is stopped may be picked, so who
does not say hello within a second is left, and the next connection (another source port) reaches another one.
Source: src/ras/client_support.cc of NCCL 2.24 to 2.30. Python 3.9.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from mltop.probes.collect.records.ras_report import Unreadable, parse_answer
from mltop.probes.model.evidence.ras import RasAnswer, RasFormat
from mltop.probes.model.units import size_words

DEFAULT_HOST, DEFAULT_PORT = "localhost", 28028
HELLO_S = 1.0  # to connect, and for the first line
ANSWER_S = 12.0  # RAS itself gives up collecting after ten
TRIES = 8
MOST_BYTES = 16 << 20
_MOST_LINE = 1024
_PEERS_WAIT = 3  # whole seconds: versions before 2.31 take no others
# All that is ever sent.
_HELLO, _TIMEOUT, _AS_JSON = "CLIENT PROTOCOL 2", f"TIMEOUT {_PEERS_WAIT}", "SET FORMAT json"
_STATUS: dict[RasFormat, str] = {"json": "STATUS", "text": "VERBOSE STATUS"}


class NoAnswer(Exception):
    """RAS cannot be used; the text says why. It says nothing of the job."""


class Address(NamedTuple):
    host: str
    port: int


def address_of(text: str) -> Address | None:
    """``host:port``, ``[v6]:port`` or a host alone, as NCCL_RAS_ADDR has it; its default for ""; None: it is none."""
    if not text:
        return Address(DEFAULT_HOST, DEFAULT_PORT)
    host, separator, port = text.rpartition(":") if "]" not in text else _in_brackets(text)
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 1 << 16:
        return None
    return Address(host, int(port))


def _in_brackets(text: str) -> tuple[str, str, str]:
    host, _, rest = text[1:].partition("]")
    return (host, ":", rest[1:]) if rest.startswith(":") else (host, ":", str(DEFAULT_PORT))


def ask_ras(address: Address, answer_s: float = ANSWER_S) -> RasAnswer:
    """One answer, within ``answer_s``. Raises NoAnswer."""
    until = time.monotonic() + answer_s
    failures: list[str] = []
    for place in _places(address):
        if time.monotonic() > until:
            break
        try:
            connection = socket.create_connection(place, timeout=HELLO_S)
        except OSError as error:
            failures.append(f"cannot connect to port {address.port}: {error.strerror or error}")
            continue
        with closing(connection):
            talk = _Talk(connection, until)
            try:
                hello = talk.ask(_HELLO, HELLO_S)
            except NoAnswer as why:  # a rank that is stopped
                failures.append(str(why))
                continue
            if not hello.startswith("SERVER PROTOCOL"):
                raise NoAnswer(f"what listens on port {address.port} is no RAS")
            return _status(talk)
    raise NoAnswer(failures[-1] if failures else "no address to connect to")


def _places(address: Address) -> Iterator[tuple[str, int]]:
    """Every address of the host, of both families, in turn."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoAnswer(f"the address of RAS cannot be found: {error}") from None
    places = list(dict.fromkeys((str(each[4][0]), address.port) for each in found))
    for number in range(max(TRIES, len(places))):
        yield places[number % len(places)]


def _status(talk: _Talk) -> RasAnswer:
    began = time.monotonic()
    talk.ask(_TIMEOUT)
    kind: RasFormat = "json" if talk.ask(_AS_JSON).startswith("OK") else "text"
    content = talk.rest(_STATUS[kind])
    try:
        return parse_answer(content, kind, received_at=time.time(), took_s=time.monotonic() - began)
    except Unreadable as why:
        raise NoAnswer(str(why)) from None


class _Talk:
    """One connection. ``until``: monotonic s."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until = connection, until
        self._received = b""

    def ask(self, command: str, limit_s: float = ANSWER_S) -> str:
        """The line that it answers."""
        until = min(self._until, time.monotonic() + limit_s)
        self._send(command)
        while b"\n" not in self._received:
            if len(self._received) > _MOST_LINE:
                raise NoAnswer("what it says is no answer of RAS")
            more = self._more(until)
            if not more:
                raise NoAnswer("it closed the connection before it answered")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self, command: str) -> bytes:
        """All that it says until it closes the connection."""
        self._send(command)
        pieces, size = [self._received], len(self._received)
        while more := self._more(self._until):
            pieces.append(more)
            size += len(more)
            if size > MOST_BYTES:
                raise NoAnswer(f"its answer is larger than {size_words(MOST_BYTES)}")
        return b"".join(pieces)

    def _send(self, command: str) -> None:
        try:
            self._connection.sendall(f"{command}\n".encode())
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error.strerror or error}") from None

    def _more(self, until: float) -> bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise NoAnswer("it did not answer in time")
        self._connection.settimeout(left)
        try:
            return self._connection.recv(1 << 16)
        except socket.timeout:  # TimeoutError itself from Python 3.10 on
            raise NoAnswer("it did not answer in time") from None
        except OSError as error:
            raise NoAnswer(f"the connection broke: {error.strerror or error}") from None
