"""Who is to blame when nodes cannot reach each other or a round fails: not those who wait for others."""

from __future__ import annotations

import signal

import pytest

from mltop.probes.active.endings import rank_death
from mltop.probes.judge.probes.blame import accused, causes, step, targets
from mltop.probes.model.probe import RankState

STAGE = "measure 4 MiB"


def _waits(rank: int, begun: int = 9, in_stage: int = 7) -> RankState:
    return RankState(rank, f"h0{rank // 2 + 1}", "waits", STAGE, begun, in_stage)


def _is(rank: int, kind: str, why: str = "", begun: int = 9) -> RankState:
    return RankState(rank, f"h0{rank // 2 + 1}", kind, STAGE, begun, 7, why)


KILLED = rank_death(signal.SIGKILL, "")[1]
CASES = [
    # what the ranks were doing, who is gone, the causes as (node, rank)
    ([_waits(0), _waits(1), _waits(2), _is(3, "killed", KILLED)], {}, [("h02", 3)]),
    ([_is(0, "disconnected", "peer"), _is(1, "raised", "rank 1: out of memory")], {}, [("h01", 1)]),
    (
        [_is(0, "disconnected"), _is(1, "aborted", "died: aborted (SIGABRT)"), _is(3, "killed", KILLED)],
        {},
        [("h02", 3)],
    ),
    ([_is(0, "disconnected"), _is(1, "aborted", "died: aborted (SIGABRT)")], {}, [("h01", 1)]),
    ([_waits(0), _is(1, "stopped", "stopped"), _is(3, "killed", KILLED)], {}, [("h01", 1), ("h02", 3)]),
    ([_waits(0), _waits(1, begun=8, in_stage=6), _waits(2)], {}, [("h01", 1)]),
    ([_is(0, "done"), _waits(1, begun=8), _waits(2, begun=9)], {}, [("h01", 1)]),
    ([_waits(0), _is(2, "absent", begun=0), _is(3, "absent", begun=0)], {}, [("h02", 2), ("h02", 3)]),
    ([_waits(0), _waits(1)], {"h02": "h02 is gone"}, [("h02", None)]),
    ([_waits(0), _is(1, "killed", KILLED)], {"h02": "h02 is gone"}, [("h02", None), ("h01", 1)]),
    ([_waits(0), _waits(1), _waits(2)], {}, [("", None)]),
    ([_is(0, "disconnected", "connection reset"), _is(2, "disconnected", "connection reset")], {}, [("", None)]),
    ([], {}, [("", None)]),
]


@pytest.mark.parametrize(("states", "gone", "expected"), CASES)
def test_victims_are_not_named(
    states: list[RankState], gone: dict[str, str], expected: list[tuple[str, int | None]]
) -> None:
    found = causes(states, gone)
    assert [(cause.node, cause.rank) for cause in found] == expected
    assert all(cause.why and cause.stage for cause in found)


def test_a_rank_that_is_late_is_told_by_what_the_others_wait_in() -> None:
    states = [_waits(0), _waits(1, begun=8, in_stage=6), _waits(2)]
    assert causes(states, {})[0].why == (
        "did not come to the 7th collective of measure 4 MiB, in which 2 others wait for it; "
        "it is in the 6th collective of measure 4 MiB"
    )


def test_without_a_late_rank_it_is_the_network() -> None:
    cause = causes([_waits(0), _waits(2)], {})[0]
    assert cause.why == (
        "no rank is behind: 2 ranks of h[01-02] are in the 7th collective of measure 4 MiB and nothing arrives any more"
    )
    assert "network" in cause.fix


def test_a_rank_that_died_before_it_said_a_stage_has_the_stage_of_the_others() -> None:
    dead = RankState(1, "h01", "killed", why=KILLED)
    assert causes([RankState(0, "h01", "waits", "init", 1), dead], {})[0].stage == "init"
    assert causes([dead], {})[0].stage == "init"


@pytest.mark.parametrize(
    ("status", "said", "kind", "sentence"),
    [
        (signal.SIGKILL, "", "killed", "died: killed (SIGKILL)"),
        (signal.SIGKILL, "whatever it printed before", "killed", "died: killed (SIGKILL)"),
        (signal.SIGSEGV, "", "died", "died: ended (SIGSEGV)"),
        (signal.SIGABRT, "", "aborted", "died: aborted (SIGABRT)"),
        (
            signal.SIGABRT,
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  op.size mismatch\n",
            "aborted",
            "died: aborted (SIGABRT): op.size mismatch",
        ),
        (
            signal.SIGABRT,
            "terminate called\n  what():  Connection closed by peer [10.0.0.3]:1",
            "disconnected",
            "died: aborted (SIGABRT): Connection closed by peer [10.0.0.3]:1",
        ),
        (3 << 8, "ValueError: bad", "died", "died: ended with exit code 3: ValueError: bad"),
        (0, "", "died", "died: ended with exit code 0"),
    ],
)
def test_how_it_died(status: int, said: str, kind: str, sentence: str) -> None:
    assert rank_death(status, said) == (kind, sentence)


@pytest.mark.parametrize(
    ("in_stage", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (112, "112th")]
)
def test_ordinal_numbers(in_stage: int, words: str) -> None:
    assert step(_waits(0, in_stage=in_stage)) == f"the {words} collective of {STAGE}"


@pytest.mark.parametrize(
    ("cannot", "expected"),
    [
        ({}, []),
        ({"a": {"b": "timed out"}}, ["b"]),  # of one failed connection, who could not be reached
        ({"a": {"b": "x", "c": "x", "d": "x"}}, ["a"]),  # who reaches nobody
        ({"a": {"c": "x"}, "b": {"c": "x"}, "d": {"c": "x"}}, ["c"]),
        ({"a": {"c": "x"}, "b": {"c": "x", "d": "x"}, "e": {"d": "x"}}, ["c", "d"]),
        ({"a": {"b": "x"}, "b": {"a": "x"}}, ["a"]),
    ],
)
def test_the_fewest_nodes_that_explain_it_are_accused(cannot: dict[str, dict[str, str]], expected: list[str]) -> None:
    assert list(accused(cannot, {})) == expected


def test_the_sentence_names_who_cannot_and_where() -> None:
    found = accused({"h01": {"h03": "timed out"}, "h02": {"h03": "timed out"}}, {"h03": "10.0.0.3"})
    assert found == {"h03": "h[01-02] cannot connect to h03 (10.0.0.3): timed out"}
    blind = accused({"h03": {"h01": "no route to host", "h02": "no route to host"}}, {})
    assert blind == {"h03": "h03 cannot connect to h[01-02]: no route to host"}


def test_in_a_big_job_each_tries_few_and_all_are_tried() -> None:
    small = [str(number) for number in range(32)]
    assert all(sorted(targets(small, own)) == sorted(set(small) - {own}) for own in small)
    big = [str(number) for number in range(1000)]
    tried = {own: targets(big, own) for own in big}
    assert all(len(found) == 10 == len(set(found)) and own not in found for own, found in tried.items())
    assert set().union(*tried.values()) == set(big)
