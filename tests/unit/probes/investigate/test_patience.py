"""Which nodes a command still waits for."""

from __future__ import annotations

import pytest

from mltop.probes.investigate.patience import Arrivals, Patience, waited
from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView

PATIENCE = Patience(connecting_s=4.0, lost_s=2.0, live_s=10.0)


def views(**states: str) -> list[NodeView]:
    return [NodeView(NodeState(node, state)) for node, state in states.items()]


def awaited(arrivals: Arrivals, now: float, done: tuple[str, ...] = (), **states: str) -> list[str]:
    return [view.node for view in arrivals.awaited(views(**states), done, now, PATIENCE)]


def test_who_connects_is_waited_for_some_seconds_after_the_others_came() -> None:
    arrivals = Arrivals(100.0)
    arrivals.look(views(a="live", b="connecting"), 103.0)
    assert awaited(arrivals, 106.9, ("a",), a="live", b="connecting") == ["b"]
    assert awaited(arrivals, 107.1, ("a",), a="live", b="connecting") == []


def test_each_node_that_is_reached_gives_the_others_more_time() -> None:
    arrivals = Arrivals(100.0)
    arrivals.look(views(a="live", b="connecting", c="connecting"), 103.0)
    arrivals.look(views(a="live", b="live", c="connecting"), 106.0)
    assert awaited(arrivals, 109.0, ("a", "b"), a="live", b="live", c="connecting") == ["c"]


def test_who_is_refused_is_not_waited_for() -> None:
    arrivals = Arrivals(100.0)
    arrivals.look(views(a="refused"), 100.1)
    assert awaited(arrivals, 100.2, a="refused") == []


def test_who_failed_quickly_gets_another_attempt_and_who_failed_slowly_does_not() -> None:
    arrivals = Arrivals(100.0)
    arrivals.look(views(quick="lost", slow="connecting"), 100.5)
    assert awaited(arrivals, 102.4, quick="lost", slow="connecting") == ["quick", "slow"]
    arrivals.look(views(quick="lost", slow="lost"), 108.0)
    assert awaited(arrivals, 108.5, quick="lost", slow="lost") == ["quick"]


def test_a_node_that_fails_again_and_again_keeps_nobody_waiting() -> None:
    arrivals = Arrivals(100.0)
    for tenth in range(60):
        arrivals.look(views(a="lost" if tenth % 2 else "connecting"), 100.0 + tenth / 10)
    assert arrivals.news_at == 100.1
    assert awaited(arrivals, 102.2, a="connecting") == []


def test_who_lives_is_waited_for_until_done() -> None:
    arrivals = Arrivals(100.0)
    arrivals.look(views(a="live", b="live"), 101.0)
    assert awaited(arrivals, 110.9, ("b",), a="live", b="live") == ["a"]
    assert awaited(arrivals, 111.1, ("b",), a="live", b="live") == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.1 s"), (0.04, "0.1 s"), (0.44, "0.4 s"), (0.97, "1.0 s"), (1.4, "1 s"), (31.7, "32 s")],
)
def test_a_wait_is_never_said_to_be_nothing(seconds: float, text: str) -> None:
    assert waited(seconds) == text
