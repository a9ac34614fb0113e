"""A recording on the screen: it plays, waits, goes faster, jumps, and nothing can be asked of its machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mltop.probes.investigate.capture import load
from mltop.probes.record import OpenRecording, recording
from mltop.probes.record.decoding import decode_head
from mltop.tui.app.app import MltopApp
from mltop.tui.app.past.replay import ReplaySession
from mltop.tui.app.stalls import Stalls
from tests.builders import fault_recordings as faults
from tests.tui.opened import Opened, utc
from tests.unit.probes.record.test_record import hung_material, written


@asynccontextmanager
async def shown(path: Path, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Opened]:
    async with shown_of(ReplaySession(path, load(path, decode_head)), size) as screen:
        yield screen


@asynccontextmanager
async def shown_of(session: ReplaySession, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Opened]:
    with utc():
        app = MltopApp(session, stalls=Stalls(dump="never"))
        async with app.run_test(size=size) as pilot:
            screen = Opened(app, pilot, session)  # type: ignore[arg-type]
            await screen.until(lambda: app.picture is not None, "the first picture")
            yield screen


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "hang.jsonl"
    path.write_bytes(recording(faults.recording(faults.hangs(3), nodes=2, lasts_s=100.0)))
    return path


async def judged(screen: Opened) -> None:
    await screen.until(lambda: screen.app.history.judged_share >= 1.0, "the rules")  # type: ignore[attr-defined]


async def test_a_recording_plays_from_its_beginning_and_stops_at_its_end(hang: Path) -> None:
    async with shown(hang) as screen:
        app = screen.app
        assert app.player is not None and app.player.playing
        first = app.moment
        assert first is not None and first < faults.BEGAN_AT + 5
        await screen.press(*["plus"] * 6)
        assert app.player.speed == 64.0
        await screen.until(lambda: app.moment is not None and app.moment > faults.BROKE_AT, "time to go on")
        await screen.until(lambda: app.moment == app.ended and not app.player.playing, "the end")
        await judged(screen)
        await screen.shows("HUNG", "replay paused")
        track = app.pane.context(app.picture).track(app.picture.view.nodes[0], 0)  # type: ignore[attr-defined, union-attr]
        assert track is not None and track.sm_active[-1] is not None, (
            "what was drawn before the rules came is drawn anew"
        )


async def test_pause_speed_and_steps(hang: Path) -> None:
    async with shown(hang) as screen:
        app = screen.app
        await screen.press("p")
        assert app.player is not None and not app.player.playing
        await screen.shows("replay paused 1970-01-02 03:48:4")
        moment = app.moment
        assert moment is not None
        await screen.press("right_square_bracket", "right_square_bracket")
        assert app.moment == moment + 2
        await screen.press("left_square_bracket")
        assert app.moment == moment + 1
        for keys, speed in (("minus", 0.5), ("minus", 0.25), ("minus", 0.25), ("plus", 0.5)):
            await screen.press(keys)
            assert app.player.speed == speed
        await screen.press("p")
        await screen.shows("replay 0.5x")
        await screen.press("end")
        assert app.moment == app.ended
        await screen.press("home")
        assert app.moment == app.began


async def test_what_happened_is_known_and_jumped_to(hang: Path) -> None:
    async with shown(hang) as screen:
        app = screen.app
        await screen.press("p", "home")
        await judged(screen)
        await screen.press("right_curly_bracket")
        assert app.moment is not None and abs(app.moment - faults.BROKE_AT) < 1
        await screen.press("right_curly_bracket", "end")
        await screen.shows("HUNG")
        await screen.press("6")
        await screen.shows("CRIT", "leaves its GPU idle")


@pytest.mark.parametrize("keys", ["t", "c", "R", "A", "M", "2H", "4i", "3K", "3C"])
async def test_a_recording_takes_no_orders(hang: Path, keys: str) -> None:
    async with shown(hang) as screen:
        await screen.press("p", *keys)
        await screen.shows("this is a recording: nothing can be asked of its machines")


async def test_a_recording_has_no_logs(hang: Path) -> None:
    async with shown(hang) as screen:
        await screen.press("p", "3", "enter", "l")
        await screen.shows("only of live ranks")


@pytest.mark.parametrize("name", ["capture", "capture.tar.gz"])
async def test_a_capture_opens_at_its_end_with_its_stacks(tmp_path: Path, name: str) -> None:
    writer = written(tmp_path / "capture", hung_material())
    if name.endswith("gz"):
        writer.pack(tmp_path / name)
    async with shown(tmp_path / name) as screen:
        app = screen.app
        assert app.player is not None and not app.player.playing and app.moment == app.ended
        await screen.press("4")
        await screen.until(lambda: app.investigation.result is not None, "the stacks")
        await screen.shows("__getitem__")


async def test_a_recording_that_was_cut_off_shows_what_there_is(hang: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(hang.read_bytes()[:1_000_000])
    async with shown(cut) as screen:
        await screen.press("end")
        await screen.shows("n0")
        assert screen.app.ended is not None and screen.app.ended < faults.BROKE_AT


async def test_a_recording_is_shown_before_all_of_it_is_read(hang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first moment at once; it plays on as it is read, and the rules follow."""
    monkeypatch.setattr("mltop.tui.app.past.replay.FIRST_S", 0.0)
    session = ReplaySession.reading(OpenRecording(hang, decode_head))
    first = session.past.newest_at
    assert not session.past.is_complete and first < faults.BROKE_AT
    assert session.past.picture(first).not_judged, "nothing is said to be fine that nobody has judged"
    async with shown_of(session) as screen:
        app = screen.app
        await screen.until(lambda: session.past.is_complete, "all of it")
        await judged(screen)
        await screen.until(lambda: app.ended is not None and app.ended > faults.BROKE_AT, "the end of it")
        await screen.press("end")
        await screen.shows("HUNG")
        assert app.player is not None and app.began == faults.BEGAN_AT


async def test_it_waits_at_the_end_of_what_is_read(hang: Path) -> None:
    session = ReplaySession(hang, load(hang, decode_head))
    session.past.is_complete = False
    async with shown_of(session) as screen:
        app = screen.app
        assert app.player is not None
        app.player.speed = 64.0
        await screen.until(lambda: app.moment == app.ended, "the end of what is read")
        assert app.player.playing
        session.past.is_complete = True
        await screen.until(lambda: not app.player.playing, "the end")  # type: ignore[union-attr]


async def test_what_is_wrong_further_on_is_said_and_the_rest_is_shown(
    hang: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mltop.tui.app.past.replay.FIRST_S", 0.0)
    lines = hang.read_bytes().splitlines(keepends=True)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(lines[:150]) + b"7\n" + b"".join(lines[150:]))
    session = ReplaySession.reading(OpenRecording(path, decode_head))
    async with shown_of(session) as screen:
        await screen.shows("line 151")
        assert len(session.past.picture(session.past.newest_at).view.nodes) == 2
