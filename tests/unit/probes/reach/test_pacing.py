"""Places to connect, and pauses between tries."""

from __future__ import annotations

from dataclasses import replace

from mltop.probes.reach.pacing import Backoff, Limits, Pacer

LIMITS = Limits(connecting=4, per_gate=2, slot_s=2.0, spawns_per_turn=2)


def test_pauses_double_up_to_the_longest_and_start_anew() -> None:
    backoff = Backoff(1.0, 60.0, random_unit=lambda: 0.5)
    assert [backoff.next_s() for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    backoff.reset()
    assert backoff.next_s() == 0.5
    assert Backoff(1.0, 60.0, failures=10_000, random_unit=lambda: 0.0).next_s() == 0.0


def test_pauses_are_spread_over_the_whole_bound() -> None:
    pauses = [Backoff(1.0, 60.0, failures=20).next_s() for _ in range(200)]
    assert min(pauses) < 10 and max(pauses) > 50 and all(0 <= pause < 60 for pause in pauses)


def test_a_few_at_a_time_and_no_more_than_there_are_places() -> None:
    pacer: Pacer[str] = Pacer(LIMITS)
    for name in "abcdef":
        pacer.wait(name, "")
    assert pacer.admit(0.0) == ["a", "b"]
    assert pacer.next_s(0.0) == 0.0
    assert pacer.admit(0.1) == ["c", "d"]
    assert (pacer.admit(0.2), pacer.next_s(0.2)) == ([], 1.8)
    pacer.done("c")
    assert (pacer.next_s(0.2), pacer.admit(0.2)) == (0.0, ["e"])
    assert pacer.admit(2.0) == ["f"]
    assert pacer.next_s(2.0) is None and not pacer.is_waiting


def test_a_gate_that_is_full_does_not_hold_the_others() -> None:
    pacer: Pacer[str] = Pacer(replace(LIMITS, spawns_per_turn=10))
    for name in ("g1", "g2", "g3"):
        pacer.wait(name, "bastion")
    for name in ("a", "b"):
        pacer.wait(name, "")
    assert sorted(pacer.admit(0.0)) == ["a", "b", "g1", "g2"]
    pacer.done("a")
    assert (pacer.admit(0.5), pacer.next_s(0.5)) == ([], 1.5)
    pacer.done("g1")
    assert pacer.admit(0.5) == ["g3"]


def test_gates_take_turns() -> None:
    pacer: Pacer[str] = Pacer(replace(LIMITS, per_gate=1, spawns_per_turn=3))
    for name in ("a1", "a2", "b1", "c1"):
        pacer.wait(name, name[0])
    assert pacer.admit(0.0) == ["a1", "b1", "c1"]


def test_one_that_gave_up_its_place_may_give_it_back_again() -> None:
    pacer: Pacer[str] = Pacer(LIMITS)
    pacer.wait("a", "")
    assert pacer.admit(0.0) == ["a"]
    assert pacer.admit(5.0) == []
    pacer.done("a")
    pacer.done("never seen")
