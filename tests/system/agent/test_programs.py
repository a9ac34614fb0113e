"""The wait for a file that the caller sends: as long as something arrives, and not much longer."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.agent.programs import Programs, Unavailable
from mltop.probes.agent.protocol import Message, Request

PROGRAM = b"#!/bin/sh\nexit 0\n"
SHA256 = hashlib.sha256(PROGRAM).hexdigest()
WAIT_S = 1.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLTOP_CACHE", str(tmp_path))
    yield


def frame() -> Request:
    data = base64.b64encode(zlib.compress(PROGRAM, wbits=31)).decode()
    return Request("file", op="program", args={"sha256": SHA256, "data": data})


class Asked:
    """A Files whose caller was asked for the program by a thread of its own."""

    def __init__(self) -> None:
        sent = threading.Event()
        self.needs: list[Message] = []

        def send(message: Message) -> None:
            self.needs.append(message)
            sent.set()

        self.files = Programs(send, wait_s=WAIT_S)
        self.cancelled = threading.Event()
        self.answer: str | Unavailable | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert sent.wait(30)

    def _run(self) -> None:
        try:
            self.answer = self.files.program("program", SHA256, 7, self.cancelled)
        except Unavailable as error:
            self.answer = error

    def end(self) -> str:
        self.thread.join(30)
        return str(self.answer)


def test_it_waits_while_something_arrives(tmp_path: Path) -> None:
    asked = Asked()
    assert [(need.kind, need.id, need.data["file"]) for need in asked.needs] == [("need", 7, "program")]
    started = time.monotonic()
    while time.monotonic() - started < 3 * WAIT_S:
        asked.files.receiving()
        time.sleep(WAIT_S / 20)
    asked.files.receive(frame())
    assert asked.end() == str(tmp_path / f"program-{SHA256}")


def test_it_gives_up_when_nothing_arrives() -> None:
    assert Asked().end() == "program did not arrive: nothing came for 1 s"


def test_what_arrived_before_it_was_asked_for_does_not_shorten_the_wait(tmp_path: Path) -> None:
    first = Asked()
    first.end()
    first.answer = None
    again = threading.Thread(target=first._run, daemon=True)
    again.start()
    while len(first.needs) < 2:
        time.sleep(0.01)
    first.files.receive(frame())
    again.join(30)
    assert first.answer == str(tmp_path / f"program-{SHA256}")


def test_a_cancel_ends_the_wait() -> None:
    asked = Asked()
    asked.cancelled.set()
    assert asked.end() == "cancelled"


@pytest.mark.parametrize("what", ["a pipe", "endless", "a link", "a folder's place"])
def test_what_lies_in_the_programs_place_is_not_run(what: str, tmp_path: Path) -> None:
    """It is asked for, and takes the place."""
    path = tmp_path / f"program-{SHA256}"
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "a link":
        (tmp_path / "elsewhere").write_bytes(PROGRAM)
        (tmp_path / "elsewhere").chmod(0o755)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(PROGRAM + b"more")
    asked = Asked()
    asked.files.receive(frame())
    assert asked.end() == str(path)
    assert not path.is_symlink() and path.read_bytes() == PROGRAM
