"""The question before a probe: what it says, what can be chosen, and that nothing starts without a yes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual import events

from mltop.probes.investigate.probing.wanted import ProbeWanted
from tests.tui import fake_views
from tests.tui.fake_probes import ProbeSession
from tests.tui.opened import Opened, opened


def fleet_session(nodes: int = 9) -> ProbeSession:
    return ProbeSession([fake_views.fleet(tick, nodes=nodes) for tick in range(3)], title="job 4711")


async def asked(screen: Opened, *keys: str) -> ProbeWanted:
    """What is started by these keys."""
    await screen.press(*keys)
    await screen.until(lambda: screen.session.asked, "a probe")  # type: ignore[attr-defined]
    wanted: ProbeWanted = screen.session.asked[-1]  # type: ignore[attr-defined]
    return wanted


async def test_it_says_what_where_how_many_how_long_and_what_is_in_use() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M")
        text = await screen.shows("start a probe?", "[matmul]", "[bf16]", "Enter start", "Esc cancel")
        assert "node01, 8 GPUs" in text
        assert "about 20s" in text
        assert "GPUs in use are left alone; 4 of 8 are in use now" in text
        assert screen.session.asked == [], "nothing starts by itself"


@pytest.mark.parametrize("keys", [("escape",), ("n",), ("q",)])
async def test_no_starts_nothing(keys: Sequence[str]) -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M")
        await screen.shows("start a probe?")
        await screen.press(*keys)
        await screen.shows_not("start a probe?")
        assert screen.session.asked == [] and screen.app._running
        await screen.shows("HOST")


@pytest.mark.parametrize("yes", ["enter", "y"])
async def test_yes_starts_it_and_goes_to_the_probes(yes: str) -> None:
    async with opened(ProbeSession()) as screen:
        assert await asked(screen, "M", yes) == ProbeWanted("matmul")
        await screen.shows("> probes", "connecting")


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (("M", "right", "enter"), ProbeWanted("matmul", dtype="fp8")),
        (("M", "left", "enter"), ProbeWanted("matmul", dtype="fp32")),
        (("A", "right", "right", "enter"), ProbeWanted("all-reduce", collective="reduce-scatter")),
        (("A", "down", "right", "enter"), ProbeWanted("all-reduce", sweep=True)),
        (("A", "down", "right", "left", "enter"), ProbeWanted("all-reduce")),
        (("M", "up", "right", "right", "enter"), ProbeWanted("memory")),
        (("M", "up", "l", "l", "space", "enter"), ProbeWanted("copies")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_types_collectives_and_other_kinds_are_chosen_by_arrows(
    keys: tuple[str, ...], wanted: ProbeWanted
) -> None:
    async with opened(ProbeSession()) as screen:
        assert await asked(screen, *keys) == wanted


async def test_a_click_chooses() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M")
        await screen.shows("[bf16]")
        line = next(y for y, text in enumerate(screen.lines()) if "[bf16]" in text)
        await screen.pilot.click(offset=(screen.lines()[line].index("tf32") + 1, line))
        await screen.shows("[tf32]")
        assert (await asked(screen, "enter")).dtype == "tf32"


async def test_marked_nodes_else_all() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await screen.press("A")
        text = await screen.shows("all 9 nodes: node001, node002, node003 and 6 more, 72 GPUs")
        assert "1 node that does not answer: node007" in text
        await screen.press("escape")
        screen.app.pane.query_one("#map").focus()  # type: ignore[attr-defined]
        await screen.press("space", "l", "space", "A")
        await screen.shows("2 marked nodes:")
        wanted = await asked(screen, "enter")
        assert wanted.nodes == screen.app.selection.nodes and len(wanted.nodes) == 2


async def test_from_a_node_pane_that_node_and_from_a_gpu_pane_that_gpu() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        screen.app.pane.query_one("#map").move_cursor("node003")  # type: ignore[attr-defined]
        screen.app.pane.query_one("#map").focus()  # type: ignore[attr-defined]
        await screen.press("enter")
        await screen.shows("> node003")
        await screen.press("M")
        await screen.shows("node003, 8 GPUs")
        await screen.press("escape", "enter")
        await screen.shows("node003 GPU 0")
        await screen.press("M")
        await screen.shows("GPU 0 of node003, 1 GPU")
        await screen.press("up", "right")  # all-reduce needs several: of the whole node
        await screen.shows("node003, 8 GPUs")
        await screen.press("left")
        wanted = await asked(screen, "enter")
        assert (wanted.nodes, wanted.gpus) == (("node003",), ("0",))


async def test_pairs_need_two_nodes() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M", "up", "left", "enter")
        await screen.shows("[pairs]", "pairs need two nodes or more")
        assert screen.session.asked == []
    async with opened(fleet_session(), size=(120, 40)) as screen:
        wanted = await asked(screen, "A", "up", "right", "right", "right", "down", "right", "enter")
        assert wanted == ProbeWanted("pairs", round_robin=True)


async def test_force_needs_the_name_of_the_node() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M", "f")
        await screen.shows("type node01 and Enter")
        await screen.press(*"y", "enter")  # a letter is a letter here
        await screen.shows("that is not node01: not forced")
        assert screen.session.asked == []
        await screen.press("f", *"node01", "enter")
        await screen.shows("FORCED: also what is in use is loaded")
        assert screen.session.asked == [], "forcing is not starting"
        assert (await asked(screen, "enter")) == ProbeWanted("matmul", force=True)


async def test_force_is_taken_back_and_esc_leaves_the_question_open() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M", "f", *"node01", "enter")
        await screen.shows("FORCED")
        await screen.press("f")
        await screen.shows("GPUs in use are left alone")
        await screen.press("f", *"no", "escape")
        await screen.shows("Enter start")
        assert (await asked(screen, "enter")) == ProbeWanted("matmul")


async def test_force_is_for_one_node_at_a_time() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await screen.press("M", "f")
        await screen.shows("force works on one node at a time")
        assert (await asked(screen, "enter")).force is False


async def test_read_only_refuses() -> None:
    async with opened(ProbeSession(), read_only=True) as screen:
        await screen.press("M")
        await screen.shows("off: --read-only")
        await screen.press("A")
        assert "start a probe?" not in screen.text()
        await screen.press("7")
        await screen.shows("probes are off: --read-only")


async def test_nothing_to_probe_while_no_node_answers() -> None:
    view = fake_views.fleet(nodes=9)
    only = type(view)(view.taken_at, (view.nodes[6],), 1)
    async with opened(ProbeSession([only])) as screen:
        await screen.press("M", "enter")
        await screen.shows("no node to probe: node007 does not answer")
        assert screen.session.asked == []


async def test_ctrl_c_quits_from_the_question() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("M")
        await screen.shows("start a probe?")
        await screen.press("ctrl+c")
        await screen.until(lambda: not screen.app._running, "the app's end")


async def test_the_screen_stays_live_behind_it() -> None:
    async with opened(ProbeSession(), size=(120, 40)) as screen:
        await screen.press("M")
        await screen.shows("start a probe?")
        await screen.step(5)
        await screen.shows("12:00:05", "start a probe?")


@pytest.mark.parametrize("size", [(16, 4), (20, 5), (40, 10), (60, 16)])
async def test_small_terminals(size: tuple[int, int]) -> None:
    async with opened(ProbeSession(), size=size) as screen:
        await screen.press("M")
        await screen.until(lambda: len(screen.app.screen_stack) == 2, "the question")
        lines = screen.lines()
        assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines)
        assert "Enter" in screen.text()
        assert (await asked(screen, "enter")) == ProbeWanted("matmul")


async def test_a_name_typed_at_once_is_not_taken_for_keys() -> None:
    """All keys come before the screen has handled the first: as over a slow link."""
    async with opened(ProbeSession()) as screen:
        await screen.press("M")
        await screen.shows("start a probe?")
        for key in ("f", *"node01", "enter"):
            screen.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await screen.shows("FORCED: also what is in use is loaded")
        assert screen.session.asked == []
