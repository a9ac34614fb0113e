"""NCCL's RAS from the screen: it is asked only when y was pressed, and what it says stands beside the stacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.investigate.ras import RasTold
from mltop.probes.model import JobKey
from mltop.probes.model.evidence.collectives import Group, GroupProgress, ProgressVerdict
from mltop.tui.config.settings import Config
from mltop.tui.screens.questions import Ask
from tests.tui.fake_acts import ActingSession
from tests.tui.fake_reports import DUMPED_AT
from tests.tui.fake_views import fleet
from tests.tui.opened import Opened, opened

SIZES = ((80, 24), (120, 40), (200, 60))
GROUP = Group("c/0", "communicator 0x1a2b", (0, 1, 2, 3), 4, "nccl")
COUNTERS = tuple(
    GroupProgress(GROUP, rank, rank, enqueued=70 - (rank == 2), at=DUMPED_AT, source="ras") for rank in range(4)
)
BEHIND = ProgressVerdict("never_entered", GROUP, 70, culprits=(2,), waiting=(0, 1, 3), counters=COUNTERS)
TOLD = RasTold(
    JobKey("llama-7b", None),
    "node01",
    "2.30.7",
    True,
    1,
    DUMPED_AT,
    (BEHIND,),
    frozenset(("node01", 8120 + n) for n in range(4)),
)
SAID = "rank 2 has not entered operation 70 of communicator 0x1a2b (ranks 0-3)"


async def dumped(screen: Opened) -> None:
    await screen.press("t")
    screen.session.dumps[-1].finish()
    await screen.shows("HANG")


def flat(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("keys", [("escape",), ("enter",), ("n",), ("q",)], ids=" ".join)
async def test_nothing_is_asked_unless_y_is_pressed(keys: tuple[str, ...]) -> None:
    session = ActingSession()
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("i")
        await screen.until(lambda: isinstance(screen.app.screen, Ask), "the question")
        text = flat(
            await screen.shows("Ask NCCL's RAS about job llama-7b?", "One question to one node, node01", "y ask")
        )
        assert "A crash ends the job" in text and "2.30.7" in text and "nccl#2346" in text
        await screen.press(*keys)
        assert not isinstance(screen.app.screen, Ask) and session.ras_asked == []


async def test_an_old_version_is_warned_of() -> None:
    session = ActingSession()
    for version, said in (("2.28.9", "Its NCCL is 2.28.9, older than 2.29.2"), ("", "Its NCCL is not known")):
        session.ras_plan = replace(session.ras_plan, nccl_version=version, is_old=True)
        async with opened(session, size=(120, 40)) as screen:
            await dumped(screen)
            await screen.press("i")
            await screen.shows(said, "nccl#1762")


async def test_the_answer_stands_beside_the_stacks_with_its_age() -> None:
    session = ActingSession()
    session.ras_told = TOLD
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("i")
        await screen.shows("y ask")
        await screen.press("y")
        await screen.until(lambda: SAID in flat(screen.text()), "the answer")
        text = flat(screen.text())
        assert "NCCL's RAS on node01, " in text and " ago (12:00:" in text and "NCCL 2.30.7" in text
        assert "i asks again and compares" in text
        assert session.ras_asked == ["llama-7b"]
        await screen.press("6")
        await screen.shows("RAS", "its answer is with the evidence")


async def test_why_it_must_not_be_asked_is_said_and_stays() -> None:
    session = ActingSession()
    session.ras_plan = replace(session.ras_plan, why="ranks were started minutes ago, and a question may crash one")
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("i")
        await screen.shows("NCCL's RAS is not asked: ranks were started minutes ago")
        assert not isinstance(screen.app.screen, Ask) and session.ras_asked == []
        await screen.shows("ago (12:00:", "not asked: ranks were started minutes ago")


async def test_a_failed_question_says_why() -> None:
    session = ActingSession()
    session.ras_told = replace(TOLD, answers=0, progress=(), why="the job has turned RAS off (NCCL_RAS_ENABLE=0)")
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("i")
        await screen.shows("y ask")
        await screen.press("y")
        await screen.until(lambda: flat(screen.text()).count("the job has turned RAS off") == 2, "why, twice")


async def test_it_needs_stacks_first_and_the_words_name_the_users_key() -> None:
    async with opened(ActingSession(), size=(120, 40), config=Config(keys={"dump": "ctrl+t", "ras": "f9"})) as screen:
        await screen.press("4", "f9")
        await screen.shows("NCCL's RAS is not asked: no job here is stuck", "press ^T to dump")


async def test_on_a_fleet_and_from_the_command_line_of_the_screen() -> None:
    session = ActingSession([fleet(0, 8)])
    session.ras_told = TOLD
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("colon", *"ras", "enter")
        await screen.shows("Ask NCCL's RAS")
        await screen.press("y")
        await screen.until(lambda: SAID in flat(screen.text()), "the answer")


async def test_read_only_says_why() -> None:
    async with opened(ActingSession(), read_only=True) as screen:
        await screen.press("4", "i")
        await screen.shows("off: --read-only")


async def test_help_lists_it() -> None:
    async with opened(ActingSession(), size=(200, 60)) as screen:
        await screen.press("question_mark", "slash", *"NCCL", "enter")
        await screen.shows("ask NCCL's RAS about this job, once; asks")


@pytest.mark.parametrize("size", SIZES)
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(ActingSession(), size=size) as screen:
        await dumped(screen)
        await screen.press("i")
        await screen.shows("y ask")
        await screen.is_golden("ask-ras", size)


async def test_the_incidents_page_has_it_with_the_evidence() -> None:
    session = ActingSession()
    session.ras_told = TOLD
    async with opened(session, size=(120, 40)) as screen:
        await dumped(screen)
        await screen.press("8", "i")
        await screen.shows("y ask")
        await screen.press("enter", "g", "enter")
        await screen.shows("evidence", "stacks")
        await screen.press("i")
        await screen.shows("y ask")
        await screen.press("y")
        await screen.until(lambda: SAID in flat(screen.text()), "the answer among the evidence")
        text = flat(screen.text())
        assert "NCCL RAS node01: " in text or "NCCL RAS rank 2 has not entered" in text
        assert "ras NCCL's RAS on node01, " in text
