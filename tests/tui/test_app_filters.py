"""Filter expressions on the screen: every pane, while typing, what cannot be asked, and the history."""

from __future__ import annotations

import pytest
from textual import events

from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import FIELDS, Subject, parse
from mltop.tui.render.cells import Row, plain
from mltop.tui.render.glyphs import ASCII
from mltop.tui.render.rows import LazyRows, Sort
from mltop.tui.screens.bars import FilterBox, LineHistory, filter_line, typing_line
from mltop.tui.screens.help.lines import EXAMPLES, drawable
from mltop.tui.screens.help.screen import HelpScreen
from mltop.tui.screens.rows import SubjectRows, narrowed
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

HINT = "Enter keeps"


def several(nodes: int = 9) -> FakeSession:
    return FakeSession([fake_views.fleet(tick, nodes=nodes) for tick in range(4)], title="job 4711")


async def type_filter(screen: Opened, text: str) -> None:
    screen.app.pane.action_filter()
    await screen.pilot.pause()
    for letter in text:
        await screen.pilot.press(_KEYS.get(letter, letter))
    await screen.pilot.pause()


_KEYS = {
    " ": "space", "<": "less_than_sign", ">": "greater_than_sign", "=": "equals_sign", "&": "ampersand",
    "|": "vertical_line", "!": "exclamation_mark", "(": "left_parenthesis", ")": "right_parenthesis",
    "*": "asterisk", "?": "question_mark", "_": "underscore", "%": "percent_sign", "[": "left_square_bracket",
    "]": "right_square_bracket", "-": "minus", ".": "full_stop", "~": "tilde",
}  # fmt: skip


async def test_gpus_of_one_node() -> None:
    async with opened() as screen:
        await type_filter(screen, "throttle=hw_thermal & temp>85")
        text = await screen.shows("throttled", HINT)
        assert "610/700W" not in text and "310/700W" in text
        await screen.press("enter")
        await screen.shows("filter: throttle=hw_thermal & temp>85", "shows 1 of 8", "Esc clears")
        await screen.press("escape")
        await screen.shows("610/700W")


async def test_letters_that_come_before_the_focus_stay() -> None:
    async with opened() as screen:
        await screen.press("slash", *"ra")
        box = screen.app.pane.query_one(FilterBox)
        box.post_message(events.Focus())  # as on a busy machine: it is told late
        await screen.press(*"nk", "enter")
        await screen.shows("filter: rank")
        await screen.press("slash", *"pid", "enter")  # in place of what was there
        await screen.shows("filter: pid")


async def test_nodes_of_a_fleet_by_state_and_by_one_gpu() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        await type_filter(screen, "state!=live")
        await screen.until(lambda: "node001" not in screen.text(), "the live nodes leaving")
        assert "node005" in screen.text() and "node007" in screen.text()
        await screen.press("enter")
        await screen.shows("filter: state!=live", "shows 2 of 9")
        await screen.press("escape")
        await screen.shows("node001")
        await type_filter(screen, "lost=yes temp=?")
        await screen.until(lambda: "node001" not in screen.text(), "the others leaving")
        await screen.shows("node003")


async def test_ranks_by_what_their_gpus_do() -> None:
    async with opened(several(3), size=(120, 40)) as screen:
        await screen.press("3")
        await type_filter(screen, "throttle=hw_thermal")
        await screen.until(lambda: "8120" not in screen.text(), "ranks on other GPUs leaving")
        assert sum("8123" in line for line in screen.lines()) == 1
        await screen.press("enter")
        await screen.shows("shows 1 of 12")


async def test_filter_and_sort_go_together_in_the_ranks() -> None:
    async with opened(several(3), size=(120, 40)) as screen:
        await screen.press("3")
        await type_filter(screen, "rank=2 | rank=0")
        await screen.press("enter", "s", "S")
        await screen.shows("shows 6 of 12")
        assert [key[-1] for key in screen.app.pane.tables()[0].keys] == ["2", "2", "2", "0", "0", "0"]


async def test_while_typing_the_last_filter_that_made_sense_stays() -> None:
    async with opened() as screen:
        await type_filter(screen, "temp>85")
        await screen.shows_not("610/700W")
        for letter, problem in (("&", "a term is missing at the end"), ("(", "a term is missing at the end")):
            await screen.press(_KEYS[letter])
            await screen.shows(problem)
            assert "610/700W" not in screen.text(), "still only the hot one"
        await screen.press("enter")
        await screen.shows("a term is missing at the end", "temp>85&(")
        assert screen.app.pane.typing, "Enter does not keep what is no filter"
        await screen.press(*"busy", "equals_sign", "question_mark", "right_parenthesis", "enter")
        await screen.shows("filter: temp>85&(busy=?)", "no row matches")


async def test_the_name_of_a_field_hides_nothing_until_it_is_a_term_or_kept() -> None:
    async with opened() as screen:
        await screen.shows("610/700W")
        await screen.press("slash")
        for letter in "temp>":
            await screen.press(_KEYS.get(letter, letter))
            await screen.shows("610/700W", "310/700W")
        await screen.press("8", "5")
        await screen.shows_not("610/700W")
        await screen.press(*("backspace",) * 3, "enter")
        await screen.shows("filter: temp", "no row matches 'temp'")


async def test_an_unknown_field_says_the_nearest() -> None:
    async with opened() as screen:
        await type_filter(screen, "tmp>80")
        await screen.shows("no field 'tmp': temp?", "610/700W")
        await screen.press("escape")
        await screen.shows_not("tmp")


async def test_a_field_that_nobody_knows_here_is_named() -> None:
    async with opened(FakeSession([fake_views.no_driver()])) as screen:
        await screen.press("3")
        await type_filter(screen, "temp>85")
        await screen.shows("no row matches 'temp>85': temp is not known here")


async def test_lines_of_stacks_have_no_fields_and_say_so() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.shows("■ HUNG")  # what the feed makes of the stacks
        before = screen.lines()[2:20]
        await type_filter(screen, "sm<0.2")
        await screen.press("enter")
        await screen.shows("filter: sm<0.2", "not asked: lines of stacks have no field 'sm', only words")
        assert screen.lines()[2:20] == before, "nothing is hidden silently"
        await screen.press("escape")
        await type_filter(screen, "dataloader")
        await screen.shows_not("trainer.py:412  ")


async def test_the_help_is_searched() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("question_mark")
        await type_filter(screen, "mem_used")
        await screen.until(lambda: "Panes" not in screen.text(), "other lines leaving")
        await screen.shows("memory in use")


async def test_a_search_of_the_help_finds_terms_too() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("question_mark")
        await type_filter(screen, "straggler")
        await screen.shows("Training jobs", "sets their pace")
        await screen.shows_not("Panes")


async def test_the_help_begins_with_the_keys_of_this_pane() -> None:
    async with opened(size=(120, 60)) as screen:
        for key, pane, own in (("4", "stacks", "mark this rank"), ("3", "ranks", "send a signal")):
            await screen.press(key, "question_mark")
            lines = (await screen.shows(f"In this pane ({pane})")).splitlines()
            at = next(at for at, line in enumerate(lines) if line.startswith(f"In this pane ({pane})"))
            assert at < 6 and own in " ".join(lines[at : at + 5])
            await screen.press("escape")


async def test_tab_turns_the_page_to_words_and_marks() -> None:
    async with opened(size=(120, 100)) as screen:
        await screen.press("question_mark", "tab")
        text = await screen.shows("What a GPU or a rank does", "computes alone", "PSU brake")
        assert "F9 K" not in text
        await screen.press("tab")
        await screen.shows("F9 K")


async def test_up_recalls_earlier_filters_of_any_pane() -> None:
    async with opened() as screen:
        for text in ("sleep", "temp>85", "sleep"):
            await type_filter(screen, text)
            await screen.press("enter", "escape")
        await screen.press("3", "slash", *"dra")
        seen = []
        for key in ("up", "up", "up", "down", "down", "down"):
            await screen.press(key)
            seen.append(screen.app.pane.query_one(FilterBox).value)
        assert seen == ["sleep", "temp>85", "temp>85", "sleep", "dra", "dra"]
        await screen.press("up", "enter")
        await screen.shows("filter: sleep", "shows 1 of 4")


async def test_letters_typed_right_after_the_key_are_part_of_the_filter() -> None:
    async with opened() as screen:
        for key, character in (("slash", "/"), *((letter, letter) for letter in "sleep"), ("enter", "\r")):
            screen.app.post_message(events.Key(key, character))
        await screen.shows("filter: sleep")
        assert screen.app.current_mode == "overview"


async def test_esc_closes_the_line_before_it_cancels_a_dump() -> None:
    async with opened() as screen:
        await screen.press("t")
        await screen.shows("Esc cancels")
        await type_filter(screen, "x")
        await screen.shows(HINT)
        await screen.press("escape")
        await screen.shows("Esc cancels")
        assert not screen.session.dumps[0].cancelled
        await screen.press("escape")
        assert screen.session.dumps[0].cancelled


async def test_the_help_explains_every_field() -> None:
    async with opened(size=(80, 250)) as screen:
        await screen.press("question_mark")
        text = await screen.shows("Filter: /")
        for field in FIELDS.values():
            assert f"  {field.name} " in text and field.meaning in " ".join(text.split()), field.name


async def test_the_help_is_plain_ascii_where_the_terminal_is() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("question_mark")
        await screen.shows("Panes")
        help_pane = screen.app.pane
        assert isinstance(help_pane, HelpScreen)
        text = "".join(plain(line) for line in drawable(help_pane._lines(), ASCII))
        assert text.isascii(), [character for character in text if not character.isascii()]
        assert "hw_thermal, ~" in text


@pytest.mark.parametrize("text", [text for text, _ in EXAMPLES])
def test_the_examples_of_the_help_are_filters(text: str) -> None:
    assert parse(text).problem == ""


@pytest.mark.parametrize("width", [10, 40, 60, 80, 120])
def test_status_lines_fit(width: int) -> None:
    keep = parse("sm<20% & power>300W")
    for line in (
        typing_line(keep, False, width),
        filter_line(keep, width, (3, 4096)),
        filter_line(keep, width, None, "lines of stacks"),
        filter_line(keep, width, (3, 4096), "lines of stacks"),
    ):
        assert plain(line).strip()
        assert len(plain(line)) <= max(width, 70), "one part stays even when it does not fit"
    assert "3 of 4096" in plain(filter_line(keep, 80, (3, 4096)))
    assert "3 of" not in plain(filter_line(keep, 120, (3, 4096), "lines of stacks"))


def test_the_history_keeps_each_text_once() -> None:
    history = LineHistory()
    for text in ("a", "b", " ", "a"):
        history.add(text)
    assert [history[place] for place in range(len(history))] == ["a", "b"]


def test_only_rows_that_are_looked_at_are_made() -> None:
    made: list[int] = []

    def make(index: int) -> Row:
        made.append(index)
        return Row(rows.keys[index], ())

    views = [NodeView(NodeState(f"n{at:04d}", "live", age_s=float(at % 7))) for at in range(4096)]
    rows = SubjectRows(
        [view.node for view in views],
        make,
        lambda index: Subject(views[index]),
        value=lambda _, index: views[index].state.age_s,
        text=lambda index: views[index].node,
    )
    shown = narrowed(rows, parse("node=n1* n10 age>2"), Sort("age", True), {})
    assert not made and isinstance(shown, LazyRows) and len(shown) > 20
    assert shown[0].key == shown.keys[0] and len(made) == 1
    ages = [float(int(key[1:]) % 7) for key in shown.keys]
    assert ages == sorted(ages, reverse=True) and min(ages) > 2
