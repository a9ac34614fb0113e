"""Any terminal size, few colours and no colours: the screen stays alive and readable."""

from __future__ import annotations

import random

import pytest
from rich.color import ColorType

from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

SIZES = [(10, 2), (20, 5), (16, 4), (40, 8), (79, 23), (120, 40), (250, 80), (250, 6)]
PANES = ("1", "2", "3", "4", "question_mark")


@pytest.mark.parametrize("start", [(10, 2), (40, 8), (250, 6)])
async def test_every_pane_at_every_size(start: tuple[int, int]) -> None:
    """An app that is started at the smallest size sees all of them, and one that is started elsewhere a few."""
    order = {(10, 2): SIZES, (40, 8): [(40, 8), (10, 2), (250, 80)], (250, 6): [(250, 6), (20, 5)]}[start]
    async with opened(size=start) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        for size in order:
            await screen.pilot.resize_terminal(*size)
            for key in PANES:
                await screen.press(key)
                _fits(screen, size)
            await screen.press("3", "enter")
            _fits(screen, size)


async def test_resizing_at_random_keeps_the_screen_whole() -> None:
    dice = random.Random(7)
    async with opened(FakeSession([fake_views.fleet(tick, nodes=9) for tick in range(40)])) as screen:
        for turn in range(15):
            size = dice.randint(10, 250), dice.randint(2, 80)
            await screen.pilot.resize_terminal(*size)
            await screen.press(dice.choice([*PANES, "j", "G", "s", "S", "tab"]))
            if turn % 5 == 0:
                await screen.step()
            _fits(screen, size)
        await screen.pilot.resize_terminal(120, 40)
        await screen.press("1")
        await screen.shows("node009", "q quit")


def _fits(screen: Opened, size: tuple[int, int]) -> None:
    lines = screen.lines()
    assert len(lines) == size[1]
    assert all(len(line) <= size[0] for line in lines)
    assert any(lines), "something is shown"


async def test_80x24_holds_8_gpus_ranks_and_problems() -> None:
    async with opened() as screen:
        text = await screen.shows("LOST since 11:58:25")
        for pid in range(8120, 8124):
            assert sum(str(pid) in line for line in text.splitlines()) == 1, "each rank"
        lines = text.splitlines()
        assert sum(line[1:5].strip() == str(gpu) for line in lines for gpu in (0, 1, 2, 3, 6)) >= 5
        assert any("4-5,7  idle, no process" in line for line in lines), "those that nobody uses are one line"
        assert sum(line.startswith(("▲ GPU 3", "▲ GPU 6")) and "CRIT" in line for line in lines) == 2


async def test_small_terminal_keeps_the_gpus() -> None:
    async with opened(size=(20, 5)) as screen:
        text = await screen.shows("GPU    SM", "▲ GPU 6")
        assert "? help" in text.splitlines()[-1]


async def test_tiny_terminal_says_so() -> None:
    async with opened(size=(10, 2)) as screen:
        await screen.shows("too small")
        await screen.pilot.resize_terminal(80, 24)
        await screen.shows("GPU    SM", "q quit")
        await screen.shows_not("too small")


async def test_many_gpus_scroll_and_leave_room_for_ranks() -> None:
    view = fake_views.one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    sample.gpus = [fake_views.gpu_sample(index, 0, bad=False) for index in range(32)]
    async with opened(FakeSession([view])) as screen:
        text = await screen.shows("RANK  GPU", "8120")
        assert "q quit" in text
        await screen.press("G")
        await screen.shows(" 31 ")


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "screen"}, {"TERM": "xterm-256color"}])
async def test_colours(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with opened() as screen:
        await screen.shows("LOST since")
        styles = _styles(screen)
        few = variables != {"TERM": "xterm-256color"}
        assert (screen.app.theme == "terminal") == few
        assert styles["LOST since"] != styles["610"], "what is wrong looks different"
        if few:
            kinds = {color.type for found in styles.values() for color in found[:2] if color is not None}
            assert kinds <= {ColorType.DEFAULT, ColorType.STANDARD}, kinds


def _styles(screen: Opened) -> dict[str, tuple[object, ...]]:
    """Colours and weight of the first piece of text that contains each word."""
    found: dict[str, tuple[object, ...]] = {}
    for strip in screen.app.screen._compositor.render_strips():
        for segment in strip:
            for word in ("LOST since", "610"):
                if word in segment.text and segment.style is not None:
                    style = segment.style
                    found.setdefault(word, (style.color, style.bgcolor, style.bold, style.underline))
    return found
