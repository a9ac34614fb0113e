"""Scrolling lines: plain text scrolls, keyed lines are selected."""

import pytest
from textual.app import App
from textual.geometry import Region

from mltop.tui.render.cells import Cell
from mltop.tui.widgets.cell_lines import CellLines


class CountingLines(CellLines):
    def __init__(self, **options):
        super().__init__(**options)
        self.drawn = []

    def render_line(self, y):
        self.drawn.append(y)
        return super().render_line(y)


class LinesApp(App):
    def __init__(self, **options):
        super().__init__(**options)
        self.messages = []

    def compose(self):
        yield CountingLines(empty_text="nothing dumped yet: t")

    @property
    def view(self):
        return self.query_one(CountingLines)

    def on_cursor_view_selected(self, message):
        assert message.view is self.view
        self.messages.append(("selected", message.key))

    def on_cursor_view_highlighted(self, message):
        self.messages.append(("highlighted", message.key))


def text_lines(count):
    return [[Cell(f"line {number}", "dim")] for number in range(count)]


def lines(view):
    width, height = view.region.size
    return [strip.text.rstrip() for strip in view.render_lines(Region(0, 0, width, height))]


async def show(pilot, content, keys=None):
    pilot.app.view.set_lines(content, keys)
    await pilot.pause()
    return pilot.app.view


@pytest.mark.parametrize(
    ("pressed", "first"),
    [
        (["down"], 1),
        (["j", "j", "k"], 1),
        (["up"], 0),
        (["pagedown"], 9),
        (["G"], 90),
        (["end", "k"], 89),
        (["G", "g"], 0),
        (["end", "pageup"], 81),
    ],
)
async def test_text_without_keys_scrolls(pressed, first):
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, text_lines(100))
        view.focus()
        await pilot.press(*pressed)
        assert lines(view)[0] == f"line {first}"
        assert view.cursor_key is None
        assert pilot.app.messages == []


@pytest.mark.parametrize(
    ("pressed", "key"),
    [
        ([], "k3"),
        (["down"], "k13"),
        (["down", "up", "up"], "k3"),
        (["G"], "k93"),
        (["G", "g"], "k3"),
        (["pagedown"], "k13"),
        (["pagedown", "pageup"], "k3"),
        (["G", "down"], "k93"),
        (["G", "pagedown"], "k93"),
    ],
)
async def test_keyed_lines_are_stops(pressed, key):
    keys = [f"k{number}" if number % 10 == 3 else None for number in range(100)]
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, text_lines(100), keys)
        view.focus()
        await pilot.press(*pressed)
        assert view.cursor_key == key
        if pressed[-1:] != ["down"] or key != "k93":
            assert f"line {key[1:]}" in lines(view)
        assert pilot.app.messages[-1] == ("highlighted", key)
        await pilot.press("enter")
        assert pilot.app.messages[-1] == ("selected", key)


async def test_lines_behind_the_last_key_can_be_reached():
    keys = ["a", *[None] * 29]
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, text_lines(30), keys)
        view.focus()
        await pilot.press("down", "down")
        assert lines(view)[0] == "line 2"
        await pilot.press("G")
        assert lines(view)[-1] == "line 29"
        await pilot.press("g")
        assert lines(view)[0] == "line 0"


async def test_the_cursor_stays_on_its_key():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, text_lines(3), ["a", "b", "c"])
        assert view.move_cursor("b")
        await show(pilot, text_lines(4), ["x", "y", "b", "z"])
        assert view.cursor_key == "b"
        await show(pilot, text_lines(2), [None, "z"])
        assert view.cursor_key == "z"
        await show(pilot, text_lines(2))
        assert view.cursor_key is None
        assert not view.move_cursor("b")


async def test_only_changed_lines_are_drawn():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, text_lines(30))
        view.drawn.clear()
        await show(pilot, text_lines(30))
        assert view.drawn == []
        changed = text_lines(30)
        changed[3] = [Cell("new", "crit")]
        changed[29] = [Cell("not on the screen")]
        await show(pilot, changed)
        assert view.drawn == [3]


async def test_keys_must_fit_the_lines():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        with pytest.raises(ValueError, match="3 lines but 2 keys"):
            pilot.app.view.set_lines(text_lines(3), ["a", "b"])


async def test_mouse_selects_only_keyed_lines():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        await show(pilot, text_lines(3), ["a", None, "c"])
        await pilot.click(CountingLines, offset=(1, 1), times=2)
        await pilot.click(CountingLines, offset=(1, 2), times=2)
        assert pilot.app.messages == [("highlighted", "a"), ("highlighted", "c"), ("selected", "c")]


async def test_empty_and_dangerous_text():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = await show(pilot, [])
        assert lines(view)[0] == "nothing dumped yet: t"
        await show(pilot, [[Cell("[/x] \x1b[2J\n"), Cell("日" * 40)], []])
        assert lines(view)[0].startswith("[/x]  日日")
        assert lines(view)[1] == ""


async def test_tab_stops_only_where_there_is_something_to_do():
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        view = pilot.app.view
        assert view.focusable  # what it will show is not known yet
        await show(pilot, text_lines(2))
        assert not view.focusable
        await show(pilot, text_lines(2), ["a", None])
        assert view.focusable
        await show(pilot, text_lines(30))
        assert view.focusable


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (80, 24), (200, 60)], ids=lambda size: "x".join(map(str, size)))
async def test_every_size(size, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with LinesApp().run_test(size=size) as pilot:
        view = await show(pilot, text_lines(100), [f"k{number}" for number in range(100)])
        view.focus()
        await pilot.press("G", "pageup", "g", "j")
        width, height = view.region.size
        strips = view.render_lines(Region(0, 0, width, height))
        assert all(strip.cell_length == width for strip in strips)


class Incidents(App):
    def compose(self):
        yield CellLines(stays_first=True)


async def test_a_cursor_on_the_first_goes_to_what_comes_first_and_a_moved_one_stays():
    async with Incidents().run_test() as pilot:
        view = pilot.app.query_one(CellLines)
        view.set_lines(text_lines(2), ["gpu lost", "port down"])
        view.set_lines(text_lines(3), ["hang", "gpu lost", "port down"])
        assert view.cursor_key == "hang"
        view.focus()
        await pilot.press("down")
        view.set_lines(text_lines(4), ["crash", "hang", "gpu lost", "port down"])
        assert view.cursor_key == "gpu lost"
