"""Reads pickles of plain values: a machine of our own for the few operations that such a pickle needs.

Python's own unpickler runs what a file asks it to run, and one that is told to refuse that still takes as much memory
as a file of a few bytes likes (the number of a memo's entry is the size of a table). Here an operation that is not on
the list ends the reading, and values, containers and marks are counted. What comes out may still hold one list a
million times, or itself: whoever walks it goes to a depth that he knows and takes so many entries at most.
Source: pickle protocol 5 (pickletools.py); torch's writer, torch/csrc/jit/serialization/pickler.cpp. Python 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Callable

MOST_OPERATIONS = 6_000_000
MOST_CONTAINERS = 500_000  # 2,000 entries with 20 frames each have 60,000
MOST_MARKS = 256
MOST_STACK = 1_000_000
MOST_DIGITS = 32
MOST_LINE = 4096  # bytes of an argument of protocol 0
_NUMBER_BYTES = 16


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
_MARK = object()


def read_pickle(content: bytes) -> object:
    """The value: dicts with keys of text or whole numbers, lists, tuples, texts, bytes, numbers, None.

    Raises Malformed, of one that ends too early CutOff.
    """
    return _Machine(content).run()


class _Machine:
    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = self._marks = 0

    def run(self) -> object:
        content, end, operations = self._content, len(self._content), _OPERATIONS
        for _ in range(MOST_OPERATIONS):
            if self._at >= end:
                raise CutOff("it ends in the middle")
            code = content[self._at]
            self._at += 1
            if code == _STOP:
                return self._pop()
            operation = operations.get(code)
            if operation is None:
                raise Malformed(_why_not(code))
            operation(self)
        raise Malformed(f"it has more than {MOST_OPERATIONS} operations")

    # What operations are made of.

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._content):
            raise CutOff("it ends in the middle")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def take_line(self) -> bytes:
        end = self._content.find(b"\n", self._at, self._at + MOST_LINE)
        if end < 0:
            whole = len(self._content) - self._at >= MOST_LINE
            raise Malformed("a line in it has no end") if whole else CutOff("it ends in the middle")
        line = self._content[self._at : end]
        self._at = end + 1
        return line

    def push(self, value: Any) -> None:
        if len(self._stack) >= MOST_STACK:
            raise Malformed("it holds too many values at a time")
        self._stack.append(value)

    def push_new(self, container: Any) -> None:
        self._containers += 1
        if self._containers > MOST_CONTAINERS:
            raise Malformed(f"it holds more than {MOST_CONTAINERS} lists and tables")
        self.push(container)

    def push_mark(self) -> None:
        self._marks += 1
        if self._marks > MOST_MARKS:
            raise Malformed("it is nested too deeply")
        self.push(_MARK)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise Malformed("it is no pickle: a value is missing")
        return self._stack.pop()

    def pop_to_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while at >= 0 and stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise Malformed("it is no pickle: a mark is missing")
        values = stack[at + 1 :]
        del stack[at:]
        self._marks -= 1
        return values

    def pop_several(self, count: int) -> tuple[Any, ...]:
        values = [self._pop() for _ in range(count)]
        return tuple(reversed(values))

    def append(self, values: Iterable[Any]) -> None:
        if not self._stack or not isinstance(self._stack[-1], list):
            raise Malformed("it adds to something that is no list")
        self._stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        table = self._stack[-1] if self._stack else None
        if not isinstance(table, dict) or len(values) % 2:
            raise Malformed("it adds to something that is no table")
        table.update(_pairs(values))

    def remember(self, number: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise Malformed("it is no pickle: a value is missing")
        self._memo[number] = self._stack[-1]

    def remember_next(self) -> None:
        self.remember(len(self._memo))

    def recall(self, number: int) -> None:
        if number not in self._memo:
            raise Malformed("it names a value that it does not have")
        self.push(self._memo[number])

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    for key, value in zip(values[::2], values[1::2]):
        if type(key) is not str and type(key) is not int:  # the hash of a nested tuple may not end
            raise Malformed("a key in it is neither a text nor a number")
        yield key, value


def _why_not(code: int) -> str:
    name = _REFUSED.get(code)
    if name is not None:
        return f"refused: it asks for code to be run ({name}), which no recorder writes"
    return f"it is no pickle of plain values (operation {code:#04x})"


def _protocol(machine: _Machine) -> None:
    if machine.number(1) > 5:
        raise Malformed("it is a pickle of a protocol that nobody knows")


def _int(machine: _Machine) -> None:
    """Protocol 0; booleans are ``00`` and ``01`` there."""
    line = machine.take_line()
    machine.push(line == b"01" if line in (b"00", b"01") else _digits(line))


def _digits(line: bytes) -> int:
    digits = line[1:] if line[:1] == b"-" else line
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        raise Malformed("a number in it cannot be")
    return int(line)


def _long(machine: _Machine, size: int) -> None:
    if size > _NUMBER_BYTES:
        raise Malformed("a number in it cannot be")
    machine.push(int.from_bytes(machine.take(size), "little", signed=True))


def _float_line(machine: _Machine) -> None:
    try:
        machine.push(float(machine.take_line()[:64]))
    except ValueError:
        raise Malformed("a number in it cannot be") from None


def _text(machine: _Machine, size: int) -> None:
    machine.push(machine.take(size).decode("utf-8", "replace"))


def _bytes(machine: _Machine, size: int) -> None:
    machine.push(machine.take(size))


def _list_of(machine: _Machine) -> None:
    machine.push_new(machine.pop_to_mark())


def _dict_of(machine: _Machine) -> None:
    values = machine.pop_to_mark()
    machine.push_new({})
    machine.set_items(values)


def _line_number(machine: _Machine) -> int:
    number = _digits(machine.take_line())
    if number < 0:
        raise Malformed("a number in it cannot be")
    return number


_STOP = b"."[0]
_OPERATIONS: dict[int, Callable[[_Machine], object]] = {
    0x80: _protocol,
    0x95: lambda machine: machine.take(8),  # how long a frame is
    b"("[0]: _Machine.push_mark,
    b"0"[0]: lambda machine: machine.pop_several(1),
    b"1"[0]: lambda machine: machine.pop_to_mark(),
    b"}"[0]: lambda machine: machine.push_new({}),
    b"]"[0]: lambda machine: machine.push_new([]),
    b")"[0]: lambda machine: machine.push(()),
    b"l"[0]: _list_of,
    b"d"[0]: _dict_of,
    b"t"[0]: lambda machine: machine.push_new(tuple(machine.pop_to_mark())),
    0x85: lambda machine: machine.push_new(machine.pop_several(1)),
    0x86: lambda machine: machine.push_new(machine.pop_several(2)),
    0x87: lambda machine: machine.push_new(machine.pop_several(3)),
    b"s"[0]: lambda machine: machine.set_items(list(machine.pop_several(2))),
    b"u"[0]: lambda machine: machine.set_items(machine.pop_to_mark()),
    b"a"[0]: lambda machine: machine.append(machine.pop_several(1)),
    b"e"[0]: lambda machine: machine.append(machine.pop_to_mark()),
    b"N"[0]: lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    b"I"[0]: _int,
    b"J"[0]: lambda machine: _long(machine, 4),
    b"K"[0]: lambda machine: machine.push(machine.number(1)),
    b"M"[0]: lambda machine: machine.push(machine.number(2)),
    b"L"[0]: lambda machine: machine.push(_digits(machine.take_line().rstrip(b"L"))),
    0x8A: lambda machine: _long(machine, machine.number(1)),
    0x8B: lambda machine: _long(machine, machine.number(4)),
    b"F"[0]: _float_line,
    b"G"[0]: lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"V"[0]: lambda machine: machine.push(machine.take_line().decode("utf-8", "replace")),
    b"X"[0]: lambda machine: _text(machine, machine.number(4)),
    0x8C: lambda machine: _text(machine, machine.number(1)),
    0x8D: lambda machine: _text(machine, machine.number(8)),
    b"B"[0]: lambda machine: _bytes(machine, machine.number(4)),
    b"C"[0]: lambda machine: _bytes(machine, machine.number(1)),
    0x8E: lambda machine: _bytes(machine, machine.number(8)),
    b"p"[0]: lambda machine: machine.remember(_line_number(machine)),
    b"q"[0]: lambda machine: machine.remember(machine.number(1)),
    b"r"[0]: lambda machine: machine.remember(machine.number(4)),
    0x94: _Machine.remember_next,
    b"g"[0]: lambda machine: machine.recall(_line_number(machine)),
    b"h"[0]: lambda machine: machine.recall(machine.number(1)),
    b"j"[0]: lambda machine: machine.recall(machine.number(4)),
}
