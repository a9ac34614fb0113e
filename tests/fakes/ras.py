"""A fake of NCCL's RAS socket: answers as its versions do, or badly. It notes every line that it is sent.

The reports follow src/ras/client_support.cc of NCCL 2.24.3, 2.26.5, 2.28.9 and 2.30.7.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass
class Rank:
    """``counts``: of KINDS."""

    rank: int
    host: str = "10.0.0.1"
    pid: int = 100
    dev: int = 0
    counts: Sequence[int] = (2, 0, 0, 0, 70)
    init_state: int = 0
    abort: bool = False
    missing: bool = False
    unresponsive: bool = False


@dataclass
class Comm:
    ranks: Sequence[Rank]
    hash: int = 0x1A2B
    size: int | None = None


def json_report(comms: Sequence[Comm], version: str = "2.30.7", timeouts: int = 0) -> str:
    """2.28.7 and 2.28.9 forget a comma where a rank is missing."""
    top = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13010,
        "timestamp": "2026-11-02 10:00:05",
        "communicators_count": len(comms),
        "communicators": [_comm(comm) for comm in comms],
        "ras": {"collection_time_sec": 0.004, "timeouts_count": timeouts},
    }
    report = json.dumps(top, indent=2)
    if version.startswith("2.28"):
        lines = report.split("\n")
        is_missing = False
        for number, line in enumerate(lines):
            is_missing = is_missing or '"missing_ranks": [' in line
            if is_missing and '"nvml_dev"' in line:
                lines[number] = line.rstrip(",")
            is_missing = is_missing and not line.startswith("      ]")
        report = "\n".join(lines)
    return report + "\n"


def _comm(comm: Comm) -> dict[str, Any]:
    there, missing = [r for r in comm.ranks if not r.missing], [r for r in comm.ranks if r.missing]
    return {
        "hash": f"0x{comm.hash:x}",
        "secondary_hash": "0x3c:0x4d",
        "size": comm.size or len(comm.ranks),
        "ranks_count": len(there),
        "missing_ranks_count": len(missing),
        "ranks": [{**_place(rank), "status": _status(rank), "collective_counts": _counts(rank)} for rank in there],
        "missing_ranks": [
            {**_place(rank), "status": {"unresponsive": rank.unresponsive, "considered_dead": False}}
            for rank in missing
        ],
    }


def _place(rank: Rank) -> dict[str, Any]:
    return {"rank": rank.rank, "host": rank.host, "pid": rank.pid, "cuda_dev": rank.dev, "nvml_dev": rank.dev}


def _status(rank: Rank) -> dict[str, Any]:
    return {"init_state": rank.init_state, "async_error": 0, "finalize_called": False, "destroy_flag": False,
            "abort_flag": rank.abort}  # fmt: skip


def _counts(rank: Rank) -> dict[str, int]:
    return dict(zip(KINDS, rank.counts, strict=True))


def text_report(comms: Sequence[Comm], version: str = "2.26.5") -> str:
    """Verbose status. 2.24 counts all kinds together."""
    lines = [f"NCCL version {version} compiled with CUDA 12.4", "CUDA runtime version 12040, driver version 12040", "",
             "Job summary", "===========", "", "  Nodes  Processes         GPUs  Processes     GPUs",
             "(total)   per node  per process    (total)  (total)", "      1          4            1        4      4",
             "", "Communicators... (0.00s)", "=============", "",
             "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
             "    #  in group  per comm  per node  per comm  in group"]  # fmt: skip
    for number, comm in enumerate(comms):
        size, errors = comm.size or len(comm.ranks), _errors(comm)
        lines.append(f"{number:5d}  {1:8d}  {1:8d}  {size:8d}  {size:8d}  {size:8d}  {'RUNNING':>8s}  {errors:>6s}")
    lines += ["", "Errors", "======", ""]
    for number, comm in enumerate(comms):
        missing = [rank for rank in comm.ranks if rank.missing]
        if missing:
            lines.append(f"#{number}-0 ({comm.hash:016x}) INCOMPLETE")
            lines.append(f"  Missing communicator data from {len(missing)} rank{'s' if missing[1:] else ''}")
            lines += [f"  Rank {rank.rank} -- {_managed(rank)}" for rank in missing] + [""]
    lines += ["Warnings", "========", ""]
    for number, comm in enumerate(comms):
        if "MISMATCH" in _errors(comm):
            lines.append(f"#{number}-0 ({comm.hash:016x}) MISMATCH")
            lines += _mismatch(comm, by_kind=not version.startswith("2.24"))
    return "\n".join(lines) + "\n"


def _errors(comm: Comm) -> str:
    counts = {tuple(rank.counts) for rank in comm.ranks if not rank.missing}
    errors = ["INCOMPLETE"] if any(rank.missing for rank in comm.ranks) else []
    return ",".join([*(["MISMATCH"] if len(counts) > 1 else []), *errors]) or "OK"


def _managed(rank: Rank) -> str:
    return f"GPU {rank.dev} (NVML {rank.dev}) managed by process {rank.pid} on node {rank.host}"


def _mismatch(comm: Comm, *, by_kind: bool) -> list[str]:
    there = [rank for rank in comm.ranks if not rank.missing]
    values = {kind: [rank.counts[at] for rank in there] for at, kind in enumerate(KINDS)}
    if not by_kind:
        values = {"collective": [sum(rank.counts) for rank in there]}
    lines = []
    for kind, of_ranks in values.items():
        if len(set(of_ranks)) == 1:
            continue
        lines.append(f"  Communicator ranks have different {kind} operation counts")
        for value in sorted(set(of_ranks), key=lambda value: -of_ranks.count(value)):
            having = [rank for rank, count in zip(there, of_ranks, strict=True) if count == value]
            launched = f"launched up to operation {value}" if value else "not launched any operations"
            if len(having) == 1:
                lines.append(f"  Rank {having[0].rank} has {launched} -- {_managed(having[0])}")
                continue
            lines.append(f"  {len(having)} ranks have {launched}")
            if len(having) < len(there) / 2:
                lines += [f"  Rank {rank.rank} -- {_managed(rank)}" for rank in having]
        lines.append("")
    return lines


Serve = Callable[["FakeRas", socket.socket], None]


@dataclass
class FakeRas:
    """Listens on ``port`` of 127.0.0.1 until it is closed. Each connection is served by the next of ``serves``, the
    last of them for ever. ``asked``: all lines that came.
    """

    port: int
    serves: Sequence[Serve]
    asked: list[str] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> FakeRas:
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self._kept):
            each.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._kept.append(connection)
                serve = self.serves[min(self.connections, len(self.serves) - 1)]
                self.connections += 1
                threading.Thread(target=self._serve, args=(serve, connection), daemon=True).start()

    def _serve(self, serve: Serve, connection: socket.socket) -> None:
        with suppress(OSError):
            serve(self, connection)


def speaking(report: Callable[[], str] | str, *, json_known: bool) -> Serve:
    """A version that speaks JSON, or one of before."""

    def serve(fake: FakeRas, connection: socket.socket) -> None:
        with connection, connection.makefile("rw", newline="\n") as lines:
            for line in lines:
                command = line.rstrip("\r\n")
                fake.asked.append(command)
                reply = _reply(command.lower(), json_known)
                if reply is None:
                    lines.write(report if isinstance(report, str) else report())
                    return
                lines.write(reply + "\n")
                lines.flush()

    return serve


def _reply(command: str, json_known: bool) -> str | None:
    """None: the report."""
    if command.startswith("client protocol"):
        return "SERVER PROTOCOL 2"
    if command.startswith("timeout "):
        return "OK"
    if command.startswith("set format "):
        return "OK" if json_known else "ERROR: Unknown command SET FORMAT json"
    return None if command in ("status", "verbose status") else f"ERROR: Unknown command {command}"


def stopped(fake: FakeRas, connection: socket.socket) -> None:
    """A rank that is stopped: the kernel takes the connection, and nobody answers."""


def saying(content: bytes) -> Serve:
    """Whatever it is asked."""

    def serve(fake: FakeRas, connection: socket.socket) -> None:
        with connection:
            connection.recv(100)
            connection.sendall(content)

    return serve


def dripping(report: str, byte_s: float) -> Serve:
    """A byte of the report at a time."""
    speak = speaking("", json_known=True)

    def serve(fake: FakeRas, connection: socket.socket) -> None:
        kept = connection.dup()
        speak(fake, connection)
        with kept:
            for byte in report.encode():
                kept.sendall(bytes([byte]))
                time.sleep(byte_s)

    return serve


def counts_of(ranks: Mapping[int, Sequence[int]], **common: Any) -> Comm:
    """Ranks of one communicator on one host, pid 100 + rank, GPU rank."""
    return Comm([Rank(rank, pid=100 + rank, dev=rank, counts=counts) for rank, counts in ranks.items()], **common)
