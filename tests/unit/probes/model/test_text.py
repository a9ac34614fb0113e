"""Words of nodes, files and users are fit for a terminal, wherever they go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mltop.probes.agent.protocol import Boot, Message
from mltop.probes.model.acts import DiagResult
from mltop.probes.model.text import MOST_LINE, MOST_MARKS, MOST_SAID, clean, make_plain, plain_text
from mltop.probes.reach.channel import MOST_REASON, Ending
from mltop.probes.reach.requests import MOST_ERROR, Pending
from mltop.tui.render.cells import clip

NASTY = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\nline two\t\u202eend\x9b\x00"  # cleaned: "red line two end"


def test_what_a_terminal_would_obey_is_gone() -> None:
    assert plain_text(NASTY) == "red line two end"
    assert plain_text("\x1b]never ended, our words") == "never ended, our words"
    assert plain_text("été 中文 …") == "été 中文 …"


def test_it_is_bounded() -> None:
    long = plain_text("A" * 5_000_000)
    assert len(long) == MOST_SAID and long.endswith("A…")
    assert plain_text("A" * MOST_SAID) == "A" * MOST_SAID


def test_endings_and_answers_are() -> None:
    ending = Ending(NASTY + "A" * 5000, NASTY)
    assert ending.fix == "red line two end" and len(ending.reason) == MOST_REASON
    pending = Pending(("n1",), lambda: None)
    pending.put("n1", Message("error", error=NASTY + "A" * 5000, fix=NASTY))
    (answer,) = pending.answers(1.0)
    assert answer.message.fix == "red line two end"
    assert len(answer.message.error) == MOST_ERROR


def test_a_boot_frame_is() -> None:
    boot = make_plain(Boot("m1\x1b[2J", "3", notes=[NASTY] * 1000))
    assert boot.machine == "m1" and boot.notes == ["red line two end"] * 20


def test_numbers_beside_texts_stay() -> None:
    result = make_plain(DiagResult(f"memory{NASTY}", "fail", list(range(72)), NASTY))
    assert result == DiagResult("memoryred line two end", "fail", list(range(72)), "red line two end")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b]52;c;cm0gLXJmIC8=\x07clip", "clip"),
        ("\x1b]8;;http://h/\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;title\x9cname", "name"),
        ("\x1bP1$r0m\x1b\\dcs\x90q#0\x9c", "dcs"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x", "x"),
        ("\x1b(0lqk\x1b(B\x1b=\x1bc\x1b7", "lqk"),
        ("one\ntwo\r\nthree\u2028four\x85five\x0bsix", "one two  three four five six"),
        ("a\x08\x08\x08b\x7f\x00\x07", "ab"),
        ("\u202etxt.exe\u2066\u200f\u061c", "txt.exe"),
        ("ro\u200bot\ufeff \u2060\u00ad\U000e0041", "root "),
        ("ro\u3164ot\u115f\ufe0f\U000e0101\u034f\u180e", "root"),
        ("caf\udce9", "caf\ufffd"),
        ("\ud83d", "\ufffd"),
        ("\ue000\U0010ffff", ""),
        ("e\u0301" + "\u0301" * 50 + "x", "e" + "\u0301" * MOST_MARKS + "x"),
        ("\u0e01" + "\u0e47" * 50, "\u0e01" + "\u0e47" * MOST_MARKS),
        ("\u0301alone", "alone"),
        ("日本語 é ё 😀 ✓ ▁█ … –", "日本語 é ё 😀 ✓ ▁█ … –"),
    ],
)
def test_nothing_is_left_that_moves_hides_or_forges(text: str, shown: str) -> None:
    assert clean(text) == shown
    assert clean(clean(text)) == shown


def test_a_line_is_bounded_and_says_that_it_was_cut() -> None:
    assert len(clean("a" * 5_000_000)) == MOST_LINE and clean("a" * 5_000_000).endswith("a…")
    assert clean("\x1b[31m" * 100_000 + "end").endswith("…")
    assert clean("ab", 1) == "…"


@settings(max_examples=100)
@given(st.text(st.characters(codec=None, categories=None), max_size=60))
def test_whatever_comes_in_one_clean_line_goes_out(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() and "\x1b" not in cleaned
    assert clean(cleaned) == cleaned
    assert cleaned.encode("utf-8").decode() == cleaned
    assert cell_len(clip(text, 12)) == 12
