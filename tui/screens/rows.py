"""From all rows of a table to those that are shown, in order; rows that are not shown are not made. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from mltop.probes.model import Finding
from mltop.tui.filters import Filter, Subject
from mltop.tui.render.cells import Column, Row, Value, layout
from mltop.tui.render.guarded import guarded
from mltop.tui.render.rows import LazyRows, Sort, row_keys

FindingsOf = Mapping[str, Sequence[Finding]]

_COUNT_UP = ("gpu", "rank", "pid", "gpus")  # names rather than amounts: the smallest comes first


def next_sort(columns: Sequence[Column], width: int, now: Sort | None) -> Sort | None:
    """The next column that fits into ``width``; after the last one the order the rows came in (None)."""
    keys = [columns[index].key for index, _ in layout(columns, width) if columns[index].title]
    at = keys.index(now.column) + 1 if now is not None and now.column in keys else 0
    return first_sort(columns, keys[at]) if at < len(keys) and (now is None or at > 0) else None


def first_sort(columns: Sequence[Column], key: str) -> Sort:
    """Amounts start with the largest, names with the smallest."""
    column = next(column for column in columns if column.key == key)
    return Sort(key, column.right and key not in _COUNT_UP)


def sorted_indexes(indexes: Iterable[int], order: Callable[[int], Any], reverse: bool) -> list[int]:
    """Indexes by what ``order`` returns for each, None last either way; equals keep their order."""
    values = [(guarded("sorting", partial(order, index), None), index) for index in indexes]
    known = [pair for pair in values if pair[0] is not None]
    known.sort(key=itemgetter(0), reverse=reverse)
    return [index for _, index in known] + [index for value, index in values if value is None]


class SubjectRows(LazyRows):
    """Lazy rows that a filter can ask for their fields.

    ``subject(i)`` is what row i is about; ``text(i)`` what words look for: without it the row itself is made and read,
    with ``full_name(i)`` before it, which it may have cut short.

    A table's rows hold the picture that they are made from. They must end with their last user: nobody looks for
    cycles among thousands of objects (``session.COLLECT_AFTER``).
    """

    def __init__(
        self,
        keys: Sequence[str],
        make: Callable[[int], Row],
        subject: Callable[[int], Subject],
        value: Callable[[str, int], Value] = lambda *_: None,
        *,
        text: Callable[[int], str] | None = None,
        full_name: Callable[[int], str] = lambda _: "",
    ) -> None:
        super().__init__(keys, make, value)
        self.subject = subject
        self._text, self._full_name = text, full_name

    def text(self, index: int) -> str:
        """What words look for in a row."""
        return self._text(index) if self._text is not None else f"{self._full_name(index)} {self[index].text}".strip()

    def subject_with(self, index: int, findings: FindingsOf, needs_text: bool = False) -> Subject:
        """The subject as a filter wants it: with its findings and, for words, its text."""
        subject = self.subject(index)
        own = subject.findings or findings.get(subject.view.node, ())
        if not own and not needs_text:
            return subject
        return subject._replace(findings=own, text=self.text(index) if needs_text else None)


def by_node(findings: Sequence[Finding]) -> FindingsOf:
    of_nodes: dict[str, list[Finding]] = {}
    for finding in findings:
        of_nodes.setdefault(finding.node, []).append(finding)
    return of_nodes


def narrowed(rows: Sequence[Row], keep: Filter, sort: Sort | None, findings: FindingsOf) -> Sequence[Row]:
    """The rows that ``keep`` keeps, ordered by ``sort``. Rows without subjects have only words."""
    if keep.empty and sort is None:
        return rows
    indexes: Sequence[int] = range(len(rows))
    if isinstance(rows, SubjectRows) and not keep.empty:
        words = bool(keep.words)

        def keeps(index: int) -> bool:
            return keep.keeps(rows.subject_with(index, findings, needs_text=words))

        indexes = [index for index in indexes if guarded("the filter", partial(keeps, index), True)]
    elif not keep.empty:
        indexes = [index for index in indexes if keep.row(rows[index].text)]
    if sort is not None and isinstance(rows, LazyRows):
        indexes = sorted_indexes(indexes, partial(rows.value, sort.column), sort.reverse)
    keys = row_keys(rows)
    return LazyRows([keys[index] for index in indexes], lambda at: rows[indexes[at]])


def why_empty(rows: Sequence[Row], keep: Filter, findings: FindingsOf) -> str:
    """What an empty table says where a filter left no row: which field is unknown of all rows, if that is why."""
    text = f"no row matches {keep.text.strip()!r}"
    if not keep.fields or not isinstance(rows, SubjectRows):
        return text
    unknown = keep.nowhere_known(rows.subject_with(index, findings) for index in range(len(rows)))
    return f"{text}: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not known here" if unknown else text
