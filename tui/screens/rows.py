"""Sorting table rows by what a column says. Pure functions.

From all rows of a table to those that are shown, in order; rows that are not shown are not made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from mltop.probes.model import Finding
from mltop.tui.app.mishaps import spared
from mltop.tui.filters import Filter, Subject
from mltop.tui.render.cells import Column, LazyRows, Row, layout, row_keys
from mltop.tui.render.units import UNKNOWN
from mltop.tui.widgets.line_table import Sort

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


SortValue = float | str | None
FindingsOf = Mapping[str, Sequence[Finding]]


class SubjectRows(LazyRows):
    """Lazy rows that a filter can ask for their fields.

    ``subject(i)`` is what row i is about; ``value(column, i)`` what it is sorted by (None: unknown), ``text(i)`` what
    words look for. Without the latter two the row itself is made and read.
    """

    def __init__(
        self,
        keys: Sequence[str],
        make: Callable[[int], Row],
        subject: Callable[[int], Subject],
        value: Callable[[str, int], SortValue] | None = None,
        text: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(keys, make)
        self.subject = subject
        self.value = value
        self.text = text or (lambda index: self[index].text)

    def asked(self, index: int, needs_text: bool, findings: FindingsOf) -> Subject:
        """The subject as a filter wants it: with its findings and, for words, its text."""
        subject = self.subject(index)
        own = subject.findings or findings.get(subject.view.node, ())
        if not own and not needs_text:
            return subject
        return subject._replace(findings=own, text=self.text(index) if needs_text else None)


def by_node(findings: Sequence[Finding]) -> FindingsOf:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.node, []).append(finding)
    return found


def narrowed(
    columns: Sequence[Column], rows: Sequence[Row], keep: Filter, sort: Sort | None, findings: FindingsOf
) -> Sequence[Row]:
    """The rows that ``keep`` keeps, as ``sort`` says. Rows without subjects have only words."""
    if keep.empty and sort is None:
        return rows
    indexes: Sequence[int] = range(len(rows))
    if isinstance(rows, SubjectRows):
        if not keep.empty:
            kept = partial(_kept, keep, rows, bool(keep.words), findings)
            indexes = [index for index in indexes if spared("the filter", partial(kept, index), True)]
        if sort is not None:
            value = rows.value
            key = order_of(columns, rows, sort) if value is None else lambda index: value(sort.column, index)
            indexes = sorted_indexes(indexes, key, sort.reverse)
    else:
        indexes = [index for index in indexes if keep.row(rows[index].text)]
        if sort is not None:
            indexes = sorted_indexes(indexes, order_of(columns, rows, sort), sort.reverse)
    keys = row_keys(rows)
    return LazyRows([keys[index] for index in indexes], lambda at: rows[indexes[at]])


def _kept(keep: Filter, rows: SubjectRows, words: bool, findings: FindingsOf, index: int) -> bool:
    return keep.keeps(rows.asked(index, words, findings))


def why_empty(rows: Sequence[Row], keep: Filter, findings: FindingsOf) -> str:
    """What to say when no row is left: which field is unknown of all of them, when that is why."""
    said = f"no row matches {keep.text.strip()!r}"
    if not keep.fields or not isinstance(rows, SubjectRows):
        return said
    unknown = keep.nowhere_known(rows.asked(index, False, findings) for index in range(len(rows)))
    return f"{said}: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not known here" if unknown else said
