"""One question to NCCL's RAS of a job of ours, on a port of its own: never of anybody else's job.

A question can crash the job that answers (NCCL before 2.29.2): it is asked of jobs that may crash.
"""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

CONNECT_S = 2.0
DEADLINE_S = 12.0  # a leg to a peer takes up to 5 s, a whole collection up to 10
MOST_BYTES = 16 * 2**20
# 2.28.7 and 2.28.9 leave out a comma where ranks are missing.
_MISSING_COMMA = re.compile(r'([\d\]"}])(\s*\n\s*")')


@dataclass
class Answer:
    """``text`` as it came; ``why``: there is none. ``greeting``: what was said to CLIENT PROTOCOL and SET FORMAT."""

    text: str = ""
    greeting: str = ""
    why: str = ""

    def data(self) -> Any:
        """As JSON. ValueError where it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return json.loads(_MISSING_COMMA.sub(r"\1,\2", self.text))


def ask(port: int, as_json: bool) -> Answer:
    found = Answer()
    until = time.monotonic() + DEADLINE_S
    try:
        with socket.create_connection(("127.0.0.1", port), CONNECT_S) as connection:
            connection.settimeout(DEADLINE_S)
            for line in ("CLIENT PROTOCOL 2", "TIMEOUT 5", *(["SET FORMAT json"] if as_json else [])):
                connection.sendall(f"{line}\n".encode())
                found.greeting += _line(connection, until)
            connection.sendall(b"VERBOSE STATUS\n")
            found.text = _rest(connection, until)
    except OSError as error:
        found.why = f"RAS on port {port}: {error}"
    return found


def _line(connection: socket.socket, until: float) -> str:
    told = b""
    while not told.endswith(b"\n") and time.monotonic() < until:
        part = connection.recv(1)
        if not part:
            break
        told += part
    return told.decode(errors="replace")


def _rest(connection: socket.socket, until: float) -> str:
    told = b""
    while time.monotonic() < until and len(told) < MOST_BYTES:
        part = connection.recv(65536)
        if not part:
            break
        told += part
    return told.decode(errors="replace")
