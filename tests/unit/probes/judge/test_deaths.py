"""How ranks ended, in words, and where they are shown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from mltop.probes.agent.frames import Frames
from mltop.probes.judge.deaths import end_of, is_own_fault
from mltop.probes.model import NodeState, RankDeath, RankSample, Sample, to_json
from mltop.tui.render.findings import happenings
from mltop.tui.report import print_snapshot


@pytest.mark.parametrize(
    ("death", "words", "fault"),
    [
        (RankDeath(4711, 6, how="signal", code=9), "rank 6 (pid 4711) was killed by SIGKILL", True),
        (RankDeath(7, 6, how="signal", code=11, dumped_core=True),
         "rank 6 (pid 7) was killed by SIGSEGV (core dumped)", True),
        (RankDeath(4711, 6, how="signal", code=33), "rank 6 (pid 4711) was killed by signal 33", True),
        (RankDeath(7, how="exit", code=0), "a rank (pid 7) exited with code 0", False),
        (RankDeath(7, 0, how="exit", code=1, error="E: x"), "rank 0 (pid 7) exited with code 1: E: x", True),
        (RankDeath(7, 0, how="exit", error="E: x"), "rank 0 (pid 7) exited: E: x", True),
        (RankDeath(7, how="oom", code=9), "a rank (pid 7) was killed by the kernel for want of memory", True),
        (RankDeath(7, 0, how="stopped", code=15), "rank 0 (pid 7) was stopped from outside (SIGTERM)", False),
        (RankDeath(7, 0, how="stopped", code=143), "rank 0 (pid 7) was stopped from outside (SIGTERM)", False),
        (RankDeath(7, 0, how="stopped"), "rank 0 (pid 7) was stopped from outside", False),
        (RankDeath(7, 0), "rank 0 (pid 7) ended, cause unknown", True),
        (RankDeath(7, 0, how="signal", code=-5), "rank 0 (pid 7) was killed by signal -5", True),
    ],
)  # fmt: skip
def test_words(death: RankDeath, words: str, fault: bool) -> None:
    assert (end_of(death), is_own_fault(death)) == (words, fault)


def sample(*deaths: RankDeath, at: float = 1000.0) -> Sample:
    return Sample("n1", at, ranks=[RankSample(20, 1, job="j")], deaths=list(deaths))


FIRST = RankDeath(21, 6, "j", 0, "signal", 11, 990.1, "proc connector", "", False)
VICTIM = RankDeath(20, 5, "j", 0, "stopped", 15, 990.2, "proc connector, launcher", "bell \x1b[31m", False)


def test_a_snapshot_lists_them_the_first_first() -> None:
    out = io.StringIO()
    print_snapshot([sample(VICTIM, FIRST)], [], [NodeState("n1", "live")], Console(file=out, width=120))
    lines = [line for line in out.getvalue().splitlines() if "rank 5" in line or "rank 6" in line]
    assert (
        "rank 6 (pid 21) was killed by SIGSEGV of j" in lines[0]
        and "rank 5 (pid 20) was stopped from outside (SIGTERM)" in lines[1]
    )
    assert "\x1b" not in out.getvalue()
    out = io.StringIO()
    print_snapshot([sample()], [], [NodeState("n1", "live")], Console(file=out, width=120))
    assert "ended" not in out.getvalue()


def test_a_fleets_snapshot_says_where() -> None:
    out = io.StringIO()
    samples = [Sample(f"n{number}", 1000.0, deaths=[FIRST] if number == 3 else []) for number in range(6)]
    nodes = [NodeState(one.node, "live") for one in samples]
    print_snapshot(samples, [], nodes, Console(file=out, width=140))
    assert "rank 6 (pid 21) was killed by SIGSEGV of j on n3" in out.getvalue()


def test_the_events_pane_lists_them() -> None:
    first, second = happenings([], [], [("n1", FIRST), ("n1", VICTIM)])
    assert (second.kind, second.subject, second.text) == ("DIED", "rank 6", "rank 6 (pid 21) was killed by SIGSEGV")
    assert (first.kind, first.style, first.at) == ("ended", "dim", 990.2)
    assert happenings([], [], [("n1", FIRST)], "n2") == []


def test_json_has_all_of_it() -> None:
    (told,) = json.loads(to_json(sample(FIRST)))["deaths"]
    assert told == {**vars(FIRST)}


def test_a_death_goes_out_at_once() -> None:
    frames = Frames("n1")
    sent = [
        "sample" in [message.kind for message in frames.of(one)]
        for one in (sample(), sample(at=1001.0), sample(FIRST, at=1002.0), sample(FIRST, at=1003.0))
    ]
    assert sent == [True, False, True, False]
