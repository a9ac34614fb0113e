"""Height glyphs, sparklines and gauges in both character sets."""

import io

import pytest

from mltop.tui.render.glyphs import ASCII, UNICODE, is_utf8

SETS = pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])


@SETS
def test_heights_grow_with_the_value(glyphs):
    ramp = [glyphs.height(step / 100) for step in range(101)]
    assert ramp[0] == glyphs.ramp[0]
    assert ramp[-1] == glyphs.ramp[-1]
    assert [glyphs.ramp.index(glyph) for glyph in ramp] == sorted(glyphs.ramp.index(glyph) for glyph in ramp)
    assert len(glyphs.ramp) == 8 and glyphs.ramp[-1] == glyphs.ramp[-2], "as high as the line below it allows"
    assert len(set(glyphs.eighths)) == 8 and set(glyphs.ramp) < set(glyphs.eighths)
    assert glyphs.alarm not in glyphs.ramp, "full is no alarm"


@SETS
@pytest.mark.parametrize("value", [None, float("nan")])
def test_unknown_is_no_level(glyphs, value):
    assert glyphs.height(value) == glyphs.unknown
    assert glyphs.unknown not in glyphs.ramp
    assert set(glyphs.bar(value, 5)) == {glyphs.unknown}


@SETS
@pytest.mark.parametrize(("value", "level"), [(-3, 0), (7.5, -1), (float("inf"), -1), (float("-inf"), 0)])
def test_values_outside_are_clamped(glyphs, value, level):
    assert glyphs.height(value) == glyphs.ramp[level]
    assert len(glyphs.bar(value, 6)) == 6


def test_sparkline_shows_the_newest_values_on_the_right():
    assert UNICODE.sparkline([0, 0.5, 1], 5) == "  ▁▅▇"
    assert UNICODE.sparkline([0, 0, None, 1], 2) == "·▇"
    assert UNICODE.sparkline([], 3) == "   "
    assert UNICODE.sparkline([1], 0) == ""


@pytest.mark.parametrize(
    ("value", "bar"),
    [(0, "────"), (0.01, "╸───"), (0.5, "━━──"), (0.6, "━━──"), (0.7, "━━╸─"), (0.99, "━━━╸"), (1, "━━━━")],
)
def test_a_bar_is_full_only_at_one_and_empty_only_at_zero(value, bar):
    assert UNICODE.bar(value, 4) == bar


@SETS
@pytest.mark.parametrize("width", range(12))
def test_bars_have_the_asked_width(glyphs, width):
    assert all(len(glyphs.bar(step / 50, width)) == width for step in range(1, 51))


def test_the_ascii_set_is_ascii():
    text = "".join(str(value) for value in vars(ASCII).values())
    assert text.isascii()


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", True), ("UTF8", True), ("latin-1", False), ("ascii", False)]
)
def test_the_encoding_of_a_stream_decides(encoding, expected):
    assert is_utf8(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is expected
    assert is_utf8(None) is False
