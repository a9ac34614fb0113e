"""Generated jobs of 4 to 512 ranks in every shape: the first failure is told rightly or not at all, no victim is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from tests.bench.bench_explain import judged
from tests.builders.job_logs import LAUNCHED, STORIES, case, launched_case, write

EACH = 2


@pytest.mark.parametrize("story", STORIES)
def test_no_victim_is_named(story: str) -> None:
    first = list(STORIES).index(story)
    seeds = [5_000 * len(STORIES) + first + number * len(STORIES) for number in range(EACH)]
    told = {seed: judged(case(seed)) for seed in seeds if case(seed).world <= 128}
    assert {seed: answer for seed, answer in told.items() if answer in ("VICTIM", "WRONG")} == {}
    assert Counter(told.values())["right"] > 0 or story == "network"


@pytest.mark.parametrize("story", LAUNCHED)
def test_no_victim_is_named_where_other_launchers_and_servers_write(story: str) -> None:
    first = list(LAUNCHED).index(story)
    seeds = [first + number * len(LAUNCHED) for number in range(3 * EACH)]
    told = {seed: judged(launched_case(seed)) for seed in seeds}
    assert {seed: answer for seed, answer in told.items() if answer in ("VICTIM", "WRONG")} == {}
    assert Counter(told.values())["right"] >= EACH or story == "vllm"  # whose workers tell no rank


def test_monitors_on_nodes_whose_clocks_nothing_compares_accuse_nobody(tmp_path: Path) -> None:
    """NVRx's monitors of ranks that wait complain, too: on a node whose clock is behind, apparently first."""
    truth = write(launched_case(111), tmp_path)
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert truth.ranks and job.incident is not None and not job.is_told
    assert job.incident.culprits == []


def test_of_monitors_that_complain_at_the_same_time_none_was_first() -> None:
    assert judged(launched_case(165)) == "cannot tell"


def test_each_line_of_vllm_has_a_level_before_it(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "/job/model.py", line 7, in forward', "ValueError: no"]
    prefix = "(Worker_TP3 pid=812) ERROR 11-03 10:00:05 [multiproc_executor.py:671] "
    (tmp_path / "server.log").write_text("".join(f"{prefix}{line}\n" for line in lines))
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    assert job.incident is not None
    assert "ValueError: no, in forward" in job.incident.headline


@pytest.mark.parametrize("seed", [43, 127, 265])
def test_lightnings_number_of_a_child_is_one_within_its_node(seed: int) -> None:
    assert judged(launched_case(seed)) in ("right", "cannot tell")


@pytest.mark.parametrize(("world", "culprits"), [(4, [2]), (16, [])])
def test_lightnings_number_is_a_rank_where_there_is_no_second_node(
    tmp_path: Path, world: int, culprits: list[int]
) -> None:
    said = "[rank: 2] Child process with PID 12345 terminated with code -9. Forcefully terminating all other processes"
    steps = "".join(f"[rank{rank}]: step {step}\n" for step in range(3) for rank in range(world) if rank != 2)
    (tmp_path / "console.log").write_text(f"{steps}{said}\n")
    (job,) = explain([str(tmp_path)], lambda _: None).jobs
    found = job.incident.culprits if job.incident is not None else []
    assert [culprit.rank for culprit in found] == culprits
