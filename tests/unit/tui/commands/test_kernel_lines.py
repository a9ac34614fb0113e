"""Kinds of kernel lines of many nodes: what is new, in which order, and the list of what is known."""

from __future__ import annotations

import json
import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mltop.probes.judge.kernel_lines import merge
from mltop.tui.report.check import print_kernel, summary
from mltop.tui.state import BadState
from mltop.tui.state.kernel_lines import MOST, learn, read_known


def entry(pattern: str, level: int = 6, at: float | None = 100.0, count: int = 1) -> dict[str, Any]:
    example = pattern.replace("#", "7")
    return {"pattern": pattern, "level": level, "first_at": at, "last_at": at, "count": count, "example": example}


FLEET: dict[str, list[dict[str, Any]]] = {
    "h1": [entry("usual #"), entry("half #"), entry("rare #", 6)],
    "h2": [entry("usual #"), entry("half #"), entry("bad #", 3, 50.0), entry("learned #", 0)],
    "h3": [entry("usual #", 2, 300.0, 5), entry("bad #", 4, 20.0)],
    "h4": [entry("usual #"), entry("alone #", 3)],
}


def test_what_few_nodes_say_comes_first_then_what_is_worse() -> None:
    lines = merge(FLEET, {"learned #"})
    assert [line.pattern for line in lines if line.is_new] == ["alone #", "rare #", "bad #", "half #"]
    assert [line.pattern for line in lines if not line.is_new] == ["learned #", "usual #"]
    found = {line.pattern: line for line in lines}
    assert found["learned #"].known and not found["learned #"].common
    assert found["usual #"].common and found["usual #"].nodes == ["h1", "h2", "h3", "h4"]
    assert (found["usual #"].level, found["usual #"].count, found["usual #"].last_at) == (2, 8, 300.0)
    bad = found["bad #"]
    assert (bad.level, bad.first_at, bad.last_at, bad.example, bad.example_node) == (3, 20.0, 50.0, "bad 7", "h3")


def test_half_of_the_nodes_are_not_most_of_them() -> None:
    lines = {line.pattern: line for line in merge(FLEET)}
    assert not lines["half #"].common and not lines["bad #"].common


@pytest.mark.parametrize(("nodes", "is_common"), [(1, False), (2, False), (3, True)])
def test_of_one_or_two_nodes_nothing_is_common(nodes: int, is_common: bool) -> None:
    (line,) = merge({f"h{number}": [entry("usual #")] for number in range(nodes)})
    assert line.common is is_common


def test_nodes_without_lines_count_as_peers() -> None:
    assert not merge({"h1": [entry("x")], "h2": [], "h3": []})[0].common


def test_damaged_entries_are_skipped_or_have_no_times() -> None:
    lines = merge(
        {"h1": [{}, {"pattern": 3}, {"pattern": "x", "level": "bad", "first_at": "yesterday", "count": None}]}
    )
    assert [(line.pattern, line.level, line.count, line.first_at) for line in lines] == [("x", 6, 1, None)]


def test_the_list_is_written_whole_and_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "state" / "kernel-lines.json"
    assert read_known(path) == {}
    learn(["a #", "é \u2028"], 5.0, {}, path)
    learn(["b", "a #"], 7.0, read_known(path), path)
    assert read_known(path) == {"a #": 7.0, "b": 7.0, "é \u2028": 5.0}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".kernel-lines.json.lock", "kernel-lines.json"]


def test_of_too_many_the_oldest_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "kernel-lines.json"
    learn(["old", *map(str, range(MOST - 1))], 1.0, {}, path)
    learn(["new", "0"], 2.0, read_known(path), path)
    known = read_known(path)
    assert len(known) == MOST and known["new"] == known["0"] == 2.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"patterns": 3}', '{"patterns": {"a": "b"}}', '{"mltop": 1}', "\xff", "[" * 99_999]
)
def test_a_damaged_list_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernel-lines.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadState) as problem:
        read_known(path)
    assert str(problem.value) == f"{path}: is not a list of kernel lines (move it away to begin a new one)"
    assert path.read_bytes() == text.encode("latin-1")


def test_the_list_is_json(tmp_path: Path) -> None:
    path = tmp_path / "kernel-lines.json"
    learn(["a"], 5.0, {}, path)
    assert json.loads(path.read_text()) == {"mltop_kernel_lines": 1, "patterns": {"a": 5.0}}


def test_the_printed_list_and_its_sum() -> None:
    lines = merge(FLEET, {"learned #"})
    new = [line for line in lines if line.is_new]
    assert summary(lines, 4) == "4 of 6 kinds of lines new (1 known, 1 on most of 4 nodes)"
    out = StringIO()
    print_kernel(lines, new, Console(file=out, width=80), most=3, nodes=4, now=160.0)
    text = out.getvalue().splitlines()
    assert text[0].split() == ["LEVEL", "NODES", "COUNT", "LAST", "LINE"]
    assert text[1].split() == ["err", "h4", "1", "1m00s", "alone", "7"]
    assert text[3].split()[:3] == ["err", "h[2-3]", "2"]
    assert text[4:] == ["and 1 more (--all shows them)", summary(lines, 4)]


def test_nothing_new_is_one_line() -> None:
    out = StringIO()
    print_kernel(merge({"h1": [entry("a")]}, {"a"}), [], Console(file=out, width=80), most=60, nodes=1, now=0.0)
    assert out.getvalue() == "none of 1 kinds of lines new (1 known)\n"
