"""Sorting table rows by what a column says. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from mltop.tui.mishaps import spared
from mltop.tui.render.cells import Column, Row, layout
from mltop.tui.render.units import UNKNOWN

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?([kKMGTPE]?)")
_SCALE = {
    "": 1.0,
    "k": 1e3,
    "K": 2.0**10,
    "M": 2.0**20,
    "G": 2.0**30,
    "T": 2.0**40,
    "P": 2.0**50,
    "E": 2.0**60,
}
_COUNT_UP = ("gpu", "rank", "pid", "gpus")  # names rather than amounts: the smallest comes first

Order = tuple[int, float, str]


@dataclass(frozen=True)
class Sort:
    """``reverse``: largest first."""

    column: str
    reverse: bool


def next_sort(columns: Sequence[Column], width: int, now: Sort | None) -> Sort | None:
    """The next column that fits into ``width``; after the last one the order the rows came in (None)."""
    keys = [columns[index].key for index, _ in layout(columns, width) if columns[index].title]
    at = keys.index(now.column) + 1 if now is not None and now.column in keys else 0
    return first_sort(columns, keys[at]) if at < len(keys) and (now is None or at > 0) else None


def first_sort(columns: Sequence[Column], key: str) -> Sort:
    """Amounts start with the largest, names with the smallest."""
    column = next(column for column in columns if column.key == key)
    return Sort(key, column.right and key not in _COUNT_UP)


def sorted_rows(columns: Sequence[Column], rows: Iterable[Row], sort: Sort | None) -> list[Row]:
    """Rows in the order asked for; what is unknown comes last either way, equals keep their order."""
    given = list(rows)
    if sort is None:
        return given
    return [given[index] for index in sorted_indexes(range(len(given)), order_of(columns, given, sort), sort.reverse)]


def order_of(columns: Sequence[Column], rows: Sequence[Row], sort: Sort) -> Callable[[int], Order | None]:
    """What row i is sorted by, read from the text of its cell; None: unknown."""
    column = next(index for index, column in enumerate(columns) if column.key == sort.column)

    def order(index: int) -> Order | None:
        row = rows[index]
        text = row.cells[column].text.strip()
        return None if text in ("", UNKNOWN) or row.banner is not None else _value(text)

    return order


def sorted_indexes(indexes: Iterable[int], order: Callable[[int], Any], reverse: bool) -> list[int]:
    """Indexes by what ``order`` says of each, None last either way; equals keep their order."""
    known: list[tuple[Any, int]] = []
    unknown: list[int] = []
    for index in indexes:
        value = spared("sorting", partial(order, index), None)
        if value is None:
            unknown.append(index)
        else:
            known.append((value, index))
    known.sort(key=itemgetter(0), reverse=reverse)
    return [index for _, index in known] + unknown


def _value(text: str) -> Order:
    """Numbers before words; 980M before 74.2G."""
    match = _NUMBER.match(text)
    if match is None:
        return 1, 0.0, text.casefold()
    unit = match.group(1)
    return 0, float(match.group().rstrip("kKMGTPE")) * _SCALE[unit], text
