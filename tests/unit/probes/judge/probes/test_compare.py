"""Slow against peers and against its own past; how often that is wrong is simulated."""

from __future__ import annotations

import random

import pytest

from mltop.probes.judge.nodes import folded, natural
from mltop.probes.judge.probes.compare import against_past, slower_than_peers
from mltop.probes.model.probe import PastResult

VERSIONS = {"torch": "2.9.0", "driver": "580.65"}


def slow(values: list[float]) -> list[int]:
    return [place for place, found in slower_than_peers(dict(enumerate(values))).items() if found.slow]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100.0, 100.5, 99.5, 100.2, 99.9, 100.1, 100.3, 79.0], [7]),
        ([100.0, 100.5, 99.5, 100.2, 99.9, 100.1, 80.0, 79.0], [6, 7]),
        ([100.0, 100.1, 99.9, 100.0, 100.1, 99.9, 100.0, 96.0], []),  # unusual, but within 5 %
        ([100.0, 90.0, 110.0, 85.0, 115.0, 95.0, 105.0, 84.0], []),  # far below, but not unusual among these
        ([100.0, 100.0, 100.0, 100.0, 100.0, 90.0], [5]),  # no spread at all
        ([100.0, 100.0, 100.0, 130.0], []),  # faster is not slow
        ([100.0, 101.0, 99.0, 70.0], [3]),
    ],
)
def test_slow_is_unusual_and_clearly_below(values: list[float], expected: list[int]) -> None:
    assert slow(values) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_are_not_compared(count: int) -> None:
    found = slower_than_peers({place: 100.0 - 40 * place for place in range(count)})
    assert all(one.slow is None and f"{count} alike" in one.why for one in found.values())


def test_no_values_no_comparison() -> None:
    assert slower_than_peers({}) == {}


def test_how_much_slower() -> None:
    found = slower_than_peers({0: 100.0, 1: 100.0, 2: 100.0, 3: 79.0})[3]
    assert (found.usual, found.count, found.slow) == (100.0, 4, True)
    assert found.share == pytest.approx(0.79)
    assert found.slower == pytest.approx(0.21)


@pytest.mark.parametrize(
    ("deviation", "most_false", "least_found"),
    [(0.005, 0.0, 0.97), (0.01, 0.002, 0.85), (0.02, 0.035, 0.30)],
)
def test_rates_on_nodes_of_eight(deviation: float, most_false: float, least_found: float) -> None:
    """Nodes on which somebody healthy is accused; GPUs 7 % slower that are found."""
    dice = random.Random(f"peers {deviation}")
    nodes = 2000
    false = sum(bool(slow([dice.gauss(1, deviation) for _ in range(8)])) for _ in range(nodes))
    found = 0
    for _ in range(nodes):
        values = [dice.gauss(1, deviation) for _ in range(8)]
        values[3] *= 0.93
        found += 3 in slow(values)
    assert false / nodes <= most_false
    assert found / nodes >= least_found


def past(
    *values: float, uuid: str = "GPU-1", key: str = "matmul bf16", versions: dict[str, str] = VERSIONS
) -> list[PastResult]:
    return [PastResult(uuid, key, value, at, dict(versions)) for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("earlier", "value", "expected"),
    [
        (past(100.0, 100.0), 96.0, True),
        (past(100.0, 100.0), 97.5, False),
        (past(100.0), 50.0, None),
        ([], 50.0, None),
        (past(100.0, 100.0, uuid="GPU-2"), 50.0, None),
        (past(100.0, 100.0, key="matmul fp8"), 50.0, None),
        (past(100.0, 100.0, versions={"torch": "2.8.0", "driver": "580.65"}), 50.0, None),
        (past(100.0, 101.0, 99.0, 100.0, 100.5), 96.0, True),
        (past(100.0, 80.0, 120.0, 70.0, 130.0), 90.0, False),  # its results lie far apart by themselves
        # The last ten count: it has been slower for a long time.
        (past(*[120.0] * 10, *[100.0] * 10), 99.0, False),
    ],
)
def test_against_its_own_past(earlier: list[PastResult], value: float, expected: bool | None) -> None:
    found = against_past("GPU-1", "matmul bf16", value, VERSIONS, earlier)
    assert found.slow is expected
    assert bool(found.why) == (expected is None)


def test_the_reason_for_no_history_tells_of_other_versions() -> None:
    other = past(100.0, 100.0, 100.0, versions={"torch": "2.8.0"})
    assert against_past("GPU-1", "matmul bf16", 99.0, VERSIONS, other).why == "earlier results only with other versions"
    assert against_past("GPU-1", "matmul bf16", 99.0, VERSIONS, []).why == "no earlier result"


def test_the_order_of_the_past_is_that_of_time() -> None:
    mixed = [PastResult("GPU-1", "k", 100.0, at, {}) for at in range(10)]
    mixed.insert(0, PastResult("GPU-1", "k", 1.0, 99.0, {}))
    found = against_past("GPU-1", "k", 100.0, {}, mixed)
    assert (found.count, found.usual) == (10, 100.0)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["h01", "h02", "h03", "h05"], "h[01-03,05]"),
        (["h9", "h10", "h11"], "h[9-11]"),
        (["h09", "h10"], "h[09-10]"),
        (["h1", "h01"], "h[1,01]"),
        (["login", "h2", "h1"], "h[1-2],login"),
        (["a1-ib", "a2-ib", "b7"], "a[1-2]-ib,b7"),
        (["gpu2-h07.lan", "gpu2-h08.lan"], "gpu2-h[07-08].lan"),
        (["10.0.0.7", "10.0.0.8"], "10.0.0.[7-8]"),
        (["h3", "h3"], "h3"),
        ([], ""),
    ],
)
def test_names_of_nodes_are_folded(names: list[str], text: str) -> None:
    assert sorted(folded(names).split(","), key=natural) == sorted(text.split(","), key=natural)


def test_names_that_do_not_fold_are_counted() -> None:
    names = [f"node{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    assert folded(names, 20) == "nodea,nodeb,nodec and 23 more"
