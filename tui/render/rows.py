"""Rows that are made when they are looked at, and by which column a table is sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

from mltop.tui.render.cells import Cell, Column, Row, Value, row_of
from mltop.tui.render.guarded import FAILURES


class Sort(NamedTuple):
    """``reverse``: largest first."""

    column: str
    reverse: bool

    def reversed(self) -> Sort:
        return Sort(self.column, not self.reverse)


MOST_COLUMNS = 64  # of any table


class LazyRows(Sequence[Row]):
    """Rows that are made when they are looked at: a table of 4,096 rows draws 50 of them.

    ``make(i)`` returns the row whose key is ``keys[i]``; each is made at most once. One that fails is a row that says
    so. ``value(column, i)`` is what row i is sorted by, None: unknown.
    """

    def __init__(
        self, keys: Sequence[str], make: Callable[[int], Row], value: Callable[[str, int], Value] = lambda *_: None
    ) -> None:
        self.keys = keys
        self.value = value
        self._make = make
        self._made: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self.keys)))]
        if not -len(self.keys) <= index < len(self.keys):
            raise IndexError(index)
        index %= len(self.keys)
        if index not in self._made:
            try:
                self._made[index] = self._make(index)
            except Exception as error:  # noqa: BLE001 - what a node says may find a bug: it costs its own row
                key, failed = self.keys[index], Cell(FAILURES.take("this row", error), "crit")
                self._made[index] = Row(key, (Cell(""), Cell(key, "crit"), *[Cell("")] * MOST_COLUMNS), failed)
        return self._made[index]


def item_rows(columns: Sequence[Column], items: Sequence[Any], key: Callable[[Any], str]) -> LazyRows:
    """One row for each of ``items``, made when it is looked at."""
    keys = [key(item) for item in items]
    return LazyRows(keys, lambda at: row_of(columns, items[at], keys[at]), values_of(columns, items))


def values_of(columns: Sequence[Column], items: Sequence[Any]) -> Callable[[str, int], Value]:
    """The ``value`` of ``LazyRows`` whose rows are those of ``items``."""
    by_key = {column.key: column for column in columns}
    return lambda key, index: by_key[key].sorts_by(items[index])


def row_keys(rows: Sequence[Row]) -> Sequence[str]:
    """The keys of all rows, without making lazy ones."""
    return rows.keys if isinstance(rows, LazyRows) else [row.key for row in rows]
