"""What every renderer makes and every widget draws: rows of cells, without colours and without markup.

A style is one of ``palette.STYLES``; the widget or the printed report maps it to colours. Text that came from a
machine is cleaned (``model.text``) when it is measured, cut or drawn: a command line cannot send escape codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any

from rich.cells import cell_len, set_cell_size

from mltop.probes.model.text import Clean, clean
from mltop.probes.model.units import UNKNOWN, known
from mltop.tui.render.glyphs import ASCII, GLYPHS, UNICODE, in_ascii
from mltop.tui.render.palette import RAMP_STEPS
from mltop.tui.render.units import TEXT, Unit

SEEN_IN_BLANKS = frozenset({"waits", "head"})  # backgrounds and underlines end with the word
GAP = 2  # blank cells between two columns


@dataclass(frozen=True)
class Cell:
    """A text in one ``style`` of palette.STYLES. A blank text is "known: nothing"; UNKNOWN is "not known"."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class FittedCell(Cell):
    """One that is drawn for the width of its column, in more than one style."""

    def fitted(self, width: int) -> list[Cell]:
        """Cells that take exactly ``width``."""
        raise NotImplementedError


def meter(share: float, width: int) -> list[Cell]:
    """``━━╸──``: what is, against what there is; the filled part in the colour of its height."""
    drawn = GLYPHS.bar(share, width)
    filled = len(drawn.rstrip(GLYPHS.rest))
    step = min(RAMP_STEPS - 1, int(max(share, 0.0) * RAMP_STEPS))
    cells = [Cell(drawn[:filled], f"ramp-{step}"), Cell(drawn[filled:], "track")]
    return [cell for cell in cells if cell.text]


METER = 5  # cells


@dataclass(frozen=True)
class MeteredCell(FittedCell):
    """``text`` in several styles, at the right edge; before it a meter of ``share``, where the column has room."""

    parts: tuple[Cell, ...] = ()
    share: float | None = None

    def fitted(self, width: int) -> list[Cell]:
        blank = width - line_width(self.parts)
        if blank < 0:
            return [Cell(clip(self.text, width), self.parts[0].style)]
        if blank > METER and self.share is not None and known(self.share):
            return [*meter(self.share, METER), Cell(" " * (blank - METER)), *self.parts]
        return [*([Cell(" " * blank)] if blank else []), *self.parts]


@dataclass(frozen=True)
class EitherCell(FittedCell):
    """``short`` where ``text`` does not fit. The style ends with the words."""

    short: str = ""

    def fitted(self, width: int) -> list[Cell]:
        text = clip(self.text if cell_len(printable(self.text)) <= width else self.short, width).rstrip()
        return [Cell(text, self.style), Cell(" " * max(0, width - cell_len(text)))]


Value = float | str | None


@dataclass(frozen=True)
class Column:
    """``cell`` is what an item of the table shows there, ``value`` what it is sorted by (None: unknown).

    ``priority`` 0 is always shown; the highest priorities are dropped first.

    ``stretch`` takes what is left, up to ``most`` cells (0: any number). ``optional`` columns are left out
    while none of their cells is known (``LineTable`` and the report do so); ``extra``: unless somebody chooses them.
    ``tail``: what is too long loses its beginning.

    ``gap``: blank cells behind it, none behind a mark.

    ``field``: the name under which a filter asks for ``value``, which has this ``unit`` and ``meaning``; "" not at all.
    """

    key: str
    title: str
    width: int
    right: bool = False
    priority: int = 0
    stretch: bool = False
    optional: bool = False
    extra: bool = False
    most: int = 0
    tail: bool = False
    gap: int = GAP
    cell: Callable[[Any], Cell | str] = lambda _: ""
    value: Callable[[Any], Value] = lambda _: None
    unit: Unit = TEXT
    field: str = ""
    meaning: str = ""

    @classmethod
    def of(
        cls,
        key: str,
        title: str,
        width: int,
        path: str,
        show: Callable[[Any], Cell | str] | None = None,
        *,
        unit: Unit = TEXT,
        **others: Any,
    ) -> Column:
        """A column about the attribute ``path`` ("rank.pid") of an item: ``show`` or ``unit`` makes its cell of it.

        ``others``: of the fields of a column; ``cell`` and ``value`` take the item itself.
        """
        get, text = attrgetter(path), show or unit.show
        others = {"cell": lambda item: text(get(item)), "value": get, **others}
        return cls(key, title, width, unit=unit, **others)

    def sorts_by(self, item: Any) -> Value:
        """The ``value`` as it is compared: case does not count, nor does what is no number."""
        value = self.value(item)
        if isinstance(value, str):
            return value.casefold() or None
        return value if known(value) else None


@dataclass(frozen=True)
class Row:
    """One cell per column of the full column list.

    A ``banner`` is drawn from the second shown column to the right edge in place of those cells (a lost GPU
    has a sentence, not numbers).
    """

    key: str
    cells: tuple[Cell, ...]
    banner: Cell | None = None

    @property
    def text(self) -> str:
        """Everything this row says, for filters."""
        parts = [cell.text for cell in self.cells]
        if self.banner is not None:
            parts.append(self.banner.text)
        return " ".join(filter(None, parts))


def with_widths(columns: Sequence[Column], **widths: int) -> tuple[Column, ...]:
    """The ``columns``, those that are named in ``widths`` with another width."""
    return tuple(replace(column, width=widths.get(column.key, column.width)) for column in columns)


def row_of(columns: Sequence[Column], item: Any, key: str, banner: Cell | None = None) -> Row:
    """The row of one item: a cell for every column."""
    cells = [column.cell(item) for column in columns]
    return Row(key, tuple([Cell(cell) if isinstance(cell, str) else cell for cell in cells]), banner)


def aged(row: Row) -> Row:
    """The row as something that was true once: dim, whatever its cells say."""
    banner = row.banner and replace(row.banner, style="dim")
    return Row(row.key, tuple(replace(cell, style="dim") for cell in row.cells), banner)


def fit(columns: Sequence[Column], width: int, hidden: Iterable[int] = ()) -> list[int]:
    """Indexes of the columns that fit into ``width`` cells; among equal priorities the rightmost goes first.

    Columns of priority 0 stay even when they do not fit: the line is then cut at its right end.
    """
    shown = sorted(set(range(len(columns))).difference(hidden))
    while shown and _width(columns, shown) > width:
        last = max(shown, key=lambda index: (columns[index].priority, index))
        if columns[last].priority == 0:
            break
        shown.remove(last)
    return shown


def _width(columns: Sequence[Column], shown: Sequence[int]) -> int:
    return sum(columns[index].width for index in shown) + sum(columns[index].gap for index in shown[:-1])


FIGURE_MOST, WORDS_MOST = 16, 40  # cells that a column may grow to: a node may claim anything


def needs(columns: Sequence[Column], rows: Iterable[Row]) -> dict[str, int]:
    """By key the cells in which a column shows its title and all of these rows whole."""
    most = [_cells_of(column.title) for column in columns]
    for row in rows:
        for at, cell in enumerate(row.cells if row.banner is None else ()):
            text = cell.text
            if (cells := len(text) if text.isascii() else cell_len(printable(text))) > most[at]:  # a thousand a second
                most[at] = cells
    return {column.key: cells for column, cells in zip(columns, most, strict=True)}


NO_NEEDS: Mapping[str, int] = MappingProxyType({})


def layout(
    columns: Sequence[Column], width: int, hidden: Iterable[int] = (), needs: Mapping[str, int] = NO_NEEDS
) -> list[tuple[int, int]]:
    """(column index, width in cells) of what is shown, in order. ``needs``: of columns by key. A part of a figure is
    another figure: figures get what they need, and other columns go. Words get it from what is left, the leftmost
    first, and from words that need less; stretching columns share the rest.
    """
    grown = {column.key: min(needs[column.key], FIGURE_MOST) for column in columns if column.right and needs}
    columns = [
        replace(column, width=grown[column.key]) if grown.get(column.key, 0) > column.width else column
        for column in columns
    ]
    shown = fit(columns, width, hidden)
    widths = {index: columns[index].width for index in shown}
    spare = max(0, width - _width(columns, shown))
    wanted = {i: min(needs.get(columns[i].key, widths[i]), WORDS_MOST) for i in shown if not columns[i].right}
    fixed = [index for index in wanted if columns[index].title and not columns[index].stretch]
    if sum(max(0, wanted[index] - widths[index]) for index in fixed) > spare:
        spare += sum(max(0, widths[index] - wanted[index]) for index in fixed)
        widths |= {index: min(widths[index], wanted[index]) for index in fixed}
    for index, cells in wanted.items():
        more = max(0, min(spare, cells - widths[index]))
        widths[index] += more
        spare -= more
    # Those with an upper limit first: what they cannot take goes to the others.
    stretching = sorted((i for i in shown if columns[i].stretch), key=lambda i: columns[i].most or width)
    for position, index in enumerate(stretching):
        share = -(-spare // (len(stretching) - position))
        if columns[index].most:
            share = min(share, max(0, columns[index].most - widths[index]))
        widths[index] += share
        spare -= share
    return list(widths.items())


def chosen_layout(
    columns: Sequence[Column], width: int, hidden: Iterable[int], chosen: Sequence[str], needs: Mapping[str, int]
) -> list[tuple[int, int]]:
    """As ``layout``, of the columns ``chosen`` (keys), in that order; what does not fit is left out from the end. A
    column without a title (a mark) stays where it is.
    """
    if not chosen:
        return layout(columns, width, hidden, needs)
    at = {column.key: index for index, column in enumerate(columns)}
    marks = [index for index, column in enumerate(columns) if not column.title]
    order = [*marks, *dict.fromkeys(at[key] for key in chosen if key in at and at[key] not in marks)]
    wanted = [replace(columns[index], priority=place, optional=False) for place, index in enumerate(order)]
    return [(order[place], cells) for place, cells in layout(wanted, width, (), needs)]


def unknown_columns(columns: Sequence[Column], rows: Iterable[Row]) -> set[int]:
    """Indexes of the optional columns in which no row knows anything, and of extra ones."""
    candidates = {index for index, column in enumerate(columns) if column.optional}
    for row in rows:
        if not candidates:
            break
        if row.banner is None:
            candidates = {index for index in candidates if row.cells[index].text.strip() in ("", UNKNOWN)}
    return candidates | {index for index, column in enumerate(columns) if column.extra}


_IN_ASCII = str.maketrans({UNICODE.dash: ASCII.dash, UNICODE.ellipsis: ASCII.ellipsis, "≥": ">="})


def printable(text: str) -> Clean:
    """The ``text`` cleaned, and where the terminal takes no more than ASCII, without what it cannot show."""
    cleaned = clean(text)
    if not GLYPHS.ascii_only:
        return cleaned
    return Clean(in_ascii(cleaned.translate(_IN_ASCII)))


def clip(text: str, width: int, right: bool = False, tail: bool = False) -> str:
    """The ``text`` in exactly ``width`` terminal cells (a wide character is two): padded, or cut with an ellipsis, at
    the end of a word where there is one not too far back. ``tail`` keeps the end instead.
    """
    text = printable(text)
    if _cells_of(text) > width:
        if width <= 0:
            return ""
        if tail:
            return GLYPHS.ellipsis + _end(text, width - 1)
        head = set_cell_size(text, width - 1).rstrip()
        blank = head.rfind(" ")
        if text[len(head) : len(head) + 1] != " " and blank * 4 >= len(head) * 3:
            head = head[:blank]
        text = head.rstrip(" ,;:(") + GLYPHS.ellipsis
    blanks = " " * (width - _cells_of(text))
    return blanks + text if right else text + blanks


def cut(cells: Sequence[Cell], width: int) -> list[Cell]:
    """The cells in at most ``width`` terminal cells; an ellipsis says where something is missing."""
    cells = list(cells)
    while cells and line_width(cells) > width and (cells[-1].text[-1:].isspace() or not cells[-1].text):
        blank = cells.pop()
        cells += [Cell(blank.text.rstrip(), blank.style)] if blank.text.strip() else []
    if line_width(cells) <= width:
        return cells
    line: list[Cell] = []
    room = width - 1  # the ellipsis needs one
    for cell in cells:
        if (needed := line_width([cell])) > room:
            return [*line, Cell(clip(cell.text, room + 1).rstrip(), cell.style)]
        line.append(cell)
        room -= needed
    return line


def _end(text: str, width: int) -> str:
    """The last ``width`` cells; half of a wide character is a blank."""
    start, used = len(text), 0
    while start > 0 and used + cell_len(text[start - 1]) <= width:
        start -= 1
        used += cell_len(text[start])
    return " " * (width - used) + text[start:]


def _cells_of(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def line_width(line: Iterable[Cell]) -> int:
    """Terminal cells that a line of cells needs."""
    return sum(_cells_of(printable(cell.text)) for cell in line)


def plain(line: Iterable[Cell]) -> str:
    """The text of a line of cells, which is one line."""
    return "".join(clean(cell.text) for cell in line)


_GAPS = {cells: Cell(" " * cells) for cells in range(GAP + 1)}


def columns_line(columns: Sequence[Column], row: Row, shown: Sequence[tuple[int, int]]) -> list[Cell]:
    """One row as a line of cells, each exactly as wide as its column, with blank cells in between."""
    line: list[Cell] = []
    for place, (index, width) in enumerate(shown):
        if place:
            line.append(_GAPS[columns[shown[place - 1][0]].gap])
        if row.banner is not None and place and columns[shown[place - 1][0]].gap:
            rest = shown[place:]
            room = sum(cells for _, cells in rest) + sum(columns[index].gap for index, _ in rest[:-1])
            return [*line, Cell(clip(row.banner.text, room), row.banner.style)]
        cell, column = row.cells[index], columns[index]
        if row.banner is not None and column.gap and not cell.text:
            cell = row.cells[index + 1]  # of a row that failed: nobody knew which column names it
        if isinstance(cell, FittedCell):
            line += cell.fitted(width)
            continue
        text = clip(cell.text, width, column.right, column.tail)
        if cell.style not in SEEN_IN_BLANKS:
            line.append(Cell(text, cell.style))
            continue
        left, right = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        line += [Cell(" " * left), Cell(text.strip(), cell.style), Cell(" " * right if text.strip() else "")]
    return line


def header_line(
    columns: Sequence[Column], shown: Sequence[tuple[int, int]], sort: tuple[str, bool] | None = None
) -> list[Cell]:
    """The titles; beside that of the sorted column is an arrow (down: largest first), between two columns where the
    title takes all of its own.
    """
    titles = Row("", tuple([Cell(column.title, "head") for column in columns]))
    line = columns_line(columns, titles, shown)
    at = next((place for place, (index, _) in enumerate(shown) if sort and columns[index].key == sort[0]), None)
    if at is None or sort is None:
        return line
    text = plain(line)
    column, width = columns[shown[at][0]], shown[at][1]
    start = sum(cells + columns[index].gap for index, cells in shown[:at])
    title = cell_len(clip(column.title, width).rstrip())
    beside = (start + width - title - 1, start + width) if column.right else (start + title, start - 1)
    blank = next((place for place in beside if 0 <= place < len(text) and text[place] == " "), None)
    if blank is None:
        return line
    arrow = GLYPHS.down if sort[1] else GLYPHS.up
    return [Cell(text[:blank] + arrow + text[blank + 1 :], "head")]


def table_lines(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[list[Cell]]:
    """The titles and the rows, in the columns that suit these rows."""
    shown = layout(columns, width, unknown_columns(columns, rows), needs(columns, rows))
    return [header_line(columns, shown), *(columns_line(columns, row, shown) for row in rows)]


_WORDS = re.compile(r"\s*\S+|\s+$")


def wrap(cells: Iterable[Cell], width: int, indent: int = 0) -> list[list[Cell]]:
    """Lines of at most ``width`` cells, broken between words; all but the first start with ``indent`` blanks.

    A word longer than a line is cut into pieces. At least one line is returned.
    """
    width = max(width, indent + 1)
    lines: list[list[Cell]] = [[]]
    used = 0
    for cell in cells:
        for word in _WORDS.findall(printable(cell.text)):
            if used + cell_len(word) > width and used > indent * (len(lines) > 1):
                lines.append([Cell(" " * indent)] if indent else [])
                used, word = indent, word.lstrip()  # noqa: PLW2901 - the blank before a broken word goes
            while used + cell_len(word) > width:
                head, word = _cut_word(word, width - used, fresh=used <= indent)  # noqa: PLW2901 - piece by piece
                _append(lines[-1], head, cell.style)
                lines.append([Cell(" " * indent)] if indent else [])
                used = indent
            _append(lines[-1], word, cell.style)
            used += cell_len(word)
    return lines


def _cut_word(word: str, room: int, fresh: bool) -> tuple[str, str]:
    """As many characters as fit into ``room`` cells, and the rest; on a fresh line at least one."""
    used = end = 0
    for end, char in enumerate(word):  # noqa: B007 - where it stopped
        used += cell_len(char)
        if used > room:
            break
    end = max(end, int(fresh))
    return word[:end], word[end:]


def _append(line: list[Cell], text: str, style: str) -> None:
    if line and line[-1].style == style:
        line[-1] = Cell(line[-1].text + text, style)
    elif text:
        line.append(Cell(text, style))


def flow(parts: Sequence[tuple[int, Sequence[Cell]]], width: int, gap: str = "  ") -> list[Cell]:
    """(priority, cells) parts of one status line, in order; the highest priorities go until the rest fits."""
    shown = [(priority, index, cells) for index, (priority, cells) in enumerate(parts) if cells]
    while True:
        line = [cell for part in shown for cell in (Cell(gap), *part[2])][1:]
        if len(shown) < 2 or line_width(line) <= width:
            return line
        shown.remove(max(shown, key=lambda part: part[:2]))


def runs(glyphs: Iterable[str], styles: Iterable[str]) -> list[Cell]:
    """Each glyph in its style; neighbours of one style are one cell: every change costs bytes."""
    pairs = zip(glyphs, styles, strict=True)
    return [Cell("".join(glyph for glyph, _ in run), style) for style, run in groupby(pairs, key=itemgetter(1))]
