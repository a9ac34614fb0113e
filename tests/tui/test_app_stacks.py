"""Dumping stacks and capturing from the screen: progress, cancelling, partial results, gaps, read-only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model import Frame, NodeState, StackClass, Verdict
from mltop.probes.model.ranks import Ranges
from tests.tui import fake_reports, fake_views
from tests.tui.fake_session import FakeSession, captured
from tests.tui.opened import opened

NO_DUMP = "no dump yet: press t"


async def test_t_dumps_everything_and_names_the_rank() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        await screen.shows("> stacks", "Esc cancels")
        dump = screen.session.dumps[0]
        assert screen.session.dumped_nodes == [None], "the whole target"
        dump.advance()
        await screen.shows("stacks: dumping  0/4 ranks", "round 1/2", "0.2 s")
        dump.advance()
        text = await screen.shows("collecting 2/4", "partial", "MERGED STACKS")
        assert "UNCLEAR" not in text and "HANG" not in text, "what half of the ranks say is no verdict"
        dump.finish()
        text = await screen.shows("HANG  confidence high", "rank 2", "__getitem__ (dataset.py:57)")
        assert "partial" not in text and "Esc cancels" not in text and "collecting" not in text
        assert any(line.endswith("0-1,3") for line in screen.lines())


async def test_no_dump_says_what_to_press() -> None:
    async with opened() as screen:
        await screen.press("4")
        await screen.shows(NO_DUMP)


async def test_esc_cancels_and_the_result_before_stays() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.press("t")
        second = screen.session.dumps[1]
        second.advance()
        second.advance()
        text = await screen.shows("collecting 2/4", "HANG")
        assert "UNCLEAR" not in text, "the verdict before stays until there is another"
        await screen.press("escape")
        await screen.shows("stacks: cancelled", "HANG")
        assert second.cancelled
        assert "partial" not in screen.text()


async def test_t_again_cancels_and_without_an_earlier_result_the_partial_one_stays() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].advance()
        screen.session.dumps[0].advance()
        await screen.shows("2/4 ranks")
        await screen.press("t")
        await screen.shows("stacks: cancelled", "partial", "UNCLEAR")
        assert len(screen.session.dumps) == 1
        await screen.press("t")
        assert len(screen.session.dumps) == 2


async def test_dump_goes_on_in_the_background_and_shows_in_other_panes() -> None:
    async with opened() as screen:
        await screen.press("t")
        screen.session.dumps[0].advance()
        await screen.press("1")
        await screen.shows("stacks: dumping")
        screen.session.dumps[0].finish()
        await screen.shows_not("stacks: dumping")
        await screen.press("4")
        await screen.shows("HANG")


async def test_denied_rank_and_silent_node_are_shown_in_place() -> None:
    session = FakeSession(script=fake_reports.denied_script())
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        text = await screen.shows("not known: rank 3: permission denied", "WITHOUT A STACK")
        assert "rank 3 pid 8123: permission denied" in text
        assert "sudo sysctl kernel.yama.ptrace_scope=0" in text
        assert "stacks: no full answer from node07: ssh: connection reset by peer" in text


async def test_failed_dump_says_why() -> None:
    session = FakeSession(script=[StackProgress("failed", error="py-spy: not found in [/opt/mltop]")])
    async with opened(session) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        await screen.shows("stacks failed: py-spy: not found in [/opt/mltop]", NO_DUMP)


async def test_job_without_ranks_says_so() -> None:
    session = FakeSession(script=[StackProgress("done")])
    async with opened(session) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        await screen.shows("no training ranks found")


async def test_enter_opens_ranks_of_a_branch_and_one_rank_opens_its_stack() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.press("j", "enter")  # the root, which all share
        await screen.shows("> stacks > ranks 0-3", "8123")
        await screen.press("escape")
        await screen.shows("MERGED STACKS")
        await screen.press("g", "enter")  # who is named
        text = await screen.shows("> stacks > rank 2", "MainThread")
        assert "__getitem__  dataset.py:57  index=77213" in text
        await screen.press("escape")
        await screen.shows("MERGED STACKS")


async def test_class_narrows_the_ranks() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.press("G", "enter")
        text = await screen.shows("> stacks > ranks 0-1,3", "8123")
        assert " 8122  " not in text, "no row of it; what is wrong names it"


async def test_filter_narrows_tree_and_classes_but_never_the_verdict() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG", "all_reduce")
        await screen.press("slash", *"dataset")
        await screen.shows_not("trainer.py:412  ")
        assert "HANG" in screen.text()


async def test_capture_says_where_it_went() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("c")
        await screen.shows("capturing")
        await screen.press("c")
        assert len(screen.session.captures) == 1, "one at a time"
        screen.session.captures[0].finish(captured("/tmp/[captures]/1"))
        await screen.shows("captured to /tmp/[captures]/1")
        await screen.press("escape")
        await screen.shows_not("captured to")


async def test_capture_tells_what_is_missing_and_why_it_failed() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("c")
        problems = ("node07 did not answer", "rank 3 was denied")
        screen.session.captures[0].finish(CaptureResult(Path("/c/1"), problems))
        await screen.shows("captured to /c/1, missing: node07 did not answer and 1 more")
        await screen.press("c")
        screen.session.captures[1].finish(CaptureResult(Path("/c/2"), error="no space left on device"))
        await screen.shows("capture failed: no space left on device")


async def test_a_cancelled_capture_says_where_what_was_known_went() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("c", "escape")
        await screen.shows("capture: cancelling")
        first = screen.session.captures[0]
        assert first.cancelled
        await screen.press("c")
        assert len(screen.session.captures) == 2, "the next one need not wait"
        first.finish(CaptureResult(Path("/c/1"), ("rank 3 was not dumped",), cancelled=True))
        await screen.shows("capture cancelled; what was known is in /c/1")
        await screen.press("c")
        assert len(screen.session.captures) == 2, "the second one still runs"
        screen.session.captures[1].finish(captured("/c/2"))
        await screen.shows("captured to /c/2")


async def test_a_long_path_keeps_its_end() -> None:
    async with opened(size=(80, 24)) as screen:
        await screen.press("c")
        path = "/home/somebody-with-a-long-name/.local/share/mltop/captures/2025-11-20T12-00-00"
        screen.session.captures[0].finish(captured(path))
        text = await screen.shows("captured to …", "mltop/captures/2025-11-20T12-00-00")
        assert "/home" not in text


async def test_a_dump_that_waits_says_for_whom() -> None:
    view = fake_views.one_node()
    stale = replace(view.nodes[0], state=NodeState("vm", "stale", "no sample for 7 s", 7.0))
    async with opened(FakeSession([replace(view, nodes=(stale,))])) as screen:
        await screen.press("t")
        screen.session.dumps[0].advance()
        await screen.shows("stacks: dumping  0/4 ranks", "round 1/2", "0.2 s", "waiting for vm (stale)")
        screen.session.dumps[0].finish()
        await screen.shows_not("waiting for vm")


async def test_read_only_touches_nothing() -> None:
    async with opened(read_only=True) as screen:
        await screen.press("t")
        await screen.shows("read-only")
        await screen.press("c")
        assert screen.session.dumps == [] and screen.session.captures == []


async def test_the_tree_indents_at_forks_only_and_shows_whose_frames_they_are() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("MERGED STACKS")
        tree = screen.lines()[next(at for at, line in enumerate(screen.lines()) if "MERGED" in line) + 1 :]
        starts = [line[8:30].rstrip() for line in tree[:8]]
        assert starts[0].startswith("<module>") and starts[1].startswith("main") and starts[2].startswith("train")
        assert starts[3].startswith("├ __next__"), "the branch of who is named comes first"
        assert starts[4].startswith("│ fetch") and starts[5].startswith("│ __getitem__")
        assert starts[6].startswith("└ step"), "and a chain keeps its column"
        assert "■    1  │" in tree[5] and "index=77213" in tree[5]
        assert tree[0].endswith("0-3") and not tree[1].endswith("0-3"), "ranks stand where they change"
        assert "waits in all_reduce" in tree[6]


async def test_elided_frames_come_by_enter() -> None:
    frames = [Frame("leaf", "own.py", 1), *[Frame(f"inner{at}", "torch/x.py", at) for at in range(9)]]
    alike = StackClass(Ranges.of([0, 1]), 2, None, [*frames, Frame("main", "own.py", 2)])
    report = replace(fake_reports.hang_report(), classes=[alike], verdict=Verdict("moving"))
    session = FakeSession(script=[StackProgress("done", 1, 1, 2, 2, 0.2, (report,))])
    async with opened(session, size=(100, 30)) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        text = await screen.shows("▸ 9 frames of torch")
        assert "inner4" not in text
        await screen.press("j", "enter")
        await screen.shows("inner4", "inner0")


async def test_x_on_two_ranks_shows_them_side_by_side() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.press("x")
        await screen.shows("rank 2 is marked")
        await screen.press("G", "x")
        text = await screen.shows("ranks 0 and 2", "≠")
        same = next(line for line in screen.lines() if line.startswith("train  train.py:88"))
        assert same.count("train  train.py:88") == 2 and "≠" not in same
        other = next(line for line in screen.lines() if "__next__" in line)
        assert "step  trainer.py:412" in other and "≠" in other
        assert "waits in all_reduce" in text
        await screen.press("escape")
        await screen.shows("MERGED STACKS")


async def test_who_is_accused_most_surely_comes_first() -> None:
    sure, moving = (
        fake_reports.hang_report(),
        replace(fake_reports.hang_report(), job="other", verdict=Verdict("moving")),
    )
    unsure = replace(fake_reports.hang_report(), job="third", verdict=Verdict("hang", confidence="low"))
    session = FakeSession(script=[StackProgress("done", 1, 1, 4, 4, 0.2, (moving, unsure, sure))])
    async with opened(session, size=(120, 60)) as screen:
        await screen.press("t")
        session.dumps[0].finish()
        await screen.shows("MOVING")
        order = [line for line in screen.lines() if line.startswith("job ")]
        assert [line.split()[1].rstrip(",") for line in order] == ["llama-7b", "third", "other"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(size=size) as screen:
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG", "■ HUNG")
        await screen.is_golden("stacks-verdict", size)
