"""The help as lines: columns by width, every line once."""

from __future__ import annotations

import pytest

from mltop.tui.render.cells import plain
from mltop.tui.screens.help.lines import help_lines

BLOCKS = [
    (f"Title{number}", [(f"key{number}.{row}", f"does {row}") for row in range(2 + number)]) for number in range(6)
]


@pytest.mark.parametrize(("width", "columns"), [(80, 1), (118, 2), (119, 2), (199, 3)])
def test_columns_by_width(width: int, columns: int) -> None:
    lines = list(map(plain, help_lines(BLOCKS, width)))
    assert lines[0].count("Title") == columns and lines[0].startswith("Title0")
    assert all(len(line) <= width for line in lines)
    text = " ".join(lines).split()
    assert sorted(word for word in text if word.startswith("key")) == sorted(
        key for _, rows in BLOCKS for key, _ in rows
    )
    high = sum(len(rows) + 2 for _, rows in BLOCKS) / columns
    assert len(lines) <= high + max(len(rows) for _, rows in BLOCKS)


def test_what_is_about_something_long_stands_apart_from_it() -> None:
    (_, line) = map(plain, help_lines([("Title", [("power=?  power!=?  and more", "unknown")])], 80))
    assert "more  unknown" in line


def test_nothing_is_no_line() -> None:
    assert help_lines([], 80) == []
