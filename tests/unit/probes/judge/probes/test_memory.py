"""Who is slow at copying within its memory, and why; healthy inputs next to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mltop.probes.judge.probes.compare import past_of
from mltop.probes.judge.probes.transfers import JUDGES
from mltop.probes.model.probe import MemoryResult, PastResult, Phase, ProbeReport, ProbeVerdict
from tests.builders.copies_results import OTHER_VERSIONS, Machines, earlier, uuid_of


def judge_memory(results: Sequence[MemoryResult], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    return JUDGES["memory"].judge(results, past)


def test_eight_healthy_gpus_accuse_nobody() -> None:
    verdict = judge_memory([Machines().memory(gpu) for gpu in range(8)])
    assert verdict.suspects == []
    assert verdict.text.startswith("8 GPUs alike at 29") and "GB/s within their memory" in verdict.text


@pytest.mark.parametrize("seed", range(40))
def test_healthy_gpus_of_many_nodes_accuse_nobody(seed: int) -> None:
    machines = Machines(seed, jitter=0.01)
    results = [machines.memory(gpu, node=f"n{node}") for node in range(4) for gpu in range(8)]
    assert judge_memory(results).suspects == []


def test_one_slow_gpu_is_named_with_both_figures() -> None:
    machines = Machines()
    results = [machines.memory(gpu, 2.3e12 if gpu == 5 else 2.93e12) for gpu in range(8)]
    verdict = judge_memory(results)
    assert [(one.node, one.gpu, one.uuid) for one in verdict.suspects] == [("n1", 5, uuid_of("n1", 5))]
    assert "21 % slower than its peers" in verdict.suspects[0].reason or "22 %" in verdict.suspects[0].reason
    assert "dcgmi" in verdict.suspects[0].action
    assert "7 of 8 GPUs alike" in verdict.text and "GPU 5 on n1 is" in verdict.text


def test_peers_are_those_of_all_nodes() -> None:
    machines = Machines()
    results = [machines.memory(0, 2.3e12 if node == 3 else 2.93e12, f"n{node}") for node in range(6)]
    assert [one.node for one in judge_memory(results).suspects] == ["n3"]


def test_three_gpus_are_too_few_to_call_one_slow() -> None:
    results = [Machines().memory(gpu, rate) for gpu, rate in enumerate((2.93e12, 2.93e12, 2.3e12))]
    verdict = judge_memory(results)
    assert verdict.suspects == []
    assert "3 GPUs at 2" in verdict.text  # the range is told


@pytest.mark.parametrize(
    ("field", "value"), [("name", "NVIDIA A100-SXM4-80GB"), ("size_bytes", 1 << 28), ("kind", "mig")]
)
def test_what_is_not_alike_is_not_compared(field: str, value: object) -> None:
    machines = Machines()
    slow = replace(machines.memory(7, 1.7e12), **{field: value, "pci_device": ""})
    assert judge_memory([*(machines.memory(gpu) for gpu in range(7)), slow]).suspects == []


def test_its_own_history_comes_first() -> None:
    result = Machines().memory(0, 2.75e12)
    key = result.key("copy")
    verdict = judge_memory([result], earlier(result.uuid, key, 2.93e12))
    assert [one.gpu for one in verdict.suspects] == [0]
    assert "its own last 5 results" in verdict.suspects[0].reason
    as_before = judge_memory([result], earlier(result.uuid, key, 2.76e12))
    assert as_before.suspects == [] and "as in its last 5 results" in as_before.text
    with_another_driver = judge_memory([result], earlier(result.uuid, key, 2.93e12, versions=OTHER_VERSIONS))
    assert with_another_driver.suspects == []
    of_another_gpu = judge_memory([result], earlier("GPU-other", key, 2.93e12))
    assert of_another_gpu.suspects == []


def test_what_a_report_keeps_is_what_the_next_run_is_compared_with() -> None:
    good, bad = Machines().memory(0, 2.93e12), Machines().memory(0, 2.5e12)
    past = [one for at in range(3) for one in past_of(ProbeReport("memory", float(at), results=[good]))]
    assert [one.gpu for one in judge_memory([bad], past).suspects] == [0]
    assert judge_memory([good], past).suspects == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("power_brake", "PSU brake 70 % of the time"),
        ("hw_thermal", "heat"),
        ("sw_thermal", "thermal slowdown"),
        ("hw_slowdown", "HW slowdown"),
    ],
)
def test_what_held_a_slow_gpu_is_named(reason: str, words: str) -> None:
    machines = Machines()
    held = machines.memory(5, 1.3e12, phases=[Phase("copy", 1.0, throttle_share={reason: 0.7})])
    verdict = judge_memory([*(machines.memory(gpu) for gpu in range(5)), held])
    assert words in verdict.suspects[0].reason and words in verdict.text


def test_throttling_of_a_gpu_that_is_not_slow_is_no_accusation() -> None:
    machines = Machines()
    results = [
        machines.memory(gpu, phases=[Phase("copy", 1.0, throttle_share={"hw_thermal": 0.3})]) for gpu in range(8)
    ]
    assert judge_memory(results).suspects == []


def test_other_versions_are_named() -> None:
    machines = Machines()
    old = machines.memory(5, 2.3e12, versions=OTHER_VERSIONS)
    verdict = judge_memory([*(machines.memory(gpu) for gpu in range(5)), old])
    assert "driver 550.54.15 (others 570.86.15)" in verdict.suspects[0].reason


def test_damaged_content_is_worse_than_being_slow() -> None:
    machines = Machines()
    results = [machines.memory(gpu, intact=gpu != 2) for gpu in range(8)]
    verdict = judge_memory(results)
    assert [one.gpu for one in verdict.suspects] == [2]
    assert verdict.text.startswith("GPU 2 on n1 damages")
    unknown = judge_memory([machines.memory(gpu, intact=None) for gpu in range(8)])
    assert unknown.suspects == []


def test_what_is_damaged_and_slow_is_said_to_be_both() -> None:
    machines = Machines()
    results = [machines.memory(gpu, 2.3e12 if gpu == 2 else 2.93e12, intact=gpu != 2) for gpu in range(8)]
    verdict = judge_memory(results)
    assert [one.gpu for one in verdict.suspects] == [2, 2]
    assert "did not arrive" in verdict.suspects[0].reason and "slower than its peers" in verdict.suspects[1].reason


def test_the_slowest_is_accused_first_and_what_has_no_rate_is_not_counted() -> None:
    machines = Machines()
    rates = {1: 2.6e12, 5: 1.4e12}
    results = [machines.memory(gpu, rates.get(gpu, 2.93e12)) for gpu in range(8)]
    results.append(replace(machines.memory(8), copy_bytes_per_s=None))
    verdict = judge_memory(results)
    assert [one.gpu for one in verdict.suspects] == [5, 1]
    assert verdict.text.startswith("6 of 8 GPUs alike")
    alone = judge_memory([replace(results[0], copy_bytes_per_s=None), machines.memory(1)])
    assert alone.text.startswith("GPU 1 on n1: 29") and alone.text.endswith("nothing to compare it with")


def test_the_table_informs_and_never_accuses() -> None:
    low = judge_memory([Machines().memory(0, 1.5e12)])
    assert low.suspects == []
    assert any("52 % of the 2900 GB/s" in line and "can make such a difference" in line for line in low.details)
    assert any("below the 1910 GB/s that DCGM" in line for line in low.details)
    good = judge_memory([Machines().memory(0, 2.93e12)])
    assert not any("DCGM" in line or "difference" in line for line in good.details)


@pytest.mark.parametrize(
    "fields", [{"kind": "mig"}, {"name": "NVIDIA L4", "pci_device": ""}, {"kind": "cpu", "gpu": None}]
)
def test_no_figure_is_claimed_where_none_is_known(fields: dict[str, object]) -> None:
    assert judge_memory([replace(Machines().memory(0), **fields)]).details == []  # type: ignore[arg-type]


def test_processors_are_labelled_with_what_copied() -> None:
    cpu = MemoryResult(
        "c1",
        uuid="cpu",
        kind="cpu",
        name="Zen",
        size_bytes=1 << 28,
        copy_bytes_per_s=18e9,
        code_path="torch, 2 threads",
    )
    verdict = judge_memory([cpu])
    assert "CPUs of c1: 18.0 GB/s within their memory (torch, 2 threads)" in verdict.text
    assert verdict.suspects == []


def test_nothing_measured() -> None:
    assert judge_memory([]).text == "nothing was measured"


def test_four_thousand_gpus_with_forty_slow_ones() -> None:
    machines = Machines()
    results = [
        machines.memory(gpu, 2.2e12 if gpu == 0 and node % 12 == 0 else 2.93e12, f"n{node:03}")
        for node in range(512)
        for gpu in range(8)
    ]
    verdict = judge_memory(results)
    assert len(verdict.suspects) == 43
    assert len(verdict.text) < 800 and "39 more are slow" in verdict.text
