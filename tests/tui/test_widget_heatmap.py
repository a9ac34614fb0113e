"""The heatmap alone: what it repaints, where its cursor goes, when nodes come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from mltop.probes.model import GpuSample, NodeState, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.render.fleet.heat import METRICS, Heats, NodeHeat
from mltop.tui.render.fleet.map import Section
from mltop.tui.screens.overview.heatmap import Heatmap

NODES = 60


class Counting(Heatmap):
    """Counts which screen lines are drawn."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        super().__init__(self.moved.append)
        self.drawn: list[int] = []

    def render_line(self, y: int):  # type: ignore[no-untyped-def]
        self.drawn.append(y)
        return super().render_line(y)


class Alone(App[None]):
    def compose(self) -> ComposeResult:
        yield Counting()


class Fleet:
    """Levels of ``NODES`` nodes that can be set one by one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names or (f"node{number:02d}" for number in range(NODES)))
        self._heats = Heats(METRICS[0])
        self._busy = dict.fromkeys(self.names, 0.5)
        self._at = 0.0

    def set(self, name: str, busy: float) -> None:
        self._busy[name] = busy

    def heats(self) -> list[NodeHeat]:
        self._at += 1
        gpus = {name: [GpuSample(gpu, busy=busy) for gpu in range(8)] for name, busy in self._busy.items()}
        views = [NodeView(NodeState(name, "live"), Sample(name, self._at, gpus=gpus[name])) for name in self.names]
        return [self._heats.of(view) for view in views]


@asynccontextmanager
async def alone(fleet: Fleet, room: int = 30) -> AsyncIterator[tuple[Counting, Pilot[None]]]:
    app = Alone()
    async with app.run_test(size=(100, 30)) as pilot:
        heatmap = app.query_one(Counting)
        heatmap.focus()
        heatmap.set_map(fleet.heats(), (), (), room)
        await pilot.pause()
        heatmap.drawn.clear()
        yield heatmap, pilot


async def test_only_lines_that_changed_are_drawn_again() -> None:
    fleet = Fleet()
    async with alone(fleet) as (heatmap, pilot):
        heatmap.set_map(fleet.heats(), (), (), 30)
        await pilot.pause()
        assert heatmap.drawn == [], "new samples, the same levels"
        fleet.set("node33", 1.0)
        heatmap.set_map(fleet.heats(), (), (), 30)
        await pilot.pause()
        assert heatmap.drawn == [heatmap.grid.place(33)[0]]


async def test_the_cursor_repaints_the_lines_it_leaves_and_enters() -> None:
    async with alone(Fleet()) as (heatmap, pilot):
        await pilot.press("down")
        await pilot.pause()
        assert sorted(set(heatmap.drawn)) == [0, 1]
        assert heatmap.moved[-1] == heatmap.cursor_key


async def test_marks_are_repainted() -> None:
    fleet = Fleet()
    async with alone(fleet) as (heatmap, pilot):
        heatmap.set_map(fleet.heats(), (), {"node00"}, 30)
        await pilot.pause()
        assert heatmap.drawn == [0]


async def test_the_cursor_goes_with_its_node_and_stays_in_place_when_it_is_gone() -> None:
    fleet = Fleet()
    async with alone(fleet) as (heatmap, pilot):
        assert heatmap.move_cursor("node20") and not heatmap.move_cursor("nowhere")
        fleet.names.reverse()
        heatmap.set_map(fleet.heats(), (), (), 30)
        assert heatmap.cursor_key == "node20"
        fleet.names.remove("node20")
        heatmap.set_map(fleet.heats(), (), (), 30)
        assert heatmap.cursor_key == "node19", "the one that now stands there"
        heatmap.set_map([], (), (), 30)
        await pilot.press("down", "right", "end", "enter", "pagedown")
        assert heatmap.cursor_key is None
        heatmap.set_map(fleet.heats(), (), (), 30)
        assert heatmap.cursor_key is not None


async def test_up_and_down_keep_the_column_across_shorter_lines() -> None:
    fleet = Fleet()
    async with alone(fleet) as (heatmap, pilot):
        per_row = heatmap.grid.per_row
        heatmap.set_map(fleet.heats(), [Section(0, ""), Section(2, "")], (), 30)
        heatmap.move_cursor(fleet.names[2 + per_row - 1 - 1])
        column = heatmap.grid.place(heatmap._cursor)[1]
        assert column > 1
        await pilot.press("up")
        assert heatmap.cursor_key == fleet.names[1], "the last of the shorter line"
        await pilot.press("down")
        assert heatmap.grid.place(heatmap._cursor)[1] == column


async def test_what_does_not_fit_scrolls_with_the_cursor() -> None:
    fleet = Fleet([f"n{number}" for number in range(3000)])
    async with alone(fleet, room=5) as (heatmap, pilot):
        heatmap.styles.height = 5
        await pilot.pause()
        assert heatmap.max_scroll_y > 0 and heatmap.grid.density == "cells"
        await pilot.press("end")
        await pilot.pause()
        assert heatmap.scroll_y == heatmap.max_scroll_y and heatmap.cursor_key == "n2999"
        await pilot.press("home")
        await pilot.pause()
        assert heatmap.scroll_y == 0
