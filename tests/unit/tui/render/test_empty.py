"""Panes without content: each says what that means and what comes next, in three lines of 80 columns."""

from __future__ import annotations

import pytest

from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, key_names
from mltop.tui.render.cells import plain
from mltop.tui.render.empty import EMPTY, empty_lines, empty_text

KEYS = {name for binding in (*APP_BINDINGS, *PANE_BINDINGS) for name in key_names(binding).split()}


@pytest.mark.parametrize("name", EMPTY)
def test_at_most_three_lines_of_80_columns(name: str) -> None:
    lines = empty_text(name, "sim030").splitlines()
    assert 1 <= len(lines) <= 3
    assert all(len(line) < 80 for line in lines) and "{" not in empty_text(name)


@pytest.mark.parametrize("name", ["stacks", "events", "incidents", "lost", "refused", "past_stacks"])
def test_a_key_comes_next(name: str) -> None:
    words = empty_text(name, "n1").replace(";", " ").split()
    assert any(word in KEYS for word in words if len(word) == 1 or word == "End")


def test_a_lost_node_is_named() -> None:
    assert plain(empty_lines("lost", 80, "sim030")[2]) == "  → to see why, run: ssh sim030 true"
