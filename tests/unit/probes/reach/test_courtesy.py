"""Threads that compute let the one that draws go first, for a moment."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from mltop.probes.reach import courtesy


def test_nobody_waits_where_nobody_draws() -> None:
    began = time.monotonic()
    for _ in range(10_000):
        courtesy.give_way()
    assert time.monotonic() - began < 10_000 * courtesy.MOST_S / 10


async def test_others_wait_while_the_loop_computes_and_it_does_not_wait_for_itself() -> None:
    end = courtesy.draws_here(asyncio.get_running_loop())
    given: list[str] = []
    go_on = threading.Event()

    def other() -> None:
        go_on.wait()
        courtesy.give_way()
        given.append("other")

    thread = threading.Thread(target=other)
    try:
        await asyncio.sleep(0)  # the loop has looked for what is to be done: it is known to be busy
        thread.start()
        go_on.set()
        courtesy.give_way()
        given.append("loop")
        thread.join(30)
        assert given == ["loop", "other"], "the other waits a moment, and goes on although the loop does"
    finally:
        end()
        thread.join(30)


async def test_nobody_waits_for_a_loop_that_has_nothing_to_do() -> None:
    end = courtesy.draws_here(asyncio.get_running_loop())
    try:
        began = time.monotonic()
        await asyncio.to_thread(lambda: [courtesy.give_way() for _ in range(1000)])
        assert time.monotonic() - began < 1000 * courtesy.MOST_S / 2
    finally:
        end()
    assert not courtesy._Drawing.busy


async def test_at_the_end_others_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy, "LAST_S", 30.0)
    end = courtesy.draws_here(asyncio.get_running_loop())
    over = threading.Event()
    try:
        await asyncio.sleep(0)
        courtesy.end_is_near()
        thread = threading.Thread(target=lambda: (courtesy.give_way(), over.set()))
        thread.start()
        assert not over.wait(10 * courtesy.MOST_S)
    finally:
        end()
    assert over.wait(30), "nobody draws any more"
