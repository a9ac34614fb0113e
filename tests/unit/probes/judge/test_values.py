"""Sets that are merged."""

from __future__ import annotations

from mltop.probes.judge.values import Joined


def test_what_is_joined_link_by_link_is_one_set() -> None:
    joined: Joined[str] = Joined()
    for members in ("ac", "ga", "bg", "c", "", "xy"):
        joined.join(members)
    assert {joined.top(member) for member in "abcg"} == {joined.top("a")}
    assert joined.top("x") == joined.top("y") != joined.top("a")
