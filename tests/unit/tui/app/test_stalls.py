"""When a job that stands still is dumped, captured, or asked about: once for each stall."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.model import JobKey
from mltop.probes.model.incident import JobMotion
from mltop.probes.model.vocabulary import MotionPhase
from mltop.tui.app.stalls import (
    AutoStacks,
    CaptureOnHang,
    NewStalls,
    StallAnswer,
    names_of,
    question_line,
)
from mltop.tui.render.cells import line_width, plain
from tests.spoiled import NASTY


def job(phase: MotionPhase, name: str = "train-70b", uid: int = 7) -> JobMotion:
    return JobMotion(name, uid, phase=phase, nodes=["n1"])


def phases(*seen: MotionPhase) -> list[int]:
    """How many new stalls each look at a job in these phases tells."""
    stalls = NewStalls()
    return [len(stalls.see([job(phase)])) for phase in seen]


def test_a_stall_is_told_once() -> None:
    assert phases("moving", "quiet", "stalled", "stalled", "quiet", "stalled", "unknown", "stalled") == [
        *(0, 0, 1, 0),
        *(0, 0, 0, 0),
    ]


def test_another_one_is_told_again() -> None:
    assert phases("stalled", "moving", "stalled") == [1, 0, 1]
    assert phases("stalled", "starting", "quiet", "stalled") == [1, 0, 0, 1]


def test_a_job_that_is_gone_and_comes_back() -> None:
    stalls = NewStalls()
    assert [len(stalls.see(motions)) for motions in ([job("stalled")], [], [job("stalled")])] == [1, 0, 1]


def test_jobs_of_one_name_of_two_users_are_two() -> None:
    assert len(NewStalls().see([job("stalled", uid=1), job("stalled", uid=2)])) == 2


def since(at: float, phase: MotionPhase = "stalled", place: str = "") -> JobMotion:
    return replace(job(phase), since=at, place=place)


def test_stacks_that_are_there_are_not_asked_for() -> None:
    stacks = AutoStacks()
    stacks.see([since(100.0)])
    stacks.dumped({JobKey("another", 7)}, (), 110.0)
    stacks.dumped({JobKey("train-70b", 7)}, (), 99.0)  # it still moved
    assert len(stacks.asked) == 1
    stacks.dumped({JobKey("train-70b", 7)}, (), 105.0)
    assert stacks.asked == () and stacks.see([since(100.0)]) == [] and stacks.asked == ()
    stacks.see([since(120.0, "moving")])
    stacks.see([since(130.0)])
    assert len(stacks.asked) == 1, "another stall"


def test_stacks_that_came_before_it_was_known_to_stand() -> None:
    for always in (False, True):
        stacks = AutoStacks(always)
        stacks.see([since(100.0, "moving")])
        stacks.dumped({JobKey("train-70b", 7)}, (), 105.0)
        assert stacks.see([since(100.0, "quiet")]) == [] == stacks.see([since(100.0)]) and stacks.asked == ()


def test_a_dump_of_an_earlier_stall_drops_none_that_is_due() -> None:
    stacks = AutoStacks(always=True)
    stacks.see([since(100.0)])
    stacks.dumped({JobKey("train-70b", 7)}, (), 105.0)
    stacks.see([since(120.0, "moving")])
    assert stacks.see([since(130.0)], busy=True) == []
    stacks.dumped({JobKey("another", 7)}, (), 131.0)
    assert len(stacks.see([since(130.0)])) == 1


def test_stacks_of_the_same_name_on_another_node_are_not_its() -> None:
    stacks = AutoStacks()
    stacks.see([since(100.0, place="n1"), since(100.0, place="n2")])
    stacks.dumped({JobKey("train-70b", 7)}, ("n2",), 105.0)
    assert [motion.place for motion in stacks.asked] == ["n1"]


def test_stacks_are_asked_for_until_always() -> None:
    stacks = AutoStacks()
    assert stacks.see([job("stalled")]) == [] and names_of(stacks.asked) == "train-70b"
    assert [each.job for each in stacks.answer("once")] == ["train-70b"] and stacks.asked == ()
    stacks.see([job("moving")])
    stacks.see([job("stalled")])
    assert stacks.answer("no") == [] and stacks.see([job("stalled")]) == [] and stacks.asked == ()
    stacks.see([job("moving")])
    stacks.see([job("stalled")])
    assert len(stacks.answer("always")) == 1 and stacks.always
    assert stacks.see([job("stalled")]) == []
    stacks.see([job("moving")])
    assert len(stacks.see([job("stalled")])) == 1 and stacks.asked == ()


def test_stacks_are_taken_as_soon_as_a_job_falls_still_and_once() -> None:
    stacks = AutoStacks(always=True)
    assert [len(stacks.see([job(phase)])) for phase in ("moving", "quiet", "stalled", "quiet")] == [0, 1, 0, 0]
    asking = AutoStacks()
    asking.see([job("quiet")])
    assert names_of(asking.asked) == "train-70b"


def test_what_falls_still_during_a_dump_is_dumped_after_it() -> None:
    stacks = AutoStacks(always=True)
    assert stacks.see([job("quiet"), job("quiet", "other")], busy=True) == []
    assert stacks.see([job("quiet"), job("moving", "other")], busy=True) == []
    assert [each.job for each in stacks.see([job("stalled"), job("moving", "other")])] == ["train-70b"], (
        "it still stands"
    )
    assert stacks.see([job("stalled")]) == []


def test_a_job_that_pauses_is_told_only_when_it_is_stalled_from_then_on() -> None:
    stacks = AutoStacks(always=True)
    seen: list[MotionPhase] = ["quiet", "moving", "quiet", "moving", "quiet", "stalled", "moving", "quiet", "stalled"]
    assert [len(stacks.see([job(phase)])) for phase in seen] == [1, 0, 0, 0, 0, 1, 0, 0, 1]
    asking = AutoStacks()
    asking.see([job("quiet")])
    asking.answer("no")
    for phase in seen[1:5]:
        asking.see([job(phase)])
        assert asking.asked == ()
    asking.see([job("stalled")])
    assert names_of(asking.asked) == "train-70b"


@pytest.mark.parametrize("answer", ["once", "always"])
def test_an_answer_during_a_dump_is_done_after_it(answer: StallAnswer) -> None:
    stacks = AutoStacks()
    stacks.see([job("quiet")], busy=True)
    assert stacks.answer(answer, busy=True) == []
    assert stacks.see([job("stalled")], busy=True) == []
    assert [each.job for each in stacks.see([job("stalled")])] == ["train-70b"]
    assert stacks.see([job("stalled")]) == []


def test_the_question_is_over_when_the_job_goes_on_or_is_gone() -> None:
    for later in ([job("moving")], []):
        stacks = AutoStacks()
        stacks.see([job("stalled")])
        stacks.see(later)
        assert stacks.asked == () and stacks.answer("once") == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stall_again(captures: CaptureOnHang) -> int:
    captures.see([job("moving")])
    return len(captures.see([job("stalled")]))


def test_captures_are_few_within_an_hour() -> None:
    clock = Clock()
    captures = CaptureOnHang(Path("/c"), most_per_hour=2, clock=clock)
    assert [stall_again(captures), stall_again(captures), stall_again(captures)] == [1, 1, 0]
    assert captures.complaint == "no capture of train-70b: 2 captures within an hour are the most"
    assert stall_again(captures) == 0 and captures.complaint == ""
    clock.now += 3600
    assert stall_again(captures) == 1


def test_one_that_has_to_wait_is_not_forgotten() -> None:
    captures = CaptureOnHang(Path("/c"))
    assert captures.see([job("stalled")], busy=True) == []
    assert len(captures.see([job("stalled")])) == 1
    assert captures.see([job("stalled")]) == []


def test_jobs_at_the_same_time_are_in_one_capture() -> None:
    captures = CaptureOnHang(Path("/c"), most_per_hour=1)
    jobs = captures.see([job("stalled"), job("stalled", "eval"), job("moving", "other")])
    assert names_of(jobs) == "train-70b and 1 more job"


def test_the_end_is_said_and_the_same_failure_once() -> None:
    captures = CaptureOnHang(Path("/c"))
    notice = captures.ended(CaptureResult(Path("/c/mltop-capture-1")))
    assert notice is not None and (notice.text, notice.path) == ("capture saved: ", "/c/mltop-capture-1")
    failed = CaptureResult(Path("/c"), error="cannot write /c: No space left on device")
    first = captures.ended(failed)
    assert first is not None and "No space left" in first.text
    assert captures.ended(failed) is None
    captures.ended(CaptureResult(Path("/c/mltop-capture-2")))
    assert captures.ended(failed) is not None


@pytest.mark.parametrize("name", ["", "x"])
def test_names(name: str) -> None:
    assert names_of([job("stalled", name)]) == (name or "a job without a name")


@pytest.mark.parametrize("width", [72, 80, 120])
@pytest.mark.parametrize("name", ["x" * 16_000, "日" * 300, f"{NASTY}\u3000" * 300, "train-70b"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_job_s_name_hides_neither_the_question_nor_its_keys(name: str, width: int, count: int) -> None:
    line = question_line([job("stalled", name)] * count, width)
    assert line_width(line) <= width
    verb = "is stuck" if count == 1 else "and 2 more jobs are stuck"
    assert plain(line).endswith(f" {verb}: dump stacks?  y once  a always  n no")


def test_jobs_of_one_name_at_loopback_addresses_are_told_each() -> None:
    watch = NewStalls()
    first, second = (JobMotion("127.0.0.1:29500", 7, phase="stalled", nodes=[n], place=n) for n in ("n1", "n2"))
    assert watch.see([first]) == [first]
    assert watch.see([first, second]) == [second]
