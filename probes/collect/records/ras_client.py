"""Asks NCCL's RAS for its status: one connection, one question, a deadline, and never anything that changes a job.

The socket is shared by all ranks of a node, and the kernel picks who answers: one that is stopped may be picked, so who
does not say hello within a second is left, and the next connection (another source port) reaches another one.
Source: src/ras/client_support.cc of NCCL 2.24 to 2.30. Python 3.9.

Answers are JSON of NCCL 2.28.7 and later, also as 2.28 writes it (a comma is missing exactly when a rank is), and the
text of 2.24 and later, which reports only the ranks that differ from the others.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, NamedTuple

from mltop.probes.collect.records.pickles import CutOff, Malformed
from mltop.probes.collect.records.values import entries_of, name_text, rank_number, read_json, table_of, whole
from mltop.probes.model.evidence.ras import (
    MOST_COMMUNICATORS,
    MOST_RANKS,
    RasAnswer,
    RasCommunicator,
    RasFormat,
    RasRank,
    RasState,
)
from mltop.probes.model.receipt import MOST_RANK_NUMBERS
from mltop.probes.model.text import clean
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
    if "]" in text:
        host, _, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else str(DEFAULT_PORT)
    else:
        host, _, port = text.rpartition(":") if ":" in text else (text, "", str(DEFAULT_PORT))
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 1 << 16:
        return None
    return Address(host, int(port))


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
    """Every address of the host, of both families, in turn. Whoever runs the job chooses the host, so only this
    machine's addresses count, and only its names are looked up.
    """
    own = socket.gethostname()
    is_own = address.host.partition(".")[0] == own.partition(".")[0]
    flags = 0 if is_own or address.host == DEFAULT_HOST else socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(own if is_own else address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        found = []
    places = list(dict.fromkeys((str(each[4][0]), address.port) for each in found if _is_own(each[0], each[4])))
    if not places:
        raise NoAnswer(f"{clean(address.host, 64)} is no address of this machine")
    for number in range(max(TRIES, len(places))):
        yield places[number % len(places)]


def _is_own(family: int, place: Any) -> bool:
    """Whether the kernel delivers to this address itself: it then sends from the same one, or from the loopback's."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting it sends nothing
            probe.connect(place)
            source = str(probe.getsockname()[0])
    except OSError:  # also of a kernel without IPv6
        return False
    return source == str(place[0]) or ip_address(source.partition("%")[0]).is_loopback


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


_READY, _IN_PROGRESS = 0, 7  # ncclSuccess, ncclInProgress
MOST_KINDS = 32  # of operations
# 2.28.7 and 2.28.9: `"nvml_dev": 1` and on the next line `"status": {`, without a comma between the two.
_NO_COMMA = re.compile(rb'([\d"\]}])([ \t]*\r?\n[ \t]*"\w+"[ \t]*:)')


class Unreadable(Exception):
    """It is no answer of RAS, or half of one; the text says why."""


def parse_answer(content: bytes, kind: RasFormat, *, received_at: float, took_s: float = 0.0) -> RasAnswer:
    """Raises Unreadable."""
    if kind == "text":
        reading = _Reading()
        for line in content.decode("utf-8", "replace").splitlines()[:MOST_LINES]:
            reading.take(line)
        if not reading.version:
            raise Unreadable("its answer is no report of RAS")
        communicators = tuple(comm.made() for comm in reading.comms.values())
        return RasAnswer(reading.version, kind, communicators, received_at, took_s, reading.timeouts)
    top = _decoded(content)
    if not isinstance(top, dict) or not isinstance(top.get("communicators"), list):
        raise Unreadable("its answer is no report of RAS")
    communicators = tuple(map(_communicator, entries_of(top["communicators"], MOST_COMMUNICATORS)))
    timeouts = whole(table_of(top.get("ras")).get("timeouts_count")) or 0
    version = name_text(top.get("nccl_version"), 40)
    return RasAnswer(version, kind, communicators, received_at, took_s, max(0, timeouts))


def _decoded(content: bytes) -> Any:
    try:
        try:
            return read_json(content)
        except Malformed:
            return read_json(_NO_COMMA.sub(rb"\1,\2", content))
    except CutOff:
        raise Unreadable("its answer is cut off in the middle") from None
    except Malformed as why:
        raise Unreadable(f"its answer cannot be read: {why}") from None


def _communicator(told: object) -> RasCommunicator:
    table = table_of(told)
    names = [name_text(table.get(name), 64) for name in ("hash", "secondary_hash")]
    ranks = [*_ranks(table.get("ranks"), is_missing=False), *_ranks(table.get("missing_ranks"), is_missing=True)]
    return RasCommunicator(" ".join(filter(None, names)), rank_number(table.get("size")), tuple(ranks), hash=names[0])


def _ranks(told: object, *, is_missing: bool) -> Iterable[RasRank]:
    for entry in entries_of(told, MOST_RANKS):
        table = table_of(entry)
        number = rank_number(table.get("rank"))
        if number is None:
            continue
        status = table_of(table.get("status"))
        error = whole(status.get("async_error"))
        yield RasRank(
            number,
            name_text(table.get("host"), 64),
            rank_number(table.get("pid")),
            rank_number(table.get("nvml_dev")),
            "gone" if is_missing else _state(status),
            _counts(table.get("collective_counts")),
            error if error not in (_READY, _IN_PROGRESS) else None,
            status.get("unresponsive") is True,
            status.get("considered_dead") is True,
        )


def _state(status: dict[Any, Any]) -> RasState:
    if status.get("abort_flag") is True:
        return "abort"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "finalize"
    init = whole(status.get("init_state"))
    if init in (_READY, None):
        return "running"
    return "init" if init == _IN_PROGRESS else "error"


def _counts(told: object) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(told, dict) or len(told) > MOST_KINDS:
        return None
    counts = [(name_text(kind, 40), whole(count)) for kind, count in told.items()]
    return tuple((kind, count) for kind, count in counts if count is not None and count >= 0)


# The text, line by line: which ranks differ from the others of their communicator. A rank without a line of its own is
# as the most are; a communicator without any line has nothing to be said of it.

MOST_LINES = 1_000_000
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,40})")
_TIMEOUTS = re.compile(r"\s*Encountered (\d{1,9}) communication timeouts?")
_ROW = re.compile(r"\s*(\d{1,9})\s+\d{1,9}\s+\d{1,9}\s+[\d-]{1,20}\s+(\d{1,9})\s+\d{1,9}\s+\w+\s+[\w,]+\s*")
_SECTION = re.compile(r"#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,32})\) (INCOMPLETE|ERROR|MISMATCH)")
_COUNTS_OF = re.compile(r"\s*Communicator ranks have different (?:collective|(\w{1,40})) operation counts")
_STATUS_OF = re.compile(r"\s*Communicator ranks have different status")
_SOME = re.compile(r"\s*(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_SOME_STATUS = re.compile(r"\s*(\d{1,9}) ranks have status (\w{1,20})")
_RANK = re.compile(r"\s*Rank (\d{1,9})\b(.*)")
_LAUNCHED = re.compile(r" has (?:launched up to operation (\d{1,18})|not launched any operations)")
_HAS_STATUS = re.compile(r" has status (\w{1,20})")
_PLACE = re.compile(r" -- GPU (\d[^-]{0,40}) managed by process (\d{1,10}) on node (\S{1,64})")
_NVML = re.compile(r"\d+")
_STATES: dict[str, RasState] = {"INIT": "init", "RUNNING": "running", "FINALIZE": "finalize", "ABORT": "abort"}
_ALL_KINDS = "operations"  # 2.24 counts them together


@dataclass
class _Comm:
    name: str
    size: int | None
    ranks: dict[int, RasRank] = field(default_factory=dict)
    counts: dict[int, dict[str, int]] = field(default_factory=dict)  # of ranks with lines of their own
    usual: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind → (count, ranks that have it)

    def made(self) -> RasCommunicator:
        usual = {kind: count for kind, (count, _) in self.usual.items()}
        ranks = []
        for number, rank in sorted(self.ranks.items()):
            counts = {**usual, **self.counts.get(number, {})}
            is_told = rank.state != "gone" and self.usual
            ranks.append(replace(rank, counts=tuple(sorted(counts.items())) if is_told else None))
        others = min((having for _, having in self.usual.values()), default=0)
        return RasCommunicator(
            self.name, self.size, tuple(ranks), tuple(sorted(usual.items())) or None, others, self.name
        )


class _Reading:
    """``version``: NCCL's, "" where it is no report."""

    def __init__(self) -> None:
        self.version, self.timeouts = "", 0
        self.comms: dict[tuple[str, str], _Comm] = {}
        self._sizes: dict[str, int] = {}  # of the table's groups
        self._comm: _Comm | None = None
        self._section = self._kind = ""
        self._value: int | None = None  # that the ranks below it have
        self._state: RasState | None = None

    def take(self, line: str) -> None:
        if match := _VERSION.match(line):
            self.version = self.version or match[1]
        elif match := _TIMEOUTS.match(line):
            self.timeouts = max(self.timeouts, int(match[1]))
        elif match := _SECTION.match(line):
            made = _Comm(f"0x{match[3].lstrip('0') or '0'}", self._sizes.get(match[1]))
            self._comm = self.comms.setdefault((match[1], match[2]), made)
            self._section, self._kind, self._value, self._state = match[4], "", None, None
        elif self._comm is None:
            if match := _ROW.fullmatch(line):
                self._sizes[match[1]] = int(match[2])
        else:
            self._take_of(self._comm, line)

    def _take_of(self, comm: _Comm, line: str) -> None:
        if match := _COUNTS_OF.match(line):
            self._kind, self._value, self._state = match[1] or _ALL_KINDS, None, None
        elif _STATUS_OF.match(line):
            self._kind, self._value, self._state = "", None, None
        elif self._kind and (match := _SOME.match(line)):
            self._value = int(match[2] or 0)
            if int(match[1]) > comm.usual.get(self._kind, (0, 0))[1]:
                comm.usual[self._kind] = (self._value, int(match[1]))
        elif match := _SOME_STATUS.match(line):
            self._state = _STATES.get(match[2], "gone")
        elif match := _RANK.match(line):
            self._take_rank(comm, int(match[1]), match[2])

    def _take_rank(self, comm: _Comm, number: int, rest: str) -> None:
        if number > MOST_RANK_NUMBERS:
            return
        place, launched, status = _PLACE.search(rest), _LAUNCHED.match(rest), _HAS_STATUS.match(rest)
        rank = comm.ranks.get(number, RasRank(number))
        if place is not None:
            device = _NVML.findall(place[1])[-1:]  # "1 (NVML 3)" where the two differ
            rank = replace(rank, host=place[3], pid=int(place[2]), nvml_dev=int(device[0]) if device else None)
        if self._section == "INCOMPLETE":
            rank = replace(rank, state="gone", unresponsive=True)
        elif self._section == "ERROR":
            rank = replace(rank, state="error")
        elif self._kind:
            value = int(launched[1] or 0) if launched is not None else self._value
            if value is not None:
                comm.counts.setdefault(number, {})[self._kind] = value
        elif status is not None or self._state is not None:
            state = _STATES.get(status[1], "gone") if status is not None else self._state
            rank = replace(rank, state=state or "running")
        comm.ranks[number] = rank
