"""Which GPU multiplies slowly, why, and in which words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.judge.probes.matmul import MatmulJudge, with_efficiency
from mltop.probes.model.probe import MatmulResult, PastResult, Phase
from tests.builders.matmul_results import BURST, CLOCK, RATE, SPREAD, VERSIONS, cpus, gpu, node, phase

judge_matmul, figures = MatmulJudge().judge, MatmulJudge().figures
KEY = "matmul bf16 sustained 8192x8192x8192"


def text(results: list[MatmulResult], past: list[PastResult] | None = None) -> str:
    return judge_matmul(results, past or []).text


def accused(results: list[MatmulResult], past: list[PastResult] | None = None) -> list[int | None]:
    return [suspect.gpu for suspect in judge_matmul(results, past or []).suspects]


def details(results: list[MatmulResult]) -> str:
    return "\n".join(judge_matmul(results).details)


def earlier(factor: float, times: int = 3, versions: dict[str, str] = VERSIONS, count: int = 8) -> list[PastResult]:
    """Results of node n03's GPUs that were by ``factor`` faster than now."""
    return [
        PastResult(f"GPU-n03-{index}", KEY, RATE * SPREAD[index] * factor, at, dict(versions))
        for index in range(count)
        for at in range(times)
    ]


def test_efficiency_is_work_per_clock_and_multiprocessor() -> None:
    found = with_efficiency(gpu(0))
    assert found.sustained_efficiency == pytest.approx(RATE / (132 * 4096 * CLOCK * 1e6 / 1e12))
    assert found.burst_efficiency == pytest.approx(BURST / (132 * 4096 * CLOCK * 1e6 / 1e12))
    slice_ = with_efficiency(gpu(0, kind="mig", multiprocessors=16, sustained_tflops=RATE * 16 / 132))
    assert slice_.sustained_efficiency == pytest.approx(found.sustained_efficiency or 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "NVIDIA Unknown 9000", "pci_device": ""},
        {"phases": []},
        {"phases": [phase("burst", sm_clock_mhz=None), phase("sustained", sm_clock_mhz=None)]},
        {"burst_tflops": None, "sustained_tflops": None},
        {"kind": "mig", "multiprocessors": None},
        {"kind": "cpu"},
    ],
)
def test_efficiency_is_unknown_without_model_clock_or_rate(changes: dict[str, Any]) -> None:
    found = with_efficiency(gpu(0, **changes))
    assert (found.burst_efficiency, found.sustained_efficiency) == (None, None)


def test_all_alike() -> None:
    verdict = judge_matmul(node())
    assert verdict.text == "8 GPUs alike at 712 TFLOPS bf16 sustained; no error in 12.0 PFLOP"
    assert not verdict.suspects
    assert "the power limit (700 W) holds 8 of 8 at 1410 MHz: normal at full load" in verdict.details
    assert any("98–99 % of mamf-finder's 794 TFLOPS on H100 SXM" in line for line in verdict.details)
    assert "healthy" not in " ".join([verdict.text, *verdict.details])


_HOT = {"hw_thermal": 0.95, "sw_power_cap": 0.1}
_NONE = {"sw_power_cap": 0.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"share": 0.79, "sm_clock_mhz": 1115, "power_w": 540, "temperature_c": 87, "throttle_share": _HOT},
            "GPU 5 on n03 is 21 % slower: held at 1115 MHz by heat (87 °C, others 61–65 °C)",
        ),
        (
            {"share": 0.9, "sm_clock_mhz": 1270, "temperature_c": 84, "throttle_share": {"sw_thermal": 0.4}},
            "10 % slower: held at 1270 MHz by thermal slowdown 40 % of the time (84 °C, others 61–65 °C)",
        ),
        (
            {"share": 0.5, "sm_clock_mhz": 700, "power_w": 300, "throttle_share": {"power_brake": 1.0}},
            "50 % slower: held at 700 MHz by the PSU brake, drawing 300 W of its 700 W limit",
        ),
        (
            {"share": 0.5, "sm_clock_mhz": 700, "throttle_share": {"hw_slowdown": 1.0}},
            "held at 700 MHz by HW slowdown, cause unstated (66 °C, others 61–65 °C)",
        ),
        (
            {"share": 0.6, "sm_clock_mhz": 850, "power_w": 240, "throttle_share": {"sw_power_cap": 0.99}},
            "held at 850 MHz by a power cap although it draws 240 W of its 700 W limit: board, PSU or BMC",
        ),
        (
            {"share": 0.88, "sm_clock_mhz": 1240, "temperature_c": 72},
            "12 % slower: held at 1240 MHz by its 700 W limit, others reach 1410 MHz with theirs (72 °C, others 61–65",
        ),
        (
            {"share": 0.8, "sm_clock_mhz": 1130, "power_w": 497, "power_limit_w": 500},
            "20 % slower: its limit was lowered to 500 W (default 700 W, others 700 W), at 1130 MHz",
        ),
        (
            {"share": 0.7, "power_w": 430, "throttle_share": _NONE},
            "30 % slower: slow at its full clock of 1410 MHz, drawing 430 W (others 698 W): no reason is shown",
        ),
        (
            {"share": 0.7, "throttle_share": _NONE, "versions": {**VERSIONS, "driver": "550.54"}},
            "30 % slower: at its full clock of 1410 MHz, with driver 550.54 (others 570.86)",
        ),
        (
            {"share": 0.7, "sm_clock_mhz": 990, "power_w": 430, "throttle_share": {"sync_boost": 0.99}},
            "held at 990 MHz by sync boost (others 1410 MHz)",
        ),
        (
            {"share": 0.7, "sm_clock_mhz": 990, "power_w": 430, "throttle_share": _NONE},
            "at 990 MHz (others 1410 MHz) and the driver gives no reason",
        ),
        (
            {"share": 0.7, "sm_clock_mhz": 990, "power_w": None, "throttle_share": {}},
            "at 990 MHz (others 1410 MHz) and the reasons are unknown",
        ),
        (
            {"share": 0.4, "sm_clock_mhz": 1115, "temperature_c": 87, "throttle_share": _HOT},
            "(87 °C, others 61–65 °C), and 49 % less work per clock than the others",
        ),
        (
            {"share": 0.7, "sm_clock_mhz": None, "power_w": None, "throttle_share": {}, "gaps": {"clock": "no NVML"}},
            "30 % slower: its clock is unknown (no NVML), so the cause is unknown",
        ),
        ({"share": 0.7, "phases": []}, "30 % slower: nothing was measured beside its rate"),
        ({"share": 0.8, "sm_clock_mhz": 1130, "still_heating": True}, "it was still heating up"),
    ],
)
def test_why_one_of_eight_is_slow(changes: dict[str, Any], said: str) -> None:
    verdict = judge_matmul(node(g5=gpu(5, **changes)))
    assert verdict.text.startswith("7 of 8 GPUs alike at 71")
    assert said in verdict.text
    assert [(one.node, one.gpu, one.uuid) for one in verdict.suspects] == [("n03", 5, "GPU-n03-5")]
    assert verdict.suspects[0].reason.split(": ", 1)[1] in verdict.text


def test_a_limit_that_all_have_lowered_is_a_decision() -> None:
    lowered = [
        gpu(index, share=0.8 * SPREAD[index], sm_clock_mhz=1130, power_w=497, power_limit_w=500) for index in range(8)
    ]
    verdict = judge_matmul(lowered)
    assert not verdict.suspects
    assert "the limit of 8 of 8 was lowered to 500 W (default 700 W)" in verdict.details


def test_some_throttling_that_costs_nothing_accuses_nobody() -> None:
    assert accused(node(g5=gpu(5, throttle_share={"hw_thermal": 0.3}))) == []


def test_few_gpus_are_not_judged_but_a_difference_is_told() -> None:
    verdict = judge_matmul(node(count=2, g1=gpu(1, share=0.6, sm_clock_mhz=850)))
    assert verdict.text.startswith(
        "2 GPUs at 427–712 TFLOPS bf16 sustained, the slowest GPU 1 on n03 (held at 850 MHz by"
    )
    assert not verdict.suspects
    assert "2 alike: at least 4 are needed to call one slow" in verdict.details


def test_one_gpu_alone() -> None:
    assert text([gpu(0)]).startswith(
        "GPU 0 on n03: 712 TFLOPS bf16 sustained at 1410 MHz, 698 of 700 W, 61 °C (held by its power limit, normal at "
        "full load), good: burst 98 % of mamf-finder's 794 TFLOPS"
    )
    assert "as in its last 3 results" in text([gpu(0)], earlier(1.0))


FIXTURES = Path(__file__).parents[4] / "fixtures/gpu/H100-80GB-HBM3-580.159.04"


def of_fixture(name: str) -> list[MatmulResult]:
    """Results of one good H100, by `bash tests/gpu`; its bursts were of the best shape that was found."""
    told = json.loads((FIXTURES / name).read_text())
    answers = [told["answer"]] if "answer" in told else told["answers"].values()
    data = [event["data"] for answer in answers for event in answer["events"] if event["event"] == "result"]
    return [MatmulResult(**{**one, "phases": [Phase(**phase) for phase in one["phases"]]}) for one in data]


@pytest.mark.parametrize("result", of_fixture("probes.json") + of_fixture("dtypes.json"), ids=lambda one: one.dtype)
def test_a_good_gpu_is_good(result: MatmulResult) -> None:
    """At its power limit, as every H100 at full load; of other shapes than mamf-finder's there is no figure."""
    verdict = judge_matmul([result])
    assert not verdict.suspects
    assert "held by its power limit, normal at full load" in verdict.text
    if result.dtype != "fp32":  # for full precision nobody knows what is usual
        assert re.search(r"good: 9\d % of its peak at that clock", verdict.text)
    said = " ".join([verdict.text, *verdict.details])
    assert not any(word in said for word in ("slow", "mamf", "heating", "difference"))


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({}, True),
        ({"dtype": "fp8", "burst_tflops": 1390.0, "shape": [1024, 9216, 14336]}, True),
        ({"dtype": "fp8"}, False),  # of another shape
        ({"shape": [10240, 15360, 8192]}, False),
        ({"phases": [phase("burst", power_limit_w=500.0), phase(power_limit_w=500.0)]}, False),
        ({"kind": "mig", "multiprocessors": 60}, False),
        ({"name": "NVIDIA H200", "pci_device": "2335"}, False),  # the figure is H100's
        ({"name": "NVIDIA GeForce RTX 5090", "pci_device": ""}, False),  # nobody says how it was measured
        ({"name": "AMD Instinct MI300X", "pci_device": "", "shape": [10240, 15360, 8192]}, False),  # tuned
        ({"name": "NVIDIA H100 80GB HBM3", "pci_device": "9999"}, False),  # a variant that nobody knows
    ],
)
def test_a_published_figure_is_for_what_was_measured_as_it_was(changes: dict[str, Any], compared: bool) -> None:
    low = judge_matmul([gpu(0, **{"burst_tflops": 700.0, **changes})])
    assert not low.suspects
    assert ("mamf-finder" in " ".join(low.details)) is compared
    assert bool(list(figures(gpu(0, **changes)))) is compared


def test_a_fault_that_shows_needs_no_peers() -> None:
    verdict = judge_matmul([gpu(0, share=0.6, sm_clock_mhz=800, temperature_c=90, throttle_share={"hw_thermal": 0.6})])
    assert verdict.text.startswith(
        "GPU 0 on n03: 427 TFLOPS bf16 sustained; held at 800 MHz by heat 60 % of the time (90 °C)"
    )
    assert [one.gpu for one in verdict.suspects] == [0]


def test_several_slow_gpus_of_one_node_are_told_together() -> None:
    hot = {"temperature_c": 88, "throttle_share": {"sw_thermal": 1.0}}
    second = node("n02", g3=gpu(3, "n02", share=0.7, sm_clock_mhz=990, **hot), g4=gpu(4, "n02", share=0.75, **hot))
    assert "14 of 16 GPUs alike at 712 TFLOPS bf16 sustained; GPUs 3-4 on n02 are 25–30 % slower: held at 990" in text(
        node("n01") + second
    )


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        (earlier(1.06), list(range(8))),
        (earlier(1.02), []),
        (earlier(1.06, times=1), []),
        (earlier(1.06, versions={**VERSIONS, "torch": "2.8.0"}), []),
        (earlier(1.06, count=2), [0, 1]),
    ],
)
def test_own_history_comes_first(past: list[PastResult], expected: list[int]) -> None:
    assert accused(node(), past) == expected


def test_own_history_in_words() -> None:
    assert "it is 6 % slower than its own last 3 results (712 TFLOPS against 755 TFLOPS): held at 1410 MHz" in text(
        [gpu(0)], earlier(1.06)
    )
    assert "all 8 GPUs at 712 TFLOPS bf16 sustained" in text(node(), earlier(1.06)).replace("alike ", "")
    slow = replace(gpu(5, share=0.79), sustained_tflops=RATE * 0.79)
    past = [PastResult("GPU-n03-5", KEY, RATE * 0.79, at, VERSIONS) for at in range(3)]
    assert "GPU 5 on n03 is 21 % slower (as in its earlier results)" in text(node(g5=slow), past)


def test_all_alike_and_low_is_software() -> None:
    verdict = judge_matmul([gpu(index, share=0.5 * SPREAD[index]) for index in range(8)])
    assert verdict.text.startswith(
        "8 GPUs alike at 356 TFLOPS bf16 sustained, only 47 % of what they can do at their clock: software (driver "
        "570.86, torch 2.9.0, cuda 12.8, cublas 12.8.4)"
    )
    assert not verdict.suspects
    assert "versions of driver, torch and cuBLAS alone" in "\n".join(verdict.details)


def test_wrong_bits_come_first() -> None:
    verdict = judge_matmul(node(g3=gpu(3, corrupt_iterations=2), g5=gpu(5, share=0.7, throttle_share=_NONE)))
    assert verdict.text.startswith(
        "GPU 3 on n03 gave wrong results: 2 of 20 checked iterations gave other bits; 7 of 8 GPUs alike"
    )
    assert [one.gpu for one in verdict.suspects] == [3, 5]
    assert "no error" not in " ".join([verdict.text, *verdict.details])


def test_inputs_that_arrive_with_other_bits() -> None:
    assert text(node(g3=gpu(3, upload_intact=False))).startswith("GPU 3 on n03 got inputs with other bits")


@pytest.mark.parametrize(
    ("results", "expected", "said"),
    [
        (node(g3=gpu(3, checksum="bad")), [3], "gave another result than 7 equal devices: rerun to confirm"),
        (node(g3=gpu(3, checksum="bad", versions={**VERSIONS, "cublas": "12.9"})), [], ""),
        (node(g3=gpu(3, checksum="")), [], ""),
        (node(count=2, g1=gpu(1, checksum="bad")), [], ""),
    ],
)
def test_other_checksums_of_equal_gpus(results: list[MatmulResult], expected: list[int], said: str) -> None:
    assert accused(results) == expected
    assert said in text(results)


def test_without_a_majority_nobody_knows_which_result_is_right() -> None:
    halves = [gpu(index, checksum="even" if index % 2 == 0 else "odd") for index in range(4)]
    assert accused(halves) == []
    assert "GPUs 0-3 on n03 gave different results for equal work, and no majority" in details(halves)


def test_cpus_are_compared_with_other_nodes_and_have_no_table() -> None:
    assert text([cpus("h01")]) == (
        "CPUs of h01: 215 GFLOPS fp32 (MKL AVX2), no figure to compare it with; no error in 400 GFLOP"
    )
    nodes = [cpus(f"h0{number}", 215 - number) for number in range(4)]
    verdict = judge_matmul([*nodes, cpus("h09", 150)])
    assert "4 of 5 CPU nodes alike at 214 GFLOPS fp32 (MKL AVX2); CPUs of h09 are 30 % slower" in verdict.text
    assert [(one.node, one.gpu) for one in verdict.suspects] == [("h09", None)]


def test_cpus_with_another_code_path_are_not_peers() -> None:
    nodes = [cpus(f"h0{number}", 500) for number in range(4)]
    verdict = judge_matmul([*nodes, cpus("h09", 150, code_path="OpenBLAS generic")])
    assert not verdict.suspects
    assert "CPUs of h09: 150 GFLOPS fp32 (OpenBLAS generic)" in verdict.text


def test_models_are_judged_apart() -> None:
    a100 = [gpu(index, "n04", name="NVIDIA A100-SXM4-80GB", pci_device="20b2", share=0.35) for index in range(4)]
    found = text(node() + a100)
    assert "NVIDIA H100 80GB HBM3: 8 GPUs alike at 712" in found
    assert "NVIDIA A100-SXM4-80GB: 4 GPUs alike at 249" in found


def test_nothing_was_measured() -> None:
    assert judge_matmul([]).text == "nothing was measured"
