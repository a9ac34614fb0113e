"""Wrapping, and status lines that drop what matters least."""

import pytest
from rich.cells import cell_len

from mltop.tui.render.cells import Cell, flow, plain, wrap


@pytest.mark.parametrize("width", range(1, 60))
@pytest.mark.parametrize("indent", [0, 2, 6])
def test_wrapped_lines_fit_and_lose_nothing(width, indent):
    text = "HANG rank 2 sleeps in a_rather_long_function_name_indeed (日本語/case.py:14) and others wait"
    cells = [Cell(text[:20], "crit"), Cell(text[20:])]
    lines = wrap(cells, width, indent)
    room = max(width, indent + 2)  # a wide character needs two
    assert all(cell_len(plain(line)) <= room for line in lines)
    joined = "".join(plain(line).strip() for line in lines).replace(" ", "")
    assert joined == text.replace(" ", "")


def test_wrapping_keeps_styles_and_indents():
    lines = wrap([Cell("aaa ", "crit"), Cell("bbb ccc")], 8, indent=2)
    assert [plain(line) for line in lines] == ["aaa bbb", "  ccc"]
    assert lines[0][0] == Cell("aaa ", "crit")


def test_wrapping_nothing_is_one_empty_line():
    assert wrap([], 10) == [[]]


def test_control_characters_do_not_survive_wrapping():
    assert plain(wrap([Cell("a\x1b[2Jb")], 20)[0]) == "ab"


def test_flow_drops_the_highest_priority_first():
    parts = [(0, [Cell("first")]), (2, [Cell("second")]), (1, [Cell("third")]), (3, [])]
    assert plain(flow(parts, 40)) == "first  second  third"
    assert plain(flow(parts, 19)) == "first  third"
    assert plain(flow(parts, 5)) == "first"
    assert plain(flow(parts, 1)) == "first"
    assert flow([], 10) == []
