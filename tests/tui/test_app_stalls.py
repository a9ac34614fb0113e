"""A job stands still: the question, its answers, what is dumped and captured by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.model.incident import JobMotion
from mltop.probes.model.vocabulary import MotionPhase
from mltop.tui.app.stalls import CaptureOnHang, Stalls
from mltop.tui.state.lists import CHOICES, Choices, Chosen
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet
from tests.tui.opened import Opened, opened

SIZES = ((80, 24), (120, 40), (200, 60))
QUESTION = "train-70b is stuck: dump stacks?"


def motion(phase: MotionPhase = "stalled", *nodes: str) -> JobMotion:
    return JobMotion("train-70b", 7, phase=phase, nodes=list(nodes or ("node01",)))


async def see(screen: Opened, *motions: JobMotion) -> None:
    """The feed, which has motions of its own, is at rest."""
    screen.app.feed.stop()
    await screen.until(lambda: not screen.app.feed._thread.is_alive(), "the end of the feed")
    await screen.pilot.pause()
    screen.app.see_motions(motions)
    screen.app.redraw()
    await screen.pilot.pause()


async def test_once() -> None:
    remembered: list[None] = []
    async with opened(stalls=Stalls(remember_always=lambda: remembered.append(None))) as screen:
        await see(screen, motion())
        await screen.shows(QUESTION, "y once", "a always", "n no")
        await screen.press("y")
        await screen.shows("> stacks")
        assert screen.session.dumped_nodes == [("node01",)] and remembered == []
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await see(screen, motion())
        assert QUESTION not in screen.text() and len(screen.session.dumps) == 1


async def test_always_is_remembered_and_later_stalls_are_dumped() -> None:
    remembered: list[None] = []
    async with opened(stalls=Stalls(remember_always=lambda: remembered.append(None))) as screen:
        await see(screen, motion())
        await screen.press("a")
        assert remembered == [None] and len(screen.session.dumps) == 1
        screen.session.dumps[0].finish()
        await screen.until(lambda: not screen.app.investigation.dumping, "the end of the dump")
        await see(screen, motion("moving"))
        await see(screen, motion())
        assert len(screen.session.dumps) == 2 and QUESTION not in screen.text()
        assert "> stacks" not in screen.text()  # it stays where the user is


async def test_no_and_the_keys_elsewhere() -> None:
    async with opened(FakeSession([fleet(0, 4)]), size=(120, 40)) as screen:
        await see(screen, motion("stalled", "node001"))
        await screen.shows(QUESTION)
        await screen.press("slash", *"nay", "escape")  # typed into the filter
        assert screen.session.dumps == []
        await screen.shows(QUESTION)
        await screen.press("n")
        await screen.shows_not(QUESTION)
        await screen.press("2", "n")  # the next node again
        await screen.shows("> node002")
        await screen.press("y", "a")
        assert screen.session.dumps == []


@pytest.mark.parametrize("size", SIZES)
async def test_what_a_key_says_is_seen_beside_the_question(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await see(screen, motion())
        await screen.shows(QUESTION)
        await screen.press("ampersand")
        await screen.shows(QUESTION, "&: not bound here", "q quit")
        await screen.press("n")
        await screen.shows_not(QUESTION)
        await screen.shows("&: not bound here", "q quit")


async def test_allowed_earlier() -> None:
    async with opened(stalls=Stalls(dump="always")) as screen:
        await see(screen, motion())
        assert screen.session.dumped_nodes == [("node01",)]


async def test_read_only_does_nothing() -> None:
    stalls = Stalls(dump="always", captures=CaptureOnHang(Path("/c")))
    async with opened(read_only=True, stalls=stalls) as screen:
        await see(screen, motion())
        assert screen.session.dumps == [] and screen.session.captures == []
        assert QUESTION not in screen.text()


async def test_the_question_is_over_when_the_job_moves() -> None:
    async with opened() as screen:
        await see(screen, motion())
        await screen.shows(QUESTION)
        screen.app.see_motions([motion("moving")])
        screen.app.redraw()
        await screen.shows_not(QUESTION)


async def test_a_capture_on_a_hang() -> None:
    async with opened(stalls=Stalls(captures=CaptureOnHang(Path("/captures")))) as screen:
        await see(screen, motion())
        assert screen.session.captured_to == [(Path("/captures"), 2 << 30)]
        screen.session.captures[0].finish(CaptureResult(Path("/captures/mltop-capture-1")))
        await screen.press("n")
        await screen.shows("capture saved: /captures/mltop-capture-1")
        await see(screen, motion())
        assert len(screen.session.captures) == 1


async def test_it_waits_for_the_dump() -> None:
    stalls = Stalls(dump="always", captures=CaptureOnHang(Path("/captures")))
    async with opened(stalls=stalls) as screen:
        await see(screen, motion())
        assert len(screen.session.dumps) == 1 and screen.session.captures == []
        screen.session.dumps[0].finish()
        await screen.until(lambda: not screen.app.investigation.dumping, "the end of the dump")
        await see(screen, motion())
        assert len(screen.session.captures) == 1


async def test_the_users_own_capture_is_none_of_these() -> None:
    async with opened(stalls=Stalls(captures=CaptureOnHang(Path("/captures")))) as screen:
        await screen.press("c")
        screen.session.captures[0].finish(CaptureResult(Path("/mine")))
        await screen.shows("captured to /mine")
        assert screen.session.captured_to == [(None, 0)]


@pytest.mark.parametrize("size", SIZES)
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await see(screen, motion())
        await screen.shows(QUESTION)
        await screen.is_golden("stall-question", size)


def test_the_choice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "state"))
    assert CHOICES.read() == Choices()
    CHOICES.change(lambda choices: replace(choices, dump_stalled=True))
    CHOICES.change(lambda choices: replace(choices, screen={"theme": Chosen("nord")}))
    assert CHOICES.read() == Choices(dump_stalled=True, screen={"theme": Chosen("nord")})
    assert (tmp_path / "state" / "choices.json").stat().st_mode & 0o777 == 0o600
