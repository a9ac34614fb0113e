"""What a rank has written last, below its stack and alone."""

from __future__ import annotations

from dataclasses import replace

from mltop.probes.model import LogLine
from mltop.probes.model.acts import LogTail
from tests.tui.fake_acts import ActingSession
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import one_node
from tests.tui.opened import opened

OUT = LogTail("/scratch/run7/rank0.out", 12_345, 1_763_640_000.0, [f"step {number}" for number in range(90)])
ERR = LogTail("/scratch/run7/rank0.err", 80, 1_763_640_000.0, ["", "ValueError: bad \x1b[31mthing"])


async def test_the_last_lines_stand_below_the_stack_and_l_shows_all_of_them() -> None:
    session = ActingSession()
    session.tails = [OUT, ERR]
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("3", "enter")
        text = await screen.shows("LOG /scratch/run7/rank0.out", "step 89", "ValueError: bad")
        assert "step 80" not in text and "\x1b" not in text
        ((node, _), lines) = session.logs_asked[0]
        assert node == "node01" and lines == 200
        await screen.press("l")
        await screen.shows("> log", "step 80", "ValueError: bad")
        await screen.press("home")
        await screen.shows("step 0")
        await screen.press("escape")
        await screen.shows_not("step 80")


async def test_l_in_the_table_opens_the_log_of_the_rank_under_the_cursor() -> None:
    session = ActingSession()
    session.tails = [OUT]
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("3", "j", "l")
        await screen.shows("> log of", "step 80")


async def test_why_there_is_no_log() -> None:
    session = ActingSession()
    session.tails = [LogTail("", why="it writes to a pipe or a terminal, not to a file")]
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("3", "enter", "l")
        await screen.shows("it writes to a pipe or a terminal, not to a file")


async def test_a_node_that_does_not_answer() -> None:
    async with opened(ActingSession(), size=(120, 40)) as screen:
        await screen.press("3", "enter", "l")
        await screen.shows("its log cannot be read: no answer")


async def test_what_a_rank_wrote_before_it_ended_is_still_told() -> None:
    """No log can be read of a process that is gone."""
    view = one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    rank = sample.ranks[0]
    said = LogLine("timeout", "Watchdog caught a timeout", "/out.log", sample.sampled_at, 57, rank.job, 1, rank.pid, 0)
    sample.log_lines = [said, replace(said, pid=1, text="another's")]
    async with opened(FakeSession([view]), size=(120, 40)) as screen:
        await screen.press("3", "enter")
        await screen.shows("IN ITS LOG", "Watchdog caught a timeout", "/out.log:57")
        await screen.shows_not("another's")


async def test_the_name_of_the_file_stays_while_its_lines_scroll() -> None:
    session = ActingSession()
    session.tails = [OUT]
    async with opened(session, size=(80, 24)) as screen:
        await screen.press("3", "l")
        text = await screen.shows("> log of rank 0", "step 89", "LOG /scratch/run7/rank0.out")
        assert "step 60" not in text
        await screen.press("home")
        text = await screen.shows("step 0", "LOG /scratch/run7/rank0.out")
        assert text.count("LOG ") == 1
