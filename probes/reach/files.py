"""The files that nodes ask for (the bundle, py-spy), made outside the hub's thread and once per machine type."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from mltop.probes.agent.protocol import Request, encode
from mltop.probes.model.text import plain_text

MOST_KEPT = 16  # two files of a few machine types; a machine's name comes from a node, which may tell anything

Post = Callable[[Callable[[], None]], None]
FileFor = Callable[[str, str], Request]  # (name, machine) -> the frame that carries it
PySpyFor = Callable[[str], str]  # machine -> SHA-256 of its py-spy, "" for none
Key = tuple[str, str]
Make = Callable[[], Any]


class Files:
    """For the hub's thread: what is called back runs where ``post`` says. One file is made at a time."""

    def __init__(self, post: Post, file_for: FileFor | None = None, py_spy_for: PySpyFor | None = None) -> None:
        self._post = post
        self._file_for = file_for or bundled_file
        self._py_spy_for = py_spy_for or bundled_py_spy
        self._known: dict[Key, Any] = {}
        self._waiting: dict[Key, list[Callable[[Any], None]]] = {}
        self._to_make: deque[tuple[Key, Make]] = deque()
        self._making = False

    def frame(self, name: str, machine: str, then: Callable[[bytes], None]) -> None:
        """The whole frame that carries this file, or the error why there is none."""
        self._want((name, machine), lambda: encode(self._request(name, machine)), then)

    def py_spy_sha256(self, machine: str, then: Callable[[str | Exception], None]) -> None:
        """The empty text when there is none for this machine; an exception when that cannot be found out."""
        self._want(("", machine), lambda: self._sha256(machine), then)

    def _want(self, key: Key, make: Make, then: Callable[[Any], None]) -> None:
        if key in self._known:
            then(self._known[key])
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            self._waiting[key] = [then]
            self._to_make.append((key, make))
            self._make_next()

    def _make_next(self) -> None:
        if self._to_make and not self._making:
            self._making = True
            threading.Thread(target=self._make, args=self._to_make.popleft(), name="mltop-files", daemon=True).start()

    def _make(self, key: Key, make: Make) -> None:
        made = make()
        self._post(lambda: self._made(key, made))

    def _made(self, key: Key, made: Any) -> None:
        self._known[key] = made
        while len(self._known) > MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._making = False
        self._make_next()
        for then in self._waiting.pop(key):
            then(made)

    def _sha256(self, machine: str) -> str | Exception:
        try:
            return self._py_spy_for(machine)
        except Exception as error:  # noqa: BLE001 - whoever asked for stacks is told
            return error

    def _request(self, name: str, machine: str) -> Request:
        try:
            return self._file_for(name, machine)
        except Exception as error:  # noqa: BLE001 - the node is told, and its state says so
            reason = plain_text(f"cannot make {name} for {machine}: {type(error).__name__}: {error}")
            return Request("file", op=name, args={"error": reason})


def bundled_file(name: str, machine: str) -> Request:
    from mltop.probes.reach.bundle import file_for  # hashes and compresses: only where a node asks for it

    return file_for(name, machine)


def bundled_py_spy(machine: str) -> str:
    from mltop.probes.reach.bundle import py_spy_sha256

    return py_spy_sha256(machine)
