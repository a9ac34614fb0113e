"""A line that somebody wrote to make mltop slow costs as much as any other of its length."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from mltop.probes.collect.logs.anchors import ANCHORS
from mltop.probes.collect.logs.files import read_log

LONG, SHORT = 16_000, 4_000
# Words of the tables, over and over, and what most expressions begin or go on with.
HOSTILE = [
    *sorted({row.holds for row in ANCHORS}),
    *("again and again ", "a", "A", " ", "1", "1 ", "_", "a.b.", "aA", "\t", "x: ", "[", "(", "rank 1 ", "[rank1]: "),
    *(
        "(a pid=1 ",
        "[a[b=1]",
        "TP1 ",
        "DP1_",
        "20 20-",
        "Error: ",
        "2026-11-03 10:00:05 ",
        "exit code ",
        "training is ",
    ),
    *(
        "a | ",
        "| ",
        '{"log":"',
        "step 1 ",
        "x.cu:1: block: [1,1,1], thread: [1,1,1] Assertion ",
        "a/b/c_12345678/attempt_",
    ),
]


BEFORE = (
    "",
    "[rank1]: Traceback (most recent call last):\n",
    "collective op ",
    "a.cu:1: block: [0,0], thread: [0,0] Assertion `",
)


def seconds(path: Path, before: str, width: int) -> float:
    """Of one core, for as many bytes whatever the width of their lines."""
    lines = [before + (text * width)[:width] for text in HOSTILE for _ in range(LONG // width)]
    path.write_text("\n".join(lines) + "\n")
    began = time.process_time()
    read_log(str(path))
    return time.process_time() - began


@pytest.mark.parametrize("before", BEFORE)
def test_long_lines_cost_what_as_many_bytes_in_short_ones_do(tmp_path: Path, before: str) -> None:
    def long_costs_more() -> bool:
        short = seconds(tmp_path / "short.log", before, SHORT)
        return seconds(tmp_path / "long.log", before, LONG) > 2.5 * short + 0.05

    assert not all(long_costs_more() for _ in range(3)), "a line of four times the length costs more than four lines"


def test_expressions_are_those_of_every_python() -> None:
    """Possessive quantifiers are an error before Python 3.11: a blank of a row becomes one before "+"."""
    assert [row.expression.pattern for row in ANCHORS if re.search(r"[*+?}]\+", row.expression.pattern)] == []
