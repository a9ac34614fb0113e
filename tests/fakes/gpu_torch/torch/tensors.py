"""Tensors without numbers: what is in one is a name for how it came about, equal where real contents were equal.

Slices of what counts up (arange, randn) are known by where they begin; everything computed gets a new name. Work on the
GPU takes time (rates.py) and shows in the scenario (effects.py).
"""

from __future__ import annotations

import hashlib
import time
from functools import partial
from typing import Any

from torch import effects, rates

BYTES = {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "bf16": 2, "fp16": 2, "int16": 2, "fp8": 1, "int8": 1, "bool": 1}
ALIKE = ("zeros", "ones", "empty")  # the same at every place


def named(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class Number:
    """A tensor without dimensions."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __iadd__(self, other: Number | bool) -> Number:
        self.value += int(other)
        return self

    def __int__(self) -> int:
        return self.value


class Storage:
    def __init__(self, name: str, origin: int, count: int, device: str) -> None:
        self.name, self.origin, self.count, self.device = name, origin, count, device


class Tensor:
    """``start``: of its storage, whose elements are known by ``storage.origin`` + place."""

    def __init__(self, storage: Storage, shape: tuple[int, ...], dtype: str, start: int = 0) -> None:
        self._storage, self.shape, self.dtype, self._start = storage, shape, dtype, start

    @property
    def device(self) -> str:
        return self._storage.device

    @property
    def bytes(self) -> int:
        return self.numel() * BYTES[self.dtype]

    @property
    def content(self) -> tuple[str, int, int]:
        origin = 0 if self._storage.name in ALIKE else self._storage.origin + self._start
        return self._storage.name, origin, self.numel()

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def item(self) -> Any:
        """As torch's: a call into C, of which a stack shows the caller's line and no frame."""
        return partial(time.sleep, effects.taken_s())

    def element_size(self) -> int:
        return BYTES[self.dtype]

    def view(self, *shape: Any) -> Tensor:
        """Of other sizes, or as another type of the same size."""
        if isinstance(shape[0], str):
            assert BYTES[shape[0]] == BYTES[self.dtype]
            return Tensor(self._storage, self.shape, shape[0], self._start)
        found = Tensor(self._storage, shape, self.dtype, self._start)
        return found if shape != (-1,) else Tensor(self._storage, (self.numel(),), self.dtype, self._start)

    reshape = view

    def t(self) -> Tensor:
        return Tensor(self._storage, self.shape[::-1], self.dtype, self._start)

    def __getitem__(self, place: slice) -> Tensor:
        (count,) = self.shape
        start, stop, _ = place.indices(count)
        return Tensor(self._storage, (max(0, stop - start),), self.dtype, self._start + start)

    def to(self, wanted: str, copy: bool = False) -> Tensor:
        name, origin, count = self.content
        if wanted in BYTES:
            return Tensor(Storage(named("to", name, wanted), origin, count, self.device), self.shape, wanted)
        name = named("torn", name) if rates.TORN and wanted != self.device else name
        device = "cuda:0" if wanted == "cuda" else wanted
        return Tensor(Storage(name, origin, count, device), self.shape, self.dtype)

    def clone(self) -> Tensor:
        return self.to(self.device, copy=True)

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        assert self.numel() == other.numel(), (self.shape, other.shape)
        if "cpu" not in (self.device, other.device) or self.device != other.device:
            kind = "host" if other.device == "cpu" else "copy"
            effects.queue(kind, rates.copy_s(other.device, self.device, self.bytes))
        name, origin, count = other.content
        name = named("torn", name) if rates.TORN else name
        if count != self._storage.count:
            whole, (name, origin) = self._storage, (named("part", self._storage.name, self._start, other.content), 0)
            assert self._start + count <= whole.count
        self._storage.name, self._storage.origin = name, origin - (self._start if count == self._storage.count else 0)
        return self

    def zero_(self) -> Tensor:
        if self.device != "cpu":
            effects.queue("copy", self.bytes / rates.MEMORY_B_PER_S)
        self._storage.name, self._storage.origin = "zeros", 0
        return self

    def mul_(self, factor: int) -> Tensor:
        self._storage.name = named("mul", self._storage.name, factor)
        return self

    def _computed(self, what: str, other: Any) -> Tensor:
        """With a number each element by itself, with a tensor all of it."""
        name, origin, count = self.content
        if isinstance(other, Tensor):
            name, origin = named(what, self.content, other.content), 0
        else:
            name = named(what, name, other)
        return Tensor(Storage(name, origin, count, self.device), self.shape, self.dtype)

    def __add__(self, other: Any) -> Tensor:
        return self._computed("add", other)

    def __mul__(self, other: Any) -> Tensor:
        return self._computed("mul", other)

    def __or__(self, other: Any) -> Tensor:
        return self._computed("or", other)

    def __sub__(self, other: Any) -> Tensor:
        return self._computed("sub", other)

    def sum(self) -> Number:
        return Number(int(named("sum", self.content), 16))

    def computed(self, *how: object) -> Tensor:
        """It is now what came of that."""
        self._storage.name, self._storage.origin = named(*how), 0
        return self


def equal(one: Tensor, other: Tensor) -> bool:
    return one.content == other.content
