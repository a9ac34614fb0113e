"""Eight times as many ranks cost not much more than eight times: something quadratic would cost 64 times as much.

The milliseconds are the benchmark's to print.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from mltop.probes.judge.hang.classes import merge
from mltop.probes.judge.hang.verdict import report
from tests.bench import bench_merge

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("_old_objects_cost_nothing")]


@pytest.fixture
def _old_objects_cost_nothing() -> Iterator[None]:
    """What the tests before this one left is not looked through by the collector while we measure."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_judging() -> None:
    few, many = (bench_merge.evidence(ranks, rounds=1, kinds=4) for ranks in (512, 4096))
    few_ms, many_ms = (bench_merge.median_ms(lambda job=job: report(job), repeats=5) for job in (few, many))
    assert many_ms < 24 * few_ms


@pytest.mark.parametrize(("kinds_of_few", "kinds_of_many"), [(3, 3), (512, 4096)])
def test_merging_digests(kinds_of_few: int, kinds_of_many: int) -> None:
    few, many = bench_merge.digests(512, kinds_of_few), bench_merge.digests(4096, kinds_of_many)
    few_ms, many_ms = (bench_merge.median_ms(lambda made=made: merge(made), repeats=9) for made in (few, many))
    assert many_ms < 24 * few_ms
