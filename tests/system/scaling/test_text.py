"""What is printed is cleaned in a time that grows with its length, whatever it is made of."""

from __future__ import annotations

import time

import pytest

from mltop.probes.model.text import clean


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[", "\x9d", "\x90a", "\x1b[0;", "e\u0301", "\x1bP" + "a" * 4000])
def test_no_text_takes_long(part: str) -> None:
    """Twice the text takes about twice the time, not four times."""

    def seconds(text: str) -> float:
        began = time.process_time()
        clean(text, len(text))
        return time.process_time() - began

    count = 400_000 // len(part)
    short, long = min(seconds(part * count) for _ in range(3)), min(seconds(part * count * 4) for _ in range(3))
    assert long < 10 * short
