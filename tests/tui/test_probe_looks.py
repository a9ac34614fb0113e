"""What probes look like, letter by letter and in few colours. ``MLTOP_TEST_GOLDENS=write`` makes the files anew."""

from __future__ import annotations

import random

import pytest
from rich.color import ColorType

from tests.tui import fake_probes, fake_views
from tests.tui.fake_probes import ProbeSession
from tests.tui.opened import Opened, opened

SIZES = [(80, 24), (120, 40), (200, 60)]
CHOOSE_COPIES = ("M", "up", "right", "right", "right")
CHOOSE_PAIRS = ("A", "up", "right", "right", "right", "down", "right")
# name: (keys, how many reports, keys after them, what must stand there)
STATES: dict[str, tuple[tuple[str, ...], int, tuple[str, ...], str]] = {
    "ask": (("A",), 0, (), "start a probe?"),
    "running": (("M", "enter"), 2, (), "sustained"),
    "matmul": (("M", "enter"), 3, ("j",), "GPU 3"),
    "copies": ((*CHOOSE_COPIES, "enter"), 1, (), "from GPU (row) to GPU"),
    "sweep": (("A", "down", "right", "enter"), 3, (), "Bus bandwidth"),
    "late-ranks": (("A", "enter"), 3, ("enter",), "OWN WORK"),
    "pairs": ((*CHOOSE_PAIRS, "enter"), 1, (), "Pairs  "),
}


async def bring(screen: Opened, name: str) -> None:
    """The screen in this state."""
    keys, reports, after, words = STATES[name]
    await screen.press(*keys)
    if reports:
        await screen.until(lambda: screen.session.probes, "a probe")  # type: ignore[attr-defined]
        for _ in range(reports):
            screen.session.probes[0].advance()  # type: ignore[attr-defined]
        await screen.until(lambda: screen.app.probing.shown == screen.session.probes[0].last, "the last report")  # type: ignore[attr-defined]
    await screen.press(*after)
    await screen.shows(words)


def session(name: str) -> ProbeSession:
    views = [fake_views.fleet(nodes=10)] if name == "pairs" else None
    return ProbeSession(views, fake_probes.script_of, fake_probes.past_results())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", STATES)
async def test_golden(name: str, size: tuple[int, int]) -> None:
    async with opened(session(name), size=size) as screen:
        await bring(screen, name)
        await screen.is_golden(f"probe-{name}", size)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "screen"}], ids=["no-colour", "16-colours"])
@pytest.mark.parametrize(("name", "bad", "well"), [("matmul", "-31% own", "0% peers"), ("sweep", "SUSPECT", "none")])
async def test_few_colours(
    name: str, bad: str, well: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    async with opened(session(name), size=(120, 40)) as screen:
        await bring(screen, name)
        if name == "matmul":
            await screen.press("k")  # off the row that is looked at: there the cursor's style lies over it
        styles = {
            word: segment.style
            for strip in screen.app.screen._compositor.render_strips()
            for segment in strip
            for word in (bad, well)
            if word in segment.text and segment.style is not None
        }
        found = {word: (style.color, style.bold, style.dim) for word, style in styles.items()}
        assert found[bad] != found[well], "what is wrong looks different"
        kinds = {one.type for style in styles.values() for one in (style.color, style.bgcolor) if one is not None}
        assert kinds <= {ColorType.DEFAULT, ColorType.STANDARD}, kinds


@pytest.mark.parametrize("name", ["running", "matmul", "sweep", "pairs"])
async def test_any_size(name: str) -> None:
    dice = random.Random(11)
    async with opened(session(name), size=(80, 24)) as screen:
        await bring(screen, name)
        for size in [(10, 2), (20, 5), (40, 8), (250, 6), (250, 80)]:
            await screen.pilot.resize_terminal(*size)
            await screen.press(dice.choice(["j", "G", "s", "tab", "S"]))
            lines = screen.lines()
            assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines) and any(lines)
        await screen.pilot.resize_terminal(120, 40)
        await screen.shows("? help")
