"""Reads pickles of plain values: Python's own unpickler with the few operations that such a pickle needs.

An operation that is not on the list ends the reading, so nothing in a file can ask for code to be run. The unpickler is
the one written in Python (pickle._Unpickler): that in C takes as much memory as a file of a few bytes likes (the number
of a memo's entry is the size of a table). Operations, containers and marks are counted. What comes out may still hold
one list a million times, or itself: whoever walks it goes to a depth that he knows and takes so many entries at most.
Source: pickle protocol 5 (pickletools.py); torch's writer, torch/csrc/jit/serialization/pickler.cpp. Python 3.9.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable

MOST_READS = 6_000_000  # an operation is one read, and each of its arguments
MOST_CONTAINERS = 500_000  # 2,000 entries with 20 frames each have 60,000
MOST_MARKS = 256
MOST_LINE = 4096  # bytes of an argument of protocol 0


class Malformed(ValueError):
    """It is no pickle of plain values; the text says why in one line."""


class CutOff(Malformed):
    """It ends in the middle: it is still being written, or what wrote it was killed."""


# What an operation that runs something or makes an object is called, for the line that refuses it.
_REFUSED = {
    **{
        ord(code): name
        for code, name in zip("cRiobPQ", ("GLOBAL", "REDUCE", "INST", "OBJ", "BUILD", "PERSID", "BINPERSID"))
    },
    **dict(zip((0x81, 0x82, 0x83, 0x84, 0x92, 0x93), ("NEWOBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX", "STACK_GLOBAL"))),
}


def read_pickle(content: bytes) -> object:
    """The value: dicts with keys of text or whole numbers, lists, tuples, texts, bytes, numbers, None.

    Raises Malformed, of one that ends too early CutOff.
    """
    try:
        return _Unpickler(_Bytes(content)).load()
    except Malformed:
        raise
    except (pickle.UnpicklingError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise Malformed("it is no pickle: a value in it is missing or cannot be") from None


class _Bytes:
    """What the unpickler reads from: never less than it asks for."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at, self._reads = content, 0, 0

    def read(self, count: int) -> bytes:
        self._reads += 1
        if self._reads > MOST_READS:
            raise Malformed(f"it has more than {MOST_READS} operations and arguments")
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise CutOff("it ends in the middle")
        self._at += count
        return taken

    def readline(self) -> bytes:
        end = self._content.find(b"\n", self._at, self._at + MOST_LINE)
        if end >= 0:
            return self.read(end + 1 - self._at)
        if len(self._content) - self._at >= MOST_LINE:
            raise Malformed("a line in it has no end")
        raise CutOff("it ends in the middle")


class _Operations(dict[int, Callable[[Any], object]]):
    def __missing__(self, code: int) -> None:
        name = _REFUSED.get(code)
        if name is not None:
            raise Malformed(f"refused: it asks for code to be run ({name}), which no recorder writes")
        raise Malformed(f"it is no pickle of plain values (operation {code:#04x})")


_InPython: Any = vars(pickle)["_Unpickler"]  # a private name, in every Python since 3.0


class _Unpickler(_InPython):  # type: ignore[misc]
    """``dispatch``: what each operation does."""

    containers = 0

    def _mark(self) -> None:
        if len(self.metastack) >= MOST_MARKS:
            raise Malformed("it is nested too deeply")
        self.load_mark()

    def _text(self, size: int) -> None:
        """Bytes that are no UTF-8 must not make the whole unreadable."""
        self.append(self.read(int.from_bytes(self.read(size), "little")).decode("utf-8", "replace"))

    def _text_line(self) -> None:
        self.append(self.readline()[:-1].decode("utf-8", "replace"))

    def _skip_frame(self) -> None:
        """How long a frame is: it is all in memory already."""
        self.read(8)


def _counted(make: Callable[[Any], object]) -> Callable[[Any], object]:
    def load(unpickler: _Unpickler) -> None:
        unpickler.containers += 1
        if unpickler.containers > MOST_CONTAINERS:
            raise Malformed(f"it holds more than {MOST_CONTAINERS} lists and tables")
        make(unpickler)

    return load


def _with_plain_keys(fill: Callable[[Any], object], keys: slice) -> Callable[[Any], object]:
    """``keys``: where they are among the values since the last mark. The hash of a nested tuple may not end."""

    def load(unpickler: _Unpickler) -> None:
        if any(type(key) is not str and type(key) is not int for key in unpickler.stack[keys]):
            raise Malformed("a key in it is neither a text nor a number")
        fill(unpickler)

    return load


_AS_PYTHON = _InPython.dispatch
_Unpickler.dispatch = _Operations(
    {
        **{code: _AS_PYTHON[code] for code in b"01)aeNIJKMLFGBCpqrghj.\x80\x88\x89\x8a\x8e\x94"},
        **{code: _counted(_AS_PYTHON[code]) for code in b"}]lt\x85\x86\x87"},
        ord("d"): _counted(_with_plain_keys(_AS_PYTHON[ord("d")], slice(0, None, 2))),
        ord("u"): _with_plain_keys(_AS_PYTHON[ord("u")], slice(0, None, 2)),
        ord("s"): _with_plain_keys(_AS_PYTHON[ord("s")], slice(-2, -1)),
        ord("("): _Unpickler._mark,
        ord("V"): _Unpickler._text_line,
        ord("X"): lambda unpickler: unpickler._text(4),
        0x8C: lambda unpickler: unpickler._text(1),
        0x8D: lambda unpickler: unpickler._text(8),
        0x95: _Unpickler._skip_frame,
    }
)
