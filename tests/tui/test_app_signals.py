"""Signals and native dumps from the screen: nothing is sent unless y is pressed, and what came of it is said."""

from __future__ import annotations

import pytest

from mltop.probes.model import Frame, RankStacks, StackDigest
from mltop.probes.model.acts import SignalResult
from mltop.tui.screens.questions import AskSignal
from tests.tui.fake_acts import ActingSession
from tests.tui.fake_views import T0, fleet, one_node
from tests.tui.opened import opened

SIZES = ((80, 24), (120, 40), (200, 60))


async def test_a_signal_is_asked_for_and_sent() -> None:
    session = ActingSession()
    async with opened(session) as screen:
        await screen.press("3", "down", "f9")
        await screen.shows("> TERM", "rank 1, pid 8121 on node01", "job")
        await screen.press("enter")
        await screen.shows("Send SIGTERM to rank 1, pid 8121 on node01?", "user", "y send")
        await screen.press("y")
        await screen.shows("SIGTERM to rank 1, pid 8121 on node01: it ended")
        assert session.signals == [("TERM", [("node01", 8121)])]
        await screen.press("6")
        await screen.shows("SIGNAL", "rank 1", "it ended")


@pytest.mark.parametrize(
    "keys",
    [
        ("f9", "escape"),
        ("f9", "enter", "enter"),
        ("f9", "enter", "n", "n"),
        ("K", "enter", "escape", "escape"),
        ("K", "y", "escape"),
        ("K", "enter", "q", "q"),
        ("K",),
    ],
    ids=" ".join,
)
async def test_without_y_nothing_is_sent(keys: tuple[str, ...]) -> None:
    """Whoever presses what he presses in htop and nvitop (F9 Enter, K Enter) has sent nothing."""
    session = ActingSession()
    async with opened(session) as screen:
        await screen.press("3", *keys)
        assert session.signals == []
        assert isinstance(screen.app.screen, AskSignal) == (len(keys) == 1)


async def test_what_it_would_come_to_is_said() -> None:
    async with opened(ActingSession()) as screen:
        await screen.press("3", "f9", "down", "down")
        await screen.shows("> ABRT", "a core of ~65 GiB goes to systemd-coredump")
        await screen.press("down", "down", "down")
        await screen.shows("> USR2", "has no handler for it: this ends it")
        await screen.press("up")
        await screen.shows("> USR1")
        await screen.shows_not("has no handler")


async def test_it_can_be_sent_while_the_node_does_not_say_more() -> None:
    session = ActingSession()
    session.facts_come = False
    async with opened(session) as screen:
        await screen.press("3", "f9")
        await screen.shows("asking what they do with it")
        await screen.press("enter", "y")
        await screen.shows("it ended")
        assert session.signals == [("TERM", [("node01", 8120)])]


async def test_marks_choose_several() -> None:
    session = ActingSession([fleet(0, 4)])
    session.outcomes[8121] = SignalResult(8121, "denied", why="ada")
    async with opened(session, size=(120, 40)) as screen:
        screen.app.selection.update(("node001", "node002"))
        await screen.press("3", "K", "enter")
        await screen.shows("Send SIGTERM to 8 ranks?", "rank 0, pid 8120 on node001", "and 2 more: ranks ")
        await screen.press("y")
        await screen.shows("SIGTERM to 8 ranks: 6: it ended; 2: not sent, no permission: it is ada's (sudo mltop)")
        ((name, keys),) = session.signals
        assert name == "TERM" and sorted(keys) == [(f"node00{n}", 8120 + pid) for n in (1, 2) for pid in range(4)]
        await screen.press("6")
        text = await screen.shows("SIGNAL")
        assert text.count("SIGTERM: ") == 8


async def test_from_one_ranks_pane_and_from_the_overview() -> None:
    session = ActingSession()
    async with opened(session) as screen:
        await screen.press("f9")
        await screen.shows("no rank is selected: Tab goes to the ranks")
        await screen.press("tab", "tab", "f9", "enter")
        await screen.shows("Send SIGTERM to rank 0, pid 8120")
        await screen.press("escape", "escape", "3", "enter", "f9", "enter", "y")
        await screen.shows("it ended")
        assert session.signals == [("TERM", [("node01", 8120)])]


@pytest.mark.parametrize("keys", [("f9",), ("K",), ("C",)])
async def test_read_only_says_why(keys: tuple[str, ...]) -> None:
    session = ActingSession()
    async with opened(session, read_only=True) as screen:
        await screen.press("3", *keys)
        await screen.shows("off: --read-only")
        assert session.signals == [] and session.native == []


async def test_the_c_frames_of_one_rank() -> None:
    session = ActingSession()
    async with opened(session) as screen:
        await screen.press("3", "down", "C")
        await screen.shows("> ranks > rank 1", "dumping the C frames")
        await screen.press("C")
        assert session.native == [("node01", 8121)]
        frames = [Frame("ncclAllReduce", "libnccl.so.2", 0)]
        stacks = RankStacks(8121, 1, node="node01", taken_at=T0, digests=[StackDigest(1, 8121, frames=frames)])
        session.native_done[0](stacks, "")
        await screen.shows("with C frames, taken 12:00:00", "ncclAllReduce")
        await screen.press("C")
        session.native_done[1](None, "permission denied")
        await screen.shows("no C frames of rank 1, pid 8121 on node01: permission denied")
        assert session.dumps == []


async def test_the_c_frames_of_a_line_of_the_stacks() -> None:
    session = ActingSession([one_node()])
    async with opened(session, size=(120, 60)) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        await screen.shows("HANG", "MERGED STACKS")
        await screen.press("G", "C")
        await screen.shows("put the cursor on a line of one")
        await screen.press("g", "C")  # who is named
        await screen.shows("> stacks > rank")
        assert len(session.native) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(ActingSession(), size=size) as screen:
        await screen.press("3", "down", "f9", "down", "down")
        await screen.shows("systemd-coredump")
        await screen.is_golden("signal-menu", size)
        await screen.press("enter")
        await screen.is_golden("signal-question", size)


async def test_small_terminals() -> None:
    async with opened(ActingSession(), size=(40, 10)) as screen:
        await screen.press("3", "f9")
        await screen.shows("Enter choose")
        await screen.press("enter")
        await screen.shows("Send SIGTERM", "y send")
