"""dcgmi diag from the screen: behind a question, and what it found."""

from __future__ import annotations

import pytest

from mltop.probes.model.acts import DiagResult
from mltop.tui.render.acts import diagnosis_words
from tests.tui.fake_acts import ActingSession
from tests.tui.opened import opened

FAILS = [DiagResult("Denylist", "pass"), DiagResult("software", "fail", [1], "row remap failure")]


async def test_it_is_asked_for_and_told() -> None:
    session = ActingSession()
    session.diagnosis = (FAILS, "")
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("2", "H")
        await screen.shows("Run dcgmi diag -r 1 on node01?", "puts load on the GPUs", "y run")
        assert session.diagnosed == []
        await screen.press("y")
        await screen.shows("dcgmi diag: 1 fail, 1 pass; software fails on GPU 1: row remap failure")
        assert session.diagnosed == ["node01"]
        await screen.press("6")
        await screen.shows("DIAG", "Denylist passes")


@pytest.mark.parametrize("key", ["enter", "escape", "n", "q"])
async def test_without_y_nothing_runs(key: str) -> None:
    session = ActingSession()
    async with opened(session) as screen:
        await screen.press("2", "H", key)
        await screen.shows_not("Run dcgmi")
        assert session.diagnosed == []


async def test_a_node_that_refuses_and_the_gpu_pane() -> None:
    session = ActingSession()
    session.diagnosis = ([], "4 ranks of job llama-7b on this node: a diagnosis would disturb the work")
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("2", "enter", "H", "y")
        await screen.shows("node01: no diagnosis: 4 ranks of job llama-7b")


async def test_read_only_says_why() -> None:
    async with opened(ActingSession(), read_only=True) as screen:
        await screen.press("2", "H")
        await screen.shows("off: --read-only")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(ActingSession(), size=size) as screen:
        await screen.press("2", "H")
        await screen.shows("Run dcgmi")
        await screen.is_golden("diagnosis-question", size)


def test_words() -> None:
    assert diagnosis_words(FAILS[:1], "") == ("dcgmi diag: 1 pass", "ok")
    assert diagnosis_words([], "there is no dcgmi on this node") == (
        "no diagnosis: there is no dcgmi on this node",
        "warn",
    )
    assert diagnosis_words([DiagResult("x", "skip")], "") == ("dcgmi diag: nothing was tested", "ok")
