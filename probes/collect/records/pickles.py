"""Reads pickles of plain values: Python's own unpickler with the few operations that such a pickle needs.

An operation that is not on the list ends the reading, so nothing in a file can ask for code to be run. The unpickler is
the one written in Python (pickle._Unpickler): that in C takes as much memory as a file of a few bytes likes (the number
of a memo's entry is the size of a table). Operations, marks and the memory of what is made are counted. What comes out
may still hold one list a million times, or itself: a caller goes to a known depth and takes so many entries at most.
Source: pickle protocol 5 (pickletools.py); torch's writer, torch/csrc/jit/serialization/pickler.cpp. Python 3.9.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any, Callable

MOST_READS = (
    4_000_000  # an operation is one read, and each of its arguments; 2,000 entries with 25 frames take 1,400,000
)
MOST_MEMORY = 80 << 20  # bytes of what is made; 2,000 entries with 40 frames take 68
MOST_TEXT = 1 << 20  # bytes of one text: the names of 65,536 ranks take half of it
MOST_MARKS = 256
# At most, of one object and of where it is kept: a table with entries, a list or tuple, an entry of the memo, a number.
TABLE_BYTES, LIST_BYTES, _MEMO_BYTES, NUMBER_BYTES = 240, 120, 140, 48
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

    left = MOST_MEMORY

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Malformed(f"what it holds takes more than {MOST_MEMORY >> 20} MB of memory")

    def _mark(self) -> None:
        if len(self.metastack) >= MOST_MARKS:
            raise Malformed("it is nested too deeply")
        self.load_mark()

    def _text(self, size: int) -> None:
        """Bytes that are no UTF-8 must not make the whole unreadable."""
        length = int.from_bytes(self.read(size), "little")
        if length > MOST_TEXT:
            raise Malformed(f"a text in it has more than {MOST_TEXT >> 20} MB")
        self._keep(self.read(length))

    def _keep(self, content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        self._take(sys.getsizeof(text))
        self.append(text)


def _taking(size: int, make: Callable[[Any], object]) -> Callable[[Any], object]:
    def load(unpickler: _Unpickler) -> None:
        unpickler._take(size)
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
        **{code: _AS_PYTHON[code] for code in b"01)aeNKBCghj.\x80\x88\x89\x8e"},
        **{code: _taking(NUMBER_BYTES, _AS_PYTHON[code]) for code in b"IJMLFG\x8a"},
        **{code: _taking(LIST_BYTES, _AS_PYTHON[code]) for code in b"]lt\x85\x86\x87"},
        **{code: _taking(_MEMO_BYTES, _AS_PYTHON[code]) for code in b"pqr\x94"},
        ord("}"): _taking(TABLE_BYTES, _AS_PYTHON[ord("}")]),
        ord("d"): _taking(TABLE_BYTES, _with_plain_keys(_AS_PYTHON[ord("d")], slice(0, None, 2))),
        ord("u"): _with_plain_keys(_AS_PYTHON[ord("u")], slice(0, None, 2)),
        ord("s"): _with_plain_keys(_AS_PYTHON[ord("s")], slice(-2, -1)),
        ord("("): _Unpickler._mark,
        ord("V"): lambda unpickler: unpickler._keep(unpickler.readline()[:-1]),
        ord("X"): lambda unpickler: unpickler._text(4),
        0x8C: lambda unpickler: unpickler._text(1),
        0x8D: lambda unpickler: unpickler._text(8),
        0x95: lambda unpickler: unpickler.read(8),  # how long a frame is: it is all in memory already
    }
)
