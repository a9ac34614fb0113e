"""From all rows of a table to those that are shown, in order; rows that are not shown are not made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mltop.probes.model import Finding
from mltop.tui.filters import Filter, Subject
from mltop.tui.mishaps import spared
from mltop.tui.render.cells import Column, LazyRows, Row, row_keys
from mltop.tui.screens.sorting import Sort, order_of, sorted_indexes

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
