"""Graphs over time: the moment that is looked at is one column, and the axis says its time."""

from __future__ import annotations

import pytest

from mltop.tui.render.cells import plain
from mltop.tui.render.graph import GraphCell, Scale, Span, axis

T0 = 1_763_640_000.0  # 2025-11-20 12:00:00 UTC


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mltop.tui.render.graph.clock_time", lambda at: f"t{at - T0:g}")


def scale(moment: float | None, width: int = 60) -> Scale:
    return Scale.of(int(T0), 1.0, width, moment=moment)


def test_now_has_no_column_of_its_own() -> None:
    assert set(scale(None).styles(())) == {"graph"} and scale(None).looked_at == 59
    assert plain(axis(scale(None))).endswith("now")


def test_the_moment_lies_over_all_states() -> None:
    waits = Span(T0 - 300, None, "graph-waits")
    styles = scale(T0 - 100).styles((waits,))
    assert [at for at, style in enumerate(styles) if style == "scrub"] == [scale(None).column(T0 - 100)]
    assert styles[-1] == "graph-waits"
    text = plain(axis(scale(T0 - 100)))
    assert "t-100" in text and text.endswith("now")


def test_a_graph_that_ends_at_the_moment_does_not_say_now() -> None:
    text = plain(axis(scale(T0)))
    assert text.endswith("t0") and "now" not in text
    assert scale(T0).styles(())[-1] == "scrub"


@pytest.mark.parametrize("moment", [T0 - 10_000, T0 + 10_000])
def test_a_moment_beside_the_graph_stays_within(moment: float) -> None:
    assert 0 <= scale(moment).looked_at < 60 and len(scale(moment).styles(())) == 60


def test_a_graph_in_a_table_marks_it_too() -> None:
    cells = GraphCell("", "", int(T0), 1.0, (), T0 - 300, lambda: [0.5] * 600).fitted(20)
    assert [cell.style for cell in cells].count("scrub") == 1
