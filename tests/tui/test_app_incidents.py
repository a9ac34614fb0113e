"""What is wrong is line 1 of every pane, in one line, and pane 8 tells all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.model import Incident, RankDeath
from mltop.probes.reach.view import FleetView
from mltop.tui.render.cells import plain
from mltop.tui.render.story import Scope, ended_stories, lines_of
from mltop.tui.screens.incidents.page import Known, Page
from mltop.tui.widgets.cell_lines import CellLines
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet
from tests.tui.opened import Opened, opened, utc

FORGED = "RuntimeError: no\ncritical all is well\x1b[2J"


def crashed() -> FleetView:
    """A rank of the first of two nodes has died, the others went down with it."""
    view = fleet(0, 2)
    for number, node in enumerate(view.nodes):
        assert node.sample is not None
        ranks, node.sample.ranks = node.sample.ranks, []
        for each in ranks:
            first = number == 0 and each is ranks[0]
            how = {"code": 11, "error": FORGED} if first else {"code": 15}
            at = node.sample.sampled_at - (30.0 if first else 20.0)
            node.sample.deaths.append(
                RankDeath(
                    each.pid, 4 * number + (each.rank or 0), "train-70b", 7, "signal", at=at, gpus=[*each.gpus], **how
                )  # type: ignore[arg-type]
            )
    return view


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_line_1_of_every_pane(size: tuple[int, int]) -> None:
    async with opened(FakeSession([crashed()]), size=size) as screen:
        await screen.shows("DIED")
        for key in "12345678":
            await screen.press(key)
            await screen.until(lambda: "DIED" in screen.lines()[0], f"the incident in line 1 of pane {key}")
            assert "\x1b" not in screen.text() and all(len(line) <= size[0] for line in screen.lines())


async def test_low_and_narrow() -> None:
    async with opened(FakeSession([crashed()]), size=(20, 5)) as screen:
        await screen.shows("DIED")
        assert all(len(line) <= 20 for line in screen.lines())


async def test_all_of_it() -> None:
    async with opened(FakeSession([crashed()]), size=(120, 40)) as screen:
        await screen.press("8", "enter")
        await screen.shows("incident 1 of", "killed by SIGSEGV", "confidence", "evidence", "AT  ", "WHAT")
        assert not any(line.startswith("critical all is well") for line in screen.lines())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(FakeSession([crashed()]), size=size) as screen:
        await screen.press("8")
        await screen.shows("killed by SIGSEGV", "Enter")
        await screen.is_golden("incidents", size)
        await screen.press("enter")
        await screen.shows("evidence", "Esc back")
        await screen.is_golden("incident", size)


async def test_nothing_is_wrong() -> None:
    view = fleet(0, 2)
    async with opened(FakeSession([view]), size=(120, 40)) as screen:
        await screen.press("8")
        await screen.shows("no incidents")
        assert "DIED" not in screen.text() and "HUNG" not in screen.text()


async def hung(screen: Opened) -> None:
    await screen.step(9)
    await screen.press("t")
    screen.session.dumps[0].finish()
    await screen.shows("confidence high")
    await screen.until(lambda: "HUNG" in screen.lines()[0], "the incident, which the feed makes of the stacks")


async def test_stacks_make_an_incident_and_enter_goes_on_to_the_rank_that_it_accuses() -> None:
    async with opened(size=(120, 40)) as screen:
        await hung(screen)
        await screen.press("8")
        await screen.shows("HUNG", "Enter")
        assert "rank 2" in screen.lines()[0], "the job that stands comes before what its node has"
        await screen.press("enter")
        text = await screen.shows("incident 1 of", "who  ", "Esc back")
        assert "rank 2, node01" in text
        await screen.press("enter")
        await screen.shows("MainThread", "dataset.py:57")
        await screen.press("escape", "escape")
        await screen.shows("Enter")


async def test_the_stack_of_the_culprit_and_other_trouble_stand_in_it() -> None:
    async with opened(size=(120, 40)) as screen:
        await hung(screen)
        await screen.press("8", "enter")
        text = await screen.shows("evidence", "AT", "FROM", "WHAT", "stacks", "do  ")
        stack = next(line for line in screen.lines() if line.startswith("stack"))
        assert "main train.py:141" in stack and "2 frames of torch.utils.data" in text
        assert "dataset.py:57  stuck" in " ".join(text.split("\n"))
        apart = next(line for line in screen.lines() if line.startswith("unrelated"))
        assert "GPU 6 lost" in apart, "it is wrong as well, and stops nobody"


async def test_before_there_are_stacks_the_key_that_gets_them_is_named() -> None:
    hang = Incident("job/x/", "hang", "critical", "nobody is known to hold it up", job="x")
    lines = [plain(line.cells) for line in Page(hang, Known(0.0), 80).lines()]
    assert any(line.startswith("stack") and "t dumps" in line for line in lines)
    over = [plain(line.cells) for line in Page(replace(hang, since=1.0, until=9.0), Known(20.0), 80).lines()]
    assert not any(line.startswith("stack") for line in over)


async def test_n_goes_to_the_next_incident_and_enter_on_another_opens_that() -> None:
    async with opened(size=(120, 40)) as screen:
        await hung(screen)
        await screen.press("8", "enter")
        await screen.shows("incident 1 of")
        await screen.press("n")
        await screen.shows("incident 2 of", "GPU 6 lost")
        await screen.press("N", "G")
        await screen.shows("incident 1 of")
        await screen.press("enter")
        await screen.shows("incident 3 of 3", "too hot")


async def test_enter_on_what_no_job_suffers_from_goes_to_its_gpu() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.step(9)
        await screen.press("8")
        await screen.shows("GPU 6 lost")
        while "GPU 6" not in screen.app.screen.query_one("#all", CellLines).text_at_cursor():
            await screen.press("j")
        await screen.press("enter")
        await screen.shows("who  ", "GPU 6 lost", "affects no job")
        await screen.press("enter")
        await screen.until(lambda: screen.app.trail.here.gpu == 6, "the GPU")


def test_what_is_over_says_from_when_to_when() -> None:
    over = Incident("a", "hang", "critical", "rank 2 stood", since=100.0, until=160.0, job="j")
    told = ended_stories([over, replace(over, until=None)], Scope())
    with utc():
        (line,) = lines_of(told, 900.0, 100, 10)
        told = ended_stories([over], Scope())
        assert "00:01:40 to 00:02:40  1m00s" in plain(lines_of(told, 900.0, 100, 10)[0].cells)
    assert "HUNG" not in plain(line.cells)
