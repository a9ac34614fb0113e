"""A hang seen on every pane: who, since when, what to do, at small sizes too; no blank screens, one cursor, no "…"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby

import pytest

from mltop.probes.model.units import clock_time
from tests.scenes import NOW, SCENES, Scene, shown, text_of, watched
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened, utc

HUNG = Scene(hung_s=95.0, ranks=4, watched_s=120.0, step_s=6.0)
PANES = {"main": (), "node": ("2",), "ranks": ("3",), "undumped": ("4",), "incidents": ("8",)}
ACTION = "strace -p"
ENTER = "Enter opens"


@asynccontextmanager
async def hung(size: tuple[int, int], *keys: str) -> AsyncIterator[Opened]:
    with utc():
        app = watched(HUNG)
        async with app.run_test(size=size) as pilot:
            screen = Opened(app, pilot, None)  # type: ignore[arg-type]
            await screen.until(lambda: app.picture is not None, "the first picture")
            await screen.press(*keys)
            yield screen


# A line of them asks whether the stacks are to be dumped.
@pytest.mark.parametrize("size", [(80, 13), (80, 24), (120, 40)], ids=str)
async def test_who_holds_the_job_up_and_what_to_do_stand_on_every_pane(size: tuple[int, int]) -> None:
    async with hung(size) as screen:
        for keys in PANES.values():
            await screen.press(*keys)
            text = await screen.shows("■ rank 3", ACTION)
            first = text.splitlines()[0]
            assert first.startswith("■ HUNG ") and "in all_reduce" in first
            assert first.rstrip().endswith((ENTER, "8 opens"))
            assert "HUNG" in "\n".join(text.splitlines()[2:]), "the line below says it, too"


@pytest.mark.parametrize("pane", PANES)
async def test_the_key_of_line_1_does_what_it_says(pane: str) -> None:
    async with hung((120, 40), *PANES[pane]) as screen:
        first = screen.lines()[0].rstrip()
        here = screen.app.trail.here
        await screen.press("enter" if first.endswith(ENTER) else "8")
        there = screen.app.trail.here
        assert there != here and there.pane == "incidents"
        assert bool(there.incident) == first.endswith(ENTER)


async def test_where_the_cursor_is_elsewhere_enter_is_not_promised() -> None:
    async with hung((120, 40)) as screen:
        assert screen.lines()[0].rstrip().endswith(ENTER)
        await screen.press("tab")
        assert screen.lines()[0].rstrip().endswith("8 opens")


@pytest.mark.parametrize("size", [(120, 40), (200, 60)], ids=str)
async def test_spare_rows_are_not_left_blank(size: tuple[int, int]) -> None:
    async with hung(size) as screen:
        for keys in (*PANES.values(), ("t",), ("5",), ("6",)):
            await screen.press(*keys)
            lines = (await screen.shows("HUNG")).splitlines()[1:-1]
            runs = [len(list(run)) for blank, run in groupby(lines, lambda line: not line.strip()) if blank]
            assert max(runs, default=0) <= size[1] // 8, "\n".join(lines)


NODES_16 = Scene(nodes=16, others=3, step_s=5.0)
OVERVIEWS = {**SCENES, "fine-16": NODES_16, "hung-16": replace(NODES_16, hung_s=95.0)}


@pytest.mark.parametrize("name", OVERVIEWS)
async def test_a_large_overview_has_no_blank_area(name: str) -> None:
    """Also in the list of nodes."""
    scene = OVERVIEWS[name]
    steps = 5 if scene.nodes <= 64 else 1
    app = watched(replace(scene, watched_s=min(scene.watched_s, steps * scene.step_s)))
    async with app.run_test(size=(200, 60)) as pilot:
        await shown(app, pilot)
        for _ in range(1 + (scene.nodes > 1 and not scene.connecting)):
            lines = text_of(app).splitlines()
            runs = [len(list(run)) for blank, run in groupby(lines, lambda line: not line.strip()) if blank]
            assert max(runs, default=0) <= 3, "\n".join(lines)
            await pilot.press("v")
            await pilot.pause()


async def test_nothing_is_cut_but_command_lines_and_paths() -> None:
    async with hung((80, 24)) as screen:
        for keys in (*PANES.values(), ("t",), ("5",), ("6",), ("2", "j", "enter")):
            await screen.press(*keys)
            cut = [line for line in (await screen.shows("HUNG")).splitlines() if "…" in line]
            assert not [line for line in cut if "train.py" not in line and "torch/" not in line]


async def test_the_stacks_pane_tells_other_threads_and_what_was_before() -> None:
    async with hung((120, 40), "t") as screen:
        text = await screen.shows("OTHER THREADS OF RANK 3", "BEFORE THIS DUMP")
        assert f"{clock_time(NOW - 97.0)}  last progress of the job" in text


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_one_cursor_at_a_time(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLORTERM": "truecolor", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORFGBG", "0;15" if theme == "light" else "15;0")
    async with hung((120, 40)) as screen:
        assert screen.app.theme == theme
        for keys in (*PANES.values(), ("1", "tab"), ("2", "tab")):
            await screen.press(*keys)
            look = screen.app.focused.cell_style("", "cursor").bgcolor  # type: ignore[union-attr]
            strips = screen.app.screen._compositor.render_strips()
            rows = [
                y
                for y, strip in enumerate(strips)
                if any(segment.style is not None and segment.style.bgcolor == look for segment in strip)
            ]
            assert rows or keys == ("4",), "of lines that open nothing none has the cursor"
            assert not rows or rows == list(range(rows[0], rows[-1] + 1)), "one place, of one line or more"


async def test_a_recording_tells_that_it_is_one() -> None:
    scene = Scene(hung_s=95.0, ranks=4, watched_s=130.0, step_s=1.0, replayed=True)
    with utc():
        app = watched(scene)
        async with app.run_test(size=(120, 40)) as pilot:
            screen = Opened(app, pilot, None)  # type: ignore[arg-type]
            await screen.until(lambda: app.picture is not None and app.player is not None, "the recording")
            await screen.press("p", "end")
            text = await screen.shows("HUNG", "replay paused")
            assert text.splitlines()[0].rstrip().endswith("p plays")
            assert text == text_of(app)


@pytest.mark.parametrize("size", [(80, 12), (80, 24)], ids=str)
async def test_critical_lines_do_not_give_way_to_healthy_rows(size: tuple[int, int]) -> None:
    """A node with a lost and a hot GPU: what to do about both, before any GPU that is well."""
    async with opened(FakeSession(), size=size) as screen:
        for keys in ("1", "2"):
            await screen.press(keys)
            text = await screen.shows("CRIT")
            marked = [line for line in text.splitlines() if line.startswith("▲ GPU")]
            assert len(marked) >= 2, text
            rows = [line.split()[:2] for line in text.splitlines() if line.endswith(("no process", "works"))]
            hurt = [line for line in text.splitlines() if line.startswith("▲  ")]
            assert hurt or not rows, "in a table that is cut the GPUs that something is wrong with come first"
