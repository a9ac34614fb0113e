"""The table: movement, a cursor that stays on its row, repainting only what changed, every terminal."""

import pytest
from textual.app import App
from textual.geometry import Region
from textual.widgets import Button

from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.rows import LazyRows, Sort
from mltop.tui.widgets.line_table import LineTable
from tests.scenes import Scene, watched
from tests.tui.opened import Opened

COLUMNS = (
    Column("id", "ID", 4, right=True),
    Column("state", "STATE", 8),
    Column("extra", "EXTRA", 10, priority=2),
    Column("text", "TEXT", 6, priority=1, stretch=True),
)
STYLES = {"ok": "ok", "warn": "warn", "crit": "crit", "dim": "dim"}


def row(number, state="ok", text=""):
    return Row(
        f"k{number}",
        (Cell(str(number)), Cell(state, STYLES.get(state, "")), Cell("extra"), Cell(text or "t")),
    )


def rows(count):
    return [row(number) for number in range(count)]


class CountingTable(LineTable):
    """Remembers which screen lines were drawn."""

    def __init__(self, **options):
        super().__init__(**options)
        self.drawn = []

    def render_line(self, y):
        self.drawn.append(y)
        return super().render_line(y)


class TableApp(App):
    def __init__(self, **options):
        super().__init__(**options)
        self.messages = []

    def compose(self):
        yield CountingTable(empty_text="no ranks found: start one")
        yield Button("other")

    CSS = "CountingTable { height: 1fr; } Button { height: 1; border: none; }"

    @property
    def table(self):
        return self.query_one(CountingTable)

    def on_cursor_view_selected(self, message):
        self.messages.append(("selected", message.key))
        assert message.view is self.table

    def on_cursor_view_highlighted(self, message):
        self.messages.append(("highlighted", message.key))

    def on_line_table_header_clicked(self, message):
        self.messages.append(("header", message.key))


def lines(table):
    """What stands on the screen, after colour filters."""
    width, height = table.region.size
    return [strip.text for strip in table.render_lines(Region(0, 0, width, height))]


def style_of(table, text, at=None):
    """The style in which ``text`` is drawn."""
    width, height = table.region.size
    for strip in table.render_lines(Region(0, 0, width, height)):
        for segment in strip:
            if text in segment.text:
                return segment.style
    raise AssertionError(f"{text!r} is not on the screen")


async def show(pilot, table_rows, columns=COLUMNS):
    pilot.app.table.set_table(columns, table_rows)
    await pilot.pause()
    return pilot.app.table


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (["down"], "k1"),
        (["j", "j"], "k2"),
        (["j", "k", "k"], "k0"),
        (["up"], "k0"),
        (["G"], "k99"),
        (["end"], "k99"),
        (["G", "down"], "k99"),
        (["G", "g"], "k0"),
        (["end", "home"], "k0"),
        (["pagedown"], "k7"),
        (["pagedown", "pagedown", "pageup"], "k7"),
        (["end", "pageup"], "k92"),
    ],
)
async def test_keys_move_the_cursor_and_keep_it_visible(keys, key):
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, rows(100))
        table.focus()
        await pilot.press(*keys)
        assert table.cursor_key == key
        assert any(line.split()[:1] == [key[1:]] for line in lines(table))
        assert pilot.app.messages[-1] == ("highlighted", key)


async def test_enter_selects_and_the_first_row_is_highlighted_at_once():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, rows(3))
        table.focus()
        await pilot.press("j", "enter")
        assert pilot.app.messages == [("highlighted", "k0"), ("highlighted", "k1"), ("selected", "k1")]


async def test_mouse():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        await show(pilot, rows(3))
        await pilot.click(CountingTable, offset=(2, 3))
        assert pilot.app.messages[-1] == ("highlighted", "k2")
        await pilot.click(CountingTable, offset=(2, 2), times=2)
        assert pilot.app.messages[-2:] == [("highlighted", "k1"), ("selected", "k1")]
        await pilot.click(CountingTable, offset=(6, 0))
        assert pilot.app.messages[-1] == ("header", "state")
        await pilot.click(CountingTable, offset=(2, 7))  # below the last row
        assert pilot.app.messages[-1] == ("header", "state")


async def test_the_cursor_goes_with_its_row_when_rows_are_sorted_anew():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, rows(100))
        assert table.move_cursor("k3")
        before = len(pilot.app.messages)
        await show(pilot, rows(100)[::-1])
        assert table.cursor_key == "k3"
        assert any(line.startswith("   3 ") for line in lines(table))
        await pilot.pause()
        assert pilot.app.messages[before:] == [("highlighted", "k3")]


async def test_a_cursor_out_of_sight_does_not_pull_the_view_back():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, rows(100))
        table.scroll_to(y=50, animate=False)
        await pilot.pause()
        await show(pilot, rows(100))
        assert table.scroll_y == 50
        assert table.cursor_key == "k0"


async def test_a_row_that_is_gone_leaves_the_cursor_in_its_place():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, rows(5))
        table.move_cursor("k3")
        await show(pilot, [row(number) for number in (0, 1, 2, 4)])
        assert table.cursor_key == "k4"
        await show(pilot, rows(2))
        assert table.cursor_key == "k1"
        await show(pilot, [])
        assert table.cursor_key is None
        table.focus()
        await pilot.press("j", "enter", "G", "pageup")
        assert not [message for message in pilot.app.messages if message[0] == "selected"]
        assert not table.move_cursor("k1")


async def test_only_changed_rows_are_drawn_again():
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(100))
        table.drawn.clear()
        await show(pilot, rows(100))
        assert table.drawn == []
        changed = rows(100)
        changed[4] = row(4, "crit")
        changed[9] = row(9, "warn")
        changed[90] = row(90, "warn")  # not on the screen
        await show(pilot, changed)
        assert table.drawn == [5, 10]


async def test_rows_that_change_after_a_style_update_are_drawn():
    """A style update without a visible effect (the mouse passing over) is followed by no repaint."""
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(10))
        table.notify_style_update()
        await pilot.pause()
        table.drawn.clear()
        await show(pilot, rows(10)[::-1])
        assert set(table.drawn) == set(range(1, 11))
        assert lines(table)[1].split()[0] == "9"


async def test_rows_that_change_after_a_resize_are_drawn():
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(10))
        for size in ((60, 15), (80, 15), (80, 30), (24, 13)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            shown = rows(10)
            await show(pilot, shown[::-1])
            assert lines(table)[1].split()[0] == "9"
            await show(pilot, shown)
            assert lines(table)[1].split()[0] == "0"


async def test_moving_the_cursor_draws_two_rows():
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(100))
        table.focus()
        await pilot.pause()
        table.drawn.clear()
        await pilot.press("j")
        await pilot.pause()
        assert sorted(table.drawn) == [1, 2]


async def test_losing_the_focus_draws_the_cursor_row():
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(100))
        table.focus()
        await pilot.pause()
        focused = style_of(table, "   0")
        table.drawn.clear()
        pilot.app.query_one(Button).focus()
        await pilot.pause()
        assert 1 in table.drawn
        assert style_of(table, "   0") != focused


async def test_lazy_rows_are_made_only_for_the_screen():
    made = []

    def make(index):
        made.append(index)
        return row(index)

    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, LazyRows([f"k{index}" for index in range(4096)], make))
        assert set(made) == set(range(table.size.height - 1))
        table.focus()
        await pilot.press("G")
        assert table.cursor_key == "k4095"
        assert len(set(made)) == 2 * (table.size.height - 1)


async def test_the_sorted_column_is_marked_in_the_header_only():
    async with TableApp().run_test(size=(60, 20)) as pilot:
        table = await show(pilot, rows(10))
        table.drawn.clear()
        table.set_sort(Sort("state", reverse=True))
        await pilot.pause()
        assert table.drawn == [0]
        assert "STATE▼" in lines(table)[0]
        table.set_sort(None)
        await pilot.pause()
        assert "▼" not in lines(table)[0]


async def test_an_empty_table_says_why():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [])
        assert lines(table)[0].strip() == "no ranks found: start one"
        table.empty_text = "[none] match"
        await show(pilot, [])
        assert lines(table)[0].strip() == "[none] match"
        await show(pilot, rows(1))
        assert "match" not in "".join(lines(table))
        await show(pilot, [])
        assert lines(table)[0].strip() == "[none] match"


async def test_an_optional_column_appears_with_its_first_value_and_stays():
    columns = (*COLUMNS[:2], Column("sm", "SM", 4, optional=True))

    def with_sm(text):
        return [Row("k", (Cell("1"), Cell("ok"), Cell(text)))]

    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, with_sm("–"), columns)
        assert "SM" not in lines(table)[0]
        await show(pilot, with_sm("61%"), columns)
        assert "SM" in lines(table)[0]
        assert "61%" in lines(table)[1]
        await show(pilot, with_sm("–"), columns)
        assert "SM" in lines(table)[0]


@pytest.mark.parametrize(
    "size",
    [(1, 1), (5, 2), (20, 5), (40, 10), (80, 24), (120, 40), (200, 60)],
    ids=lambda size: "x".join(map(str, size)),
)
async def test_every_size(size):
    async with TableApp().run_test(size=size) as pilot:
        table = await show(pilot, rows(30))
        width, height = table.region.size
        assert all(len(line) == width for line in lines(table))
        assert len(lines(table)) == height
        table.focus()
        await pilot.press("G", "g", "pagedown")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "STATE" in lines(table)[0]
        assert any(line.split()[:1] == [table.cursor_key[1:]] for line in lines(table))


async def test_narrow_terminals_lose_columns_by_priority():
    async with TableApp().run_test(size=(80, 10)) as pilot:
        table = await show(pilot, rows(3))
        assert lines(table)[0].split() == ["ID", "STATE", "EXTRA", "TEXT"]
        await pilot.resize_terminal(24, 10)
        await pilot.pause()
        assert lines(table)[0].split() == ["ID", "STATE", "TEXT"]
        await pilot.resize_terminal(14, 10)
        await pilot.pause()
        assert lines(table)[0].split() == ["ID", "STATE"]


async def test_a_scrollbar_takes_its_column_from_the_stretching_one():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(1, text="x" * 100)])
        assert lines(table)[1].rstrip().endswith("xx…")
        long = [row(number, text="x" * 100) for number in range(50)]
        await show(pilot, long)
        width = table.scrollable_content_region.width
        assert width < 60
        assert all(line[:width].endswith("xx…") for line in lines(table)[1:9])


async def test_text_from_machines_is_drawn_as_it_is():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(
            pilot, [row(1, text="[/dev/nvidia0] [red]"), row(2, text="a\x1b[2Jb\nc"), row(3, text="日本")]
        )
        text = lines(table)
        assert "[/dev/nvidia0] [red]" in text[1]
        assert "ab c" in text[2]
        assert "日本" in text[3]
        assert "\x1b" not in "".join(text)


async def test_colours_follow_the_theme():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(0), row(1, "crit"), row(2, "warn"), row(3, "ok")])
        dark = {name: style_of(table, name) for name in ("crit", "warn", "ok")}
        assert len({style.color for style in dark.values()}) == 3
        assert all(style.bgcolor is not None for style in dark.values())
        pilot.app.theme = "textual-light"
        await pilot.pause()
        light = {name: style_of(table, name) for name in ("crit", "warn", "ok")}
        assert all(light[name].color != dark[name].color for name in dark)
        assert all(light[name].bgcolor != dark[name].bgcolor for name in dark)


async def test_no_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(0), row(1, "crit"), row(2, "warn")])
        table.focus()
        await pilot.pause()
        for name in ("crit", "warn"):
            red, green, blue = style_of(table, name).color.triplet
            assert red == green == blue
        assert style_of(table, "   0").bgcolor != style_of(table, "crit").bgcolor
        pilot.app.export_screenshot()


@pytest.mark.parametrize("no_color", [False, True])
async def test_sixteen_colours(monkeypatch, no_color):
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    app = TableApp(ansi_color=True)
    app.theme = "ansi-dark"
    async with app.run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(0, "idle"), row(1, "crit"), row(2, "warn"), row(3, "ok")])
        table.focus()
        await pilot.pause()
        colours = [style_of(table, name).color.number for name in ("crit", "warn", "ok")]
        assert colours == ([None] * 3 if no_color else [9, 11, 10])
        assert style_of(table, "   0").reverse
        assert not style_of(table, "crit").reverse


async def test_every_segment_has_a_style():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(0), Row("b", (Cell("1"),) * 4, Cell("LOST", "crit"))])
        width, height = table.region.size
        segments = [segment for strip in table.render_lines(Region(0, 0, width, height)) for segment in strip]
        assert all(segment.style is not None for segment in segments)
        assert "LOST" in lines(table)[2]


async def test_an_unknown_style_name_draws_like_plain_text():
    async with TableApp().run_test(size=(60, 10)) as pilot:
        table = await show(pilot, [row(0), Row("b", (Cell("1"), Cell("odd", "no such"), Cell(""), Cell("")))])
        assert style_of(table, "odd") == style_of(table, "   1")


async def test_a_table_of_nothing_has_no_header_over_its_words() -> None:
    scene = Scene(ranks=0, no_driver=True, watched_s=2.0)
    app = watched(scene)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Opened(app, pilot, None)  # type: ignore[arg-type]
        text = await screen.shows("no training ranks: no process has RANK")
        assert "COMMAND" not in text and text.count("no NVIDIA driver") == 1
