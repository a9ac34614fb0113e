"""Columns that fit, cells cut to their column, rows made lazily."""

import pytest
from rich.cells import cell_len

from mltop.tui.render.cells import (
    GAP,
    Cell,
    Column,
    Row,
    clip,
    columns_line,
    fit,
    header_line,
    layout,
    plain,
    printable,
    unknown_columns,
)
from mltop.tui.render.rows import LazyRows, row_keys

COLUMNS = (
    Column("a", "A", 3, right=True),
    Column("b", "B", 5, priority=2),
    Column("c", "C", 4, priority=1),
    Column("d", "D", 6, priority=2),
)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (24, [0, 1, 2, 3]),
        (23, [0, 1, 2]),  # of two equal priorities the right one goes
        (16, [0, 1, 2]),
        (15, [0, 2]),
        (9, [0, 2]),
        (8, [0]),
        (0, [0]),  # priority 0 stays even where it does not fit
    ],
)
def test_columns_that_fit(width, shown):
    assert fit(COLUMNS, width) == shown


def test_no_columns_fit_anywhere():
    assert fit((), 80) == []
    assert layout((), 80) == []


@pytest.mark.parametrize("width", range(10, 200, 7))
def test_stretching_columns_fill_the_line(width):
    columns = (*COLUMNS, Column("e", "E", 4, stretch=True), Column("f", "F", 4, stretch=True, most=9))
    shown = layout(columns, width)
    used = sum(w for _, w in shown) + GAP * (len(shown) - 1)
    assert used == max(width, 3 + 4 + 4 + 2 * GAP)
    assert dict(shown)[5] <= 9


def test_hidden_columns_make_room():
    assert layout(COLUMNS, 17) == [(0, 3), (1, 5), (2, 4)]
    assert layout(COLUMNS, 17, hidden={1}) == [(0, 3), (2, 4), (3, 6)]
    assert layout(COLUMNS, 16, hidden={1}) == [(0, 3), (2, 4)]


@pytest.mark.parametrize(
    ("text", "width", "right", "expected"),
    [
        ("ab", 4, False, "ab  "),
        ("ab", 4, True, "  ab"),
        ("abcdef", 4, False, "abc…"),
        ("123456", 4, True, "123…"),
        ("waits in all_reduce", 12, False, "waits in al…"),
        ("waits in all_reduce", 8, False, "waits i…"),
        ("1150/1200W", 8, False, "1150/12…"),
        ("7345123456", 8, False, "7345123…"),
        ("wants gpu reset", 8, False, "wants g…"),
        ("python train.py", 9, False, "python…  "),
        ("nvidia-nvswitch", 10, False, "nvidia-nv…"),
        ("GPU 3 is too hot, throttled", 18, False, "GPU 3 is too hot… "),
        ("abcd", 4, True, "abcd"),
        ("日本語", 6, False, "日本語"),
        ("日本語", 5, False, "日本…"),
        ("日本語", 4, False, "日… "),
        ("日", 4, True, "  日"),
        ("abc", 0, False, ""),
        ("", 2, False, "  "),
    ],
)
def test_clip(text, width, right, expected):
    clipped = clip(text, width, right)
    assert clipped == expected
    assert cell_len(clipped) == width


def test_clip_keeps_the_end():
    assert clip("1", 3, right=True, tail=True) == "  1"
    assert clip("123456", 3, tail=True) == "…56"


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\nb", "a\tb", "\x00", "\u202eabc", "\x9b31m", "e" + "\u0301" * 9])
def test_what_a_machine_says_cannot_move_the_cursor(text):
    assert printable(text).isprintable()
    assert clip(text, 9).isprintable() and cell_len(clip(text, 9)) == 9
    assert clip(f"{text}日本語日本語日本語", 10, tail=True) == "… 語日本語"


def test_a_line_is_as_wide_as_its_columns():
    row = Row("k", (Cell("1"), Cell("x" * 9, "warn"), Cell("[red]"), Cell("日本語日本語")))
    line = columns_line(COLUMNS, row, layout(COLUMNS, 24))
    assert plain(line) == "  1  xxxx…  [re…  日本… "
    assert [cell.style for cell in line if cell.text.strip()] == ["", "warn", "", ""]


def test_a_banner_replaces_everything_after_the_first_column():
    row = Row("k", (Cell("7"), Cell("b"), Cell("c"), Cell("d")), Cell("LOST since 12:00:00 and so on", "crit"))
    line = columns_line(COLUMNS, row, layout(COLUMNS, 24))
    assert plain(line) == "  7  LOST since 12:00:0…"
    assert line[-1].style == "crit"
    assert row.text == "7 b c d LOST since 12:00:00 and so on"


@pytest.mark.parametrize(("reverse", "arrow"), [(True, "▼"), (False, "▲")])
def test_the_sorted_column_is_marked(reverse, arrow):
    shown = layout(COLUMNS, 24)
    assert plain(header_line(COLUMNS, shown)) == "  A  B      C     D     "
    assert plain(header_line(COLUMNS, shown, ("a", reverse))) == f" {arrow}A  B      C     D     "
    assert plain(header_line(COLUMNS, shown, ("b", reverse))) == f"  A  B{arrow}     C     D     "
    marked = (Column("mark", "", 1, gap=0), *COLUMNS)
    shown = layout(marked, 25)
    assert plain(header_line(marked, shown, ("b", reverse))) == f"   A  B{arrow}     C     D     ", "a mark has no gap"
    assert plain(header_line(marked, shown, ("d", reverse))) == f"   A  B      C     D{arrow}    "


def test_an_arrow_eats_no_title() -> None:
    columns = tuple(Column(name, name.upper(), len(name), right=name == "gpu") for name in ("gpu", "sm", "power"))
    shown = layout(columns, 80)
    for column in columns:
        text = plain(header_line(columns, shown, (column.key, True)))
        assert text.replace("▼", " ").split() == ["GPU", "SM", "POWER"]
        assert "▼" in text


def test_a_background_ends_with_its_word():
    columns = (Column("a", "A", 9), Column("b", "B", 5, right=True))
    line = columns_line(columns, Row("", (Cell("waits", "waits"), Cell("7", "waits"))), layout(columns, 16))
    assert plain(line) == "waits          7"
    assert {cell.text for cell in line if cell.style == "waits"} == {"waits", "7"}


def test_narrow_gaps_and_none():
    columns = (Column("m", "", 1, gap=0), Column("a", "A", 2, gap=1), Column("b", "B", 2), Column("c", "C", 2))
    row = Row("", tuple(Cell(text) for text in ("!", "aa", "bb", "cc")))
    assert plain(columns_line(columns, row, layout(columns, 10))) == "!aa bb  cc"
    assert fit(columns, 10) == [0, 1, 2, 3]


def test_optional_columns_without_any_value_are_named():
    columns = (Column("a", "A", 2), Column("b", "B", 2, optional=True), Column("c", "C", 2, optional=True))
    rows = [Row("1", (Cell("–"), Cell("–"), Cell("–"))), Row("2", (Cell("–"), Cell(""), Cell("5")))]
    assert unknown_columns(columns, rows) == {1}
    assert unknown_columns(columns, []) == {1, 2}


def test_lazy_rows_are_made_once_and_only_when_looked_at():
    made = []

    def make(index):
        made.append(index)
        return Row(f"k{index}", (Cell(str(index)),))

    rows = LazyRows([f"k{index}" for index in range(1000)], make)
    assert len(rows) == 1000
    assert row_keys(rows)[999] == "k999"
    assert made == []
    assert [row.key for row in rows[10:12]] == ["k10", "k11"]
    assert rows[-1].key == "k999"
    assert rows[10] is rows[10]
    assert made == [10, 11, 999]
    with pytest.raises(IndexError):
        rows[1000]
