"""Generated jobs of 4 to 512 ranks in every shape: the first failure is told rightly or not at all, no victim is named."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench.bench_explain import judged
from tests.builders.job_logs import STORIES, case

EACH = 4


@pytest.mark.parametrize("story", STORIES)
def test_no_victim_is_named(story: str) -> None:
    first = list(STORIES).index(story)
    seeds = [5_000 * len(STORIES) + first + number * len(STORIES) for number in range(EACH)]
    told = {seed: judged(case(seed)) for seed in seeds if case(seed).world <= 128}
    assert {seed: answer for seed, answer in told.items() if answer in ("VICTIM", "WRONG")} == {}
    assert Counter(told.values())["right"] > 0 or story == "network"
