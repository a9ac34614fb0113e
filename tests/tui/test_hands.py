"""The hands: keys of htop, k9s, less and vim, what is typed after ":", one thing that is looked at on all panes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, MouseScrollDown

from mltop.probes.agent.protocol import Hello
from mltop.probes.reach.view import Connection
from mltop.tui.app.app import MltopApp
from mltop.tui.app.hands import NOT_BOUND
from mltop.tui.app.selection import Looked
from mltop.tui.config.settings import Config
from mltop.tui.render.rows import Sort
from mltop.tui.screens.tabled import GpuTable, RankTable
from mltop.tui.state.lists import Choices
from mltop.tui.widgets.line_table import LineTable
from tests.tui import fake_views
from tests.tui.fake_acts import ActingSession
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened


def fleet_session() -> FakeSession:
    return FakeSession([fake_views.fleet(tick) for tick in range(5)], title="job 4711")


def here(screen: Opened) -> tuple[str, str, int | None]:
    place = screen.app.trail.here
    return place.pane, place.node, place.gpu


def notice(screen: Opened) -> str:
    return screen.app.notice.text if screen.app.notice is not None else ""


async def typed(screen: Opened, text: str) -> None:
    names = {" ": "space", "-": "minus", ":": "colon", "/": "slash", "<": "less_than_sign", "%": "percent_sign"}
    await screen.press(*(names.get(char, char) for char in text))


async def order(screen: Opened, text: str) -> None:
    await typed(screen, f":{text}")
    await screen.press("enter")


def gpus(screen: Opened) -> LineTable:
    return next(table for table in screen.app.pane.query(LineTable) if table.kind == "gpus" and table.display)


# What is opened, and from where.


async def test_enter_on_a_gpu_opens_that_gpu() -> None:
    async with opened(size=(120, 40)) as screen:
        gpus(screen).focus()
        await screen.press("home", "down", "down", "enter")
        assert here(screen) == ("gpu", "node01", 2)


async def test_the_selection_is_not_lost_between_panes() -> None:
    """ "2 End 1 Home Down×3 Enter Enter" once opened GPU 7."""
    async with opened(size=(120, 40)) as screen:
        await screen.press("2")
        gpus(screen).focus()
        await screen.press("end", "1")
        gpus(screen).focus()
        await screen.press("home", "down", "down", "down", "enter")
        assert here(screen) == ("gpu", "node01", 3)
        await screen.press("escape", "2")
        assert gpus(screen).cursor_key == "3" and gpus(screen).has_focus
        await screen.press("n")  # one node: said, and nothing moves
        assert "no next one" in notice(screen) and gpus(screen).cursor_key == "3"


async def test_a_rank_stays_selected_on_all_panes() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("3", "home", "down", "down")
        chosen = screen.app.pane.tables()[0].cursor_key
        assert screen.app.looked == Looked("node01", 2, 8122) and chosen == "node01/8122"
        for key in ("1", "2"):
            await screen.press(key)
            (ranks,) = [table for table in screen.app.pane.tables() if table.kind == "ranks"]
            assert ranks.cursor_key == chosen and gpus(screen).cursor_key == "2"


async def test_a_node_stays_selected_on_all_panes() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await order(screen, "node node012")
        assert here(screen) == ("node", "node012", None)
        await screen.press("1")
        assert screen.app.pane.node_at_cursor() == "node012"
        await screen.press("5")
        assert here(screen) == ("links", "node012", None)
        await screen.press("n")
        assert here(screen) == ("links", "node013", None)
        await screen.press("2")
        assert here(screen) == ("node", "node013", None)


async def test_what_enter_opens_is_opened_before_the_next_key_counts() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("2")
        gpus(screen).focus()
        gpus(screen).action_select()  # and at once, before anything else is handled:
        screen.app.action_pane("ranks")
        await screen.pilot.pause()
        assert here(screen) == ("ranks", "", None) and screen.app.trail.depth == 2


async def test_one_cursor_at_a_time() -> None:
    async with opened(size=(120, 40)) as screen:
        for _ in range(3):
            drawn = [table for table in screen.app.pane.query("CursorView") if table.display and table.cursor_style]
            assert len(drawn) == 1, drawn
            await screen.press("tab")


async def test_the_help_is_no_place_that_things_are_opened_from() -> None:
    async with opened() as screen:
        await screen.press("3", "question_mark")
        assert here(screen)[0] == "help"
        await screen.press("t")
        assert here(screen)[0] == "stacks" and "help" not in screen.app.trail.crumbs()
        await screen.press("escape", "escape")  # the dump, then the pane
        assert here(screen)[0] == "ranks"
        await screen.press("question_mark", "question_mark")
        assert here(screen)[0] == "ranks"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_help_names_every_key_of_every_pane(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await screen.press("question_mark")
        lines = screen.app.pane.query_one("#keys-list").texts()
        text = "\n".join(lines)
        for words in (
            "Panes",
            "Move",
            "Tables",
            "Act",
            "In the node",
            "Typed",
            ":node",
            "F2",
            "^D",
            "PgDn ^F",
            "Space",
        ):
            assert words in text, words
        assert all(len(line) <= size[0] for line in lines)


# Keys that move.


async def test_keys_of_less_and_vim_move() -> None:
    async with opened(fleet_session(), size=(80, 24)) as screen:
        await screen.press("3")
        table = screen.app.pane.tables()[0]
        at = lambda: list(table.keys).index(table.cursor_key)  # noqa: E731
        page = table.page
        for key, expected in (
            *(("j", 1), ("k", 0), ("ctrl+f", page - 1), ("ctrl+b", 0), ("ctrl+d", page // 2), ("ctrl+u", 0)),
            *(
                ("pagedown", page - 1),
                ("pageup", 0),
                ("G", len(table.keys) - 1),
                ("g", 0),
                ("end", len(table.keys) - 1),
            ),
            *(("home", 0), ("down", 1), ("up", 0)),
        ):
            await screen.press(key)
            assert at() == expected, key


async def test_n_goes_over_what_the_filter_shows() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await screen.press("3", "n")
        assert "/ filters" in notice(screen)
        await typed(screen, "/node001")
        await screen.press("enter", "g")
        keys = list(screen.app.pane.tables()[0].keys)
        for key, expected in (("n", 1), ("n", 2), ("N", 1), ("N", 0), ("N", -1), ("n", 0)):
            await screen.press(key)
            assert screen.app.pane.tables()[0].cursor_key == keys[expected], key


@pytest.mark.parametrize("key", ["slash", "f3", "f4"])
async def test_keys_that_filter(key: str) -> None:
    async with opened() as screen:
        await screen.press("3", key, *"8121", "enter")
        assert list(screen.app.pane.tables()[0].keys) == ["node01/8121"]


@pytest.mark.parametrize("key", ["s", "f6"])
async def test_keys_that_sort(key: str) -> None:
    async with opened() as screen:
        await screen.press("3", key)
        assert screen.app.pane.tables()[0].sort is not None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["K"], "rank 0, pid 8120"),
        (["f9"], "rank 0, pid 8120"),
        (["H"], "dcgmi diag -r 1"),
        (["exclamation_mark"], "open a shell"),
    ],
)
async def test_keys_that_ask(keys: list[str], words: str) -> None:
    """The question comes, and nothing is done where it is not answered with yes."""
    view = fake_views.one_node()
    reached = Connection("ssh", hello=Hello("1", 1, 7, "3.11", "node01", "x86_64"))
    session = ActingSession([replace(view, nodes=tuple(replace(node, connection=reached) for node in view.nodes))])
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("2" if keys == ["H"] else "3", *keys)
        await screen.shows(words)
        assert len(screen.app.screen_stack) == 2, "a question lies over the pane"
        await screen.press("escape")
        assert len(screen.app.screen_stack) == 1
        assert session.signals == [] and session.diagnosed == []


async def test_d_describes_as_enter_does() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("3", "home", "d")
        assert screen.app.trail.here.pane == "rank" and screen.app.trail.here.pid == 8120


# Nothing is silent.


async def test_an_unbound_key_says_so_once() -> None:
    async with opened() as screen:
        await screen.press("z")
        assert notice(screen) == f"z: {NOT_BOUND} - ? help"
        screen.app.tell(None)
        await screen.press("z")
        assert notice(screen) == ""
        await screen.press("f7")
        assert notice(screen) == f"F7: {NOT_BOUND} - ? help"
        await screen.press("j", "f7")
        assert notice(screen) == f"F7: {NOT_BOUND} - ? help"


async def test_the_key_after_a_filter_is_a_key() -> None:
    for session in (FakeSession(), fleet_session()):
        async with opened(session, size=(120, 40)) as screen:
            await screen.press("slash", "n")
            box = screen.app.pane.query_one("FilterBox")
            await box.action_submit()  # and the next key before anything else is handled
            await screen.pilot.pause()
            assert screen.app.focused is not box
            await screen.press("colon")
            screen.app.pane.clear_filter()
            assert screen.app.focused.id != "command"


async def test_gpus_that_nobody_uses_are_one_row_until_they_are_opened() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.shows("4-5,7  idle, no process")
        table = screen.app.pane.query_one(GpuTable)
        screen.app.looked = Looked("node01", 7)
        await screen.press("3", "1")
        assert screen.app.focused is table and table.cursor_key == "4", "the row that GPU 7 is in"
        await screen.press("enter")
        assert list(table.keys) == [str(index) for index in range(8)] and here(screen)[0] == "overview"
        assert table.cursor_key == "4"
        await screen.press("down", "enter")
        assert (here(screen)[0], screen.app.trail.here.gpu) == ("gpu", 5)


@pytest.mark.parametrize(
    ("keys", "pane", "row"),
    [("3j", "ranks", 1), ("3jj2", "node", None), ("3jj", "ranks", 2), ("22", "node", None), ("38", "incidents", None)],
)
@pytest.mark.parametrize("again", [False, True])
async def test_keys_in_one_burst_mean_the_pane_that_those_before_lead_to(
    keys: str, pane: str, row: int | None, again: bool
) -> None:
    async with opened(size=(120, 40)) as screen:
        if again:  # the pane is there already
            await screen.press("3", "home", "1")
        for key in keys:
            screen.app.post_message(Key(key, key))
        await screen.until(lambda: here(screen)[0] == pane and screen.app.current_mode == pane, pane)
        await screen.pilot.pause()
        if row is not None:
            table = screen.app.focused
            assert isinstance(table, LineTable)
            await screen.until(lambda: table._cursor == row, f"the cursor on row {row}, not {table._cursor}")


async def test_moves_can_have_other_keys() -> None:
    config = Config(keys={"up": "i,up", "down": "K,down", "dump": "k"})
    async with opened(size=(120, 40), config=config) as screen:
        await screen.press("3", "home", "K", "K", "i")
        table = screen.app.focused
        assert isinstance(table, LineTable) and table._cursor == 1
        await screen.press("j")
        assert table._cursor == 1 and notice(screen) == f"j: {NOT_BOUND} - ? help"
        await screen.press("k")
        assert screen.session.dumps
        await screen.press("question_mark")
        lines = [line.split() for line in screen.app.pane.query_one("#keys-list").texts()]
        assert any(words[:2] == ["i", "Up"] for words in lines), screen.text()


async def test_keys_that_are_under_way_with_enter_are_keys() -> None:
    """A terminal may bring several at once: all go to what had the focus when they came."""
    async with opened(size=(120, 40)) as screen:
        await screen.press("slash", "x")
        box = screen.app.pane.query_one("FilterBox")
        for key, character in (("backspace", None), ("enter", None), ("3", "3")):
            box._forward_event(Key(key, character))
        await screen.until(lambda: here(screen)[0] == "ranks", "the ranks")
        assert screen.app.pane.filter.empty


async def test_what_is_typed_into_a_line_is_no_key() -> None:
    async with opened() as screen:
        await screen.press("slash", "z", "Z")
        assert notice(screen) == "" and screen.app.pane.filter.text == "zZ"
        await screen.press("escape", "colon", "z", "Z")
        assert notice(screen) == "" and ":zZ" in screen.text()


SAYS = {
    "S": "not sorted yet",
    "space": "nothing to mark",
    "asterisk": "nothing to mark",
    "U": "no node is marked",
    "l": "no log here: 3 shows ranks",
    "f5": "no tree here",
    "I": "no signal was sent",
    "T": "no signal was sent",
    "n": "nothing was looked for",
    "R": "nothing to try again",
}


async def test_a_key_that_can_do_nothing_says_why() -> None:
    async with opened() as screen:
        for key, words in SAYS.items():
            await screen.press("4" if key in ("f5", "l") else "3", key)
            assert words in notice(screen), key


async def test_panes_without_tables_say_that_nothing_is_sorted() -> None:
    async with opened() as screen:
        await screen.press("4", "s")
        assert "can be sorted" in notice(screen)
        await screen.press("tab")
        assert "nothing else here" in notice(screen)


# ":"


RESOURCES = {
    "gpus": ("overview", "", None),
    "nodes": ("overview", "", None),
    "events": ("events", "", None),
    "node node003": ("node", "node003", None),
    "gpu node003 5": ("gpu", "node003", 5),
    "gpu node003/5": ("gpu", "node003", 5),
    "ranks": ("ranks", "", None),
    "links node004": ("links", "node004", None),
    "probes": ("probes", "", None),
    "incidents": ("incidents", "", None),
    "stacks": ("stacks", "", None),
    "help": ("help", "", None),
    "job llama": ("ranks", "", None),
    "inc": ("incidents", "", None),
}


async def test_resources_by_name() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        for text, place in RESOURCES.items():
            await screen.press("5" if text == "events" else "6")
            await order(screen, text)
            await screen.until(lambda: here(screen) == place, f"{text} leading to {place}")  # noqa: B023


async def test_a_rank_by_its_number() -> None:
    async with opened() as screen:
        await order(screen, "rank 2")
        assert (screen.app.trail.here.pane, screen.app.trail.here.pid) == ("rank", 8122)


async def test_a_job_shows_its_ranks_only() -> None:
    async with opened() as screen:
        job = screen.app.picture.view.nodes[0].sample.ranks[0].job  # type: ignore[union-attr]
        await order(screen, f"job {job}")
        assert len(screen.app.pane.tables()[0].keys) == 4


async def test_sort_finds_the_table_that_has_the_column() -> None:
    async with opened(size=(120, 40)) as screen:
        ranks = next(table for table in screen.app.pane.tables() if table.kind == "ranks")
        ranks.focus()
        await order(screen, "sort -temp")
        await screen.until(lambda: gpus(screen).sort is not None, "the table of GPUs sorted")
        assert gpus(screen).sort == Sort("temperature", True) and ranks.sort is None
        await order(screen, "sort pid")
        await screen.until(lambda: ranks.sort == Sort("pid", False), "the table of ranks sorted")


async def test_the_wheel_scrolls_a_list_and_leaves_the_cursor() -> None:
    async with opened(fleet_session(), size=(80, 24)) as screen:
        await screen.press("3")
        table = screen.app.pane.tables()[0]
        await screen.until(lambda: table.max_scroll_y > 9, "more ranks than lines")
        table.post_message(MouseScrollDown(table, 5, 5, 0, 1, 0, False, False, False))
        await screen.until(lambda: table.scroll_y > 0, "another line at the top")
        assert table.at_top
        await screen.step()
        assert table.scroll_y > 0, "also with the next picture"


MISTAKES = {
    "nope": "there is no :nope",
    "node nowhere": "there is no :node nowhere (:node node00",
    "node node0": "64 begin with :node node0",
    "gpu 99": "there is no :gpu 99 (:gpu 0, ",
    "gpu x": "there is no :gpu x (:gpu 0, ",
    "rank": "begin with :rank (:rank 0, ",
    "rank 99999": "there is no :rank 99999",
    "job zzz": "there is no :job zzz (:job ",
    "sort": ":sort needs one column",
    "sort zzz": "no column 'zzz' here",
    "columns zzz": ":columns needs a table",
    "columns gpus zzz": "gpus has no column 'zzz'",
    "theme zzz": "behind :theme",
    "filter": ":filter needs a word",
    "ranks 3": "nothing goes behind :ranks",
}


async def test_a_mistake_is_one_line_and_the_text_stays() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await screen.press("3")
        for text, words in MISTAKES.items():
            await order(screen, text)
            assert words in screen.text() and f":{text}" in screen.text()
            assert screen.app.pane.typing
            await screen.press("escape")
            assert not screen.app.pane.typing and here(screen)[0] == "ranks"


async def test_completion_by_tab_and_arrows_and_earlier_lines() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await typed(screen, ":nde01")
        await screen.press("backspace", "backspace", "backspace", "backspace", *"ode", "space", *"n0", "1", "2")
        assert "node node012" in screen.text()  # letters in this order are enough
        await screen.press("tab", "enter")
        assert here(screen) == ("node", "node012", None)
        await screen.press("colon", "up")
        assert ":node node012" in screen.text()
        await screen.press("escape")
        await typed(screen, ":links node00")
        await screen.press("down", "down", "enter")
        assert here(screen) == ("links", "node002", None)


async def test_a_colon_that_is_deleted_closes_the_line() -> None:
    async with opened() as screen:
        await screen.press("colon", "x", "backspace", "backspace")
        assert not screen.app.pane.typing


async def test_all_actions_have_names() -> None:
    async with opened() as screen:
        await order(screen, "pause")
        await screen.until(lambda: screen.app.paused, "the pause")
        await order(screen, "filter 8121")
        assert screen.app.pane.filter.text == "8121"
        await order(screen, "q")
        await screen.until(lambda: not screen.app._running, "the app's end")


# What is chosen is remembered; the configuration holds.


def remembering(chosen: list[Choices]) -> Callable[[Callable[[Choices], Choices]], None]:
    return lambda change: chosen.append(change(chosen[-1] if chosen else Choices()))


async def test_sort_columns_and_theme_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    chosen: list[Choices] = []
    async with opened(size=(120, 40), remember=remembering(chosen)) as screen:
        gpus(screen).focus()
        await order(screen, "sort -sm")
        assert gpus(screen).sort == Sort("sm", True)
        await order(screen, "columns gpus gpu power sm")
        assert gpus(screen).shown_keys() == ["gpu", "power", "sm"]
        await order(screen, "theme light")
        assert screen.app.theme == "light"
        await screen.press("2")
        assert gpus(screen).shown_keys() == ["gpu", "power", "sm"] and gpus(screen).sort == Sort("sm", True)
        assert {key: one.value for key, one in chosen[-1].screen.items()} == {
            "sort.gpus": "-sm",
            "columns.gpus": ["gpu", "power", "sm"],
            "theme": "light",
        }
        await order(screen, "columns gpus default")
        await order(screen, "sort default")
        assert gpus(screen).sort is None and len(gpus(screen).shown_keys()) > 5
        assert list(chosen[-1].screen) == ["theme"]


async def test_keys_of_one_pane_can_be_others_too() -> None:
    async with opened(config=Config(keys={"timelines": "f12"})) as screen:
        await screen.press("2", "T")
        assert notice(screen) == f"T: {NOT_BOUND} - ? help"
        await screen.press("f12")
        await screen.shows("SM clock, 10 min")
        assert "F12 timelines" in screen.lines()[-1]


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40)])
async def test_what_is_typed_and_what_is_said_of_it_are_seen(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await screen.press("slash", "x")
        await screen.shows("Enter keeps  Esc clears")
        assert any(line.startswith("x") for line in screen.lines()[5:])


async def test_f2_is_a_list_to_tick_whose_changes_hold_at_once() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("3", "f2")
        text = await screen.shows("columns of ranks", "[x] RANK", "[ ] LAUNCHER")
        assert "Space on/off" in text
        table = screen.app.pane.query_one("RankTable")
        before = table.shown_keys()
        await screen.press("j", "space")
        await screen.shows("[ ] GPU ")
        assert table.shown_keys() == [key for key in before if key != "gpus"]
        await screen.press("space", "K")
        assert table.shown_keys()[:2] == ["gpus", "rank"]
        await screen.press("s")
        assert table.sort == Sort("gpus", False)
        await screen.press("s", "s")
        assert table.sort is None
        await screen.press("d")
        assert screen.app.shapes.columns == {} and screen.app.shapes.sorts == {}
        await screen.press("enter")
        await screen.shows_not("columns of ranks")
        assert here(screen)[0] == "ranks"
        await screen.press("f2", "escape")
        assert here(screen)[0] == "ranks"
        await screen.shows_not("columns of ranks")


async def test_a_table_keeps_one_column() -> None:
    async with opened(size=(120, 40), config=Config(columns={"ranks": ("rank",)})) as screen:
        await screen.press("3", "f2", "space")
        await screen.shows("[x] RANK")
        assert screen.app.pane.query_one("RankTable").shown_keys() == ["rank"]


async def test_the_configuration_holds_from_the_start() -> None:
    config = Config(sort={"gpus": "-temp"}, columns={"gpus": ("gpu", "temp")}, keys={"dump": "x", "filter": "f12"})
    async with opened(size=(150, 40), config=config) as screen:
        assert gpus(screen).shown_keys() == ["gpu", "temperature"] and gpus(screen).sort == Sort("temperature", True)
        assert "x dump" in screen.lines()[-1] and "F12 filter" in screen.lines()[-1]
        await screen.press("f12", *"abc", "escape", "t")
        assert notice(screen) == f"t: {NOT_BOUND} - ? help"
        await screen.press("x")
        assert here(screen)[0] == "stacks" and len(screen.session.dumps) == 1
        await screen.press("question_mark")
        text = "\n".join(screen.app.pane.query_one("#keys-list").texts())
        assert "  x                 dump marked nodes" in text


# What is under the cursor leaves the screen.


def copied(app: MltopApp) -> list[str]:
    found: list[str] = []
    app.copy_to_clipboard = found.append  # type: ignore[method-assign] # what it writes is the terminal's business
    return found


async def test_y_copies_the_whole_row() -> None:
    async with opened() as screen:
        texts = copied(screen.app)
        await screen.press("3", "home", "y")
        assert "PID 8120" in texts[0] and "COMMAND python3.11 -u train" in texts[0]
        assert "copied" in notice(screen)


PANES = ("1", "2", "4", "5", "6", "7", "8", "question_mark")


@pytest.mark.parametrize("key", PANES)
async def test_e_writes_the_pane_into_a_file(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(size=(120, 40)) as screen:
        await screen.press(key, "e", "e")
        await screen.until(lambda: not screen.app.exporting.is_alive(), "its end")  # type: ignore[union-attr]
        await screen.until(lambda: "exported to" in notice(screen), "that it is said")
        files = sorted(tmp_path.iterdir())
        assert len(files) == 2
        written: dict[str, Any] = json.loads(files[0].read_text())
        assert written["mltop_export"] == 1 and written["pane"] == here(screen)[0]
        assert files[0].stat().st_mode & 0o777 == 0o600
        if key == "2":
            assert [row["pid"] for row in written["tables"]["ranks"]] == ["8120", "8121", "8122", "8123"]


async def test_nothing_is_written_where_nothing_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(read_only=True) as screen:
        await screen.press("2", "e")
        assert "--read-only" in notice(screen) and not os.listdir(tmp_path)
    (tmp_path / "closed").mkdir()
    monkeypatch.chdir(tmp_path / "closed")
    (tmp_path / "closed").rmdir()
    async with opened() as screen:
        await screen.press("2", "e")
        await screen.until(lambda: "not exported" in notice(screen), "why not")


# The key bar.


@pytest.mark.parametrize(
    ("width", "left"), [(80, "1 main  1-8 panes "), (110, "1 main  2 node  3 ranks"), (40, "1 main")]
)
async def test_the_key_bar(width: int, left: str) -> None:
    async with opened(size=(width, 24)) as screen:
        bar = screen.lines()[-1]
        assert bar.startswith(left) or width < 80
        assert bar.endswith("? help  q quit") and len(bar) == width
        await screen.press("3")
        assert screen.lines()[-1].endswith("? help  Esc back")


async def test_the_key_bar_of_the_past() -> None:
    async with opened(size=(80, 24)) as screen:
        await screen.step(3)
        await screen.press("3", "left_square_bracket")
        assert "[ ] { } time  End live" in screen.lines()[-1] and "signal" not in screen.lines()[-1]
        await screen.press("end")
        assert "F9 signal" in screen.lines()[-1]


@pytest.mark.parametrize("session", [FakeSession, fleet_session], ids=["one node", "fleet"])
async def test_at_120_columns_every_pane_is_in_the_key_bar_in_the_past_too(session: Callable[[], FakeSession]) -> None:
    async with opened(session(), size=(120, 40)) as screen:
        await screen.step(3)
        live = screen.lines()[-1]
        assert all(f"{key} " in live for key in "12345678") and "8 incidents" in live and "t dump" in live
        await screen.press("left_square_bracket")
        assert "8 incidents" in screen.lines()[-1] and "End live" in screen.lines()[-1]


async def test_a_signal_is_offered_only_with_the_cursor_on_a_rank() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.step(3)
        screen.app.screen.query_one(GpuTable).focus()
        await screen.until(lambda: "F9 signal" not in screen.lines()[-1], "none on a GPU")
        screen.app.screen.query_one(RankTable).focus()
        await screen.until(lambda: "F9 signal" in screen.lines()[-1], "on a rank")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_messages_stand_on_the_last_line_but_one(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await screen.step(3)
        for pane in "1358":
            await screen.press(pane, "I")
            await screen.until(lambda: "no signal was sent" in screen.lines()[-2], "the last line but one")
            await screen.press("slash")
            await screen.until(lambda: "Enter keeps" in screen.lines()[-2], "the line of the filter")
            await screen.press("escape")


async def test_no_key_bar_is_wider_than_the_screen() -> None:
    async with opened(size=(80, 24)) as screen:
        for width in (16, 20, 33, 50, 64, 90, 109, 111, 200):
            await screen.pilot.resize_terminal(width, 24)
            await screen.until(lambda: len(screen.lines()[0]) <= width, "the new size")  # noqa: B023
            assert len(screen.lines()[-1]) <= width


async def test_a_click_on_line_1_opens_what_it_says() -> None:
    async with opened() as screen:
        await screen.pilot.click("AnswerLine", offset=(20, 0))
        await screen.until(lambda: here(screen)[0] == "incidents", "the incidents")


def test_defaults_are_plain() -> None:
    assert replace(Config()) == Config()


async def test_sentences_name_the_keys_that_the_configuration_gives() -> None:
    """The keys that they have by themselves do something else now, or nothing."""
    keys = {"dump": "ctrl+t", "incidents": "f8", "stacks": "f7", "open": "o", "back": "backspace"}
    async with opened(size=(120, 40), config=Config(keys=keys)) as screen:
        await screen.shows("o opens")
        await screen.press("f7")
        await screen.shows("press ^T to dump")
        await screen.press("ctrl+t")
        await screen.shows("Backspace cancels")
        screen.session.dumps[-1].finish()
        await screen.shows("HANG", "F8 opens")
        await screen.press("f8", "g")
        await screen.shows("F7 shows all stacks")
