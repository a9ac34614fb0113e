"""Health rules: each fires on its signal, holds its fire otherwise, and one cause is one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.judge.health.registry import RULES
from mltop.probes.model import Finding, Gap, GpuSample, RankSample, Sample
from mltop.probes.model.units import clock_time
from tests.builders.evaluated import evaluate


def _gpu(index: int, *reasons: str, **more: object) -> GpuSample:
    values = {"uuid": f"GPU-{index}", "sm_clock_mhz": 1100, "sm_clock_max_mhz": 1980, "temperature_c": 91.0}
    return GpuSample(index, throttle_reasons=list(reasons), **{**values, **more})  # type: ignore[arg-type]


def _sample(at: float, *gpus: GpuSample, **more: object) -> Sample:
    return Sample("n1", at, gpus=list(gpus), **more)  # type: ignore[arg-type]


def _ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


REASONS = {
    "hw_thermal": ("critical", 5.0, "GPU 3 is too hot, SM 1.10 of 1.98 GHz, 91 °C"),
    "power_brake": ("critical", 5.0, "PSU brake on GPU 3, SM 1.10 of 1.98 GHz, 91 °C"),
    "sw_thermal": ("warning", 30.0, "GPU 3 slowing itself to stay cool, SM 1.10 of 1.98 GHz, 91 °C"),
    "hw_slowdown": ("warning", 5.0, "GPU 3: HW slowdown, cause unstated, SM 1.10 of 1.98 GHz, 91 °C"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_throttle_reason_fires_after_its_hold(reason: str) -> None:
    severity, hold_s, message = REASONS[reason]
    samples = [_sample(at, _gpu(2), _gpu(3, reason)) for at in range(100, 100 + int(hold_s))]
    assert evaluate(samples) == []
    samples.append(_sample(100 + hold_s, _gpu(2), _gpu(3, reason)))
    (finding,) = evaluate(samples)
    assert (finding.id, finding.severity, finding.node) == (f"gpu.throttle.{reason}", severity, "n1")
    assert (finding.subject, finding.message) == ("GPU 3", message)
    assert (finding.since, finding.until) == (100, None)
    assert finding.action


def test_one_sample_fires_at_once_and_says_so() -> None:
    (finding,) = evaluate([_sample(100, _gpu(3, "sw_thermal"))])
    assert "first sample" in finding.evidence[-1]


def test_a_short_burst_is_nothing_and_an_ended_one_has_an_end() -> None:
    blip = [_sample(at, _gpu(3, *(["hw_thermal"] if at == 105 else []))) for at in range(100, 120)]
    assert evaluate(blip) == []
    spell = [_sample(at, _gpu(3, *(["hw_thermal"] if at <= 110 else []))) for at in range(100, 140)]
    (finding,) = evaluate(spell)
    assert (finding.since, finding.until) == (100, 110)


def test_a_pause_shorter_than_the_clearing_time_is_bridged() -> None:
    samples = [_sample(at, _gpu(3, *([] if 112 <= at < 120 else ["hw_thermal"]))) for at in range(100, 140)]
    (finding,) = evaluate(samples)
    assert (finding.since, finding.until) == (100, None)


def test_a_flickering_reason_shows_in_its_counter() -> None:
    samples = [_sample(at, _gpu(3, throttle_ns={"hw_thermal": int(at * 0.2e9)})) for at in range(100, 110)]
    (finding,) = evaluate(samples)
    assert finding.id == "gpu.throttle.hw_thermal"
    assert finding.evidence == ["held for 20 % of the last interval"]
    calm = [_sample(at, _gpu(3, throttle_ns={"hw_thermal": int(at * 0.02e9)})) for at in range(100, 110)]
    assert evaluate(calm) == []


def test_normal_reasons_fire_nothing() -> None:
    quiet = ["gpu_idle", "sw_power_cap", "applications_clocks", "sync_boost", "display_clocks"]
    assert evaluate([_sample(at, _gpu(0, *quiet), _gpu(1)) for at in range(100, 200)]) == []
    unknown = GpuSample(0, throttle_reasons=None)
    assert evaluate([_sample(100, unknown)]) == []


def test_the_general_bit_beside_a_specific_one_is_silent() -> None:
    samples = [_sample(at, _gpu(0, "hw_slowdown", "power_brake"), _gpu(1)) for at in range(100, 110)]
    assert _ids(evaluate(samples)) == ["gpu.throttle.power_brake"]


@pytest.mark.parametrize("used", [True, False], ids=["with ranks", "without"])
def test_of_a_lost_gpu_nobody_is_told_to_save_what_is_not_there(used: bool) -> None:
    lost = GpuSample(0, state="lost", error="GPU is lost (NVML error 15)", last_seen_at=109.0)
    samples = [_sample(110, lost), _sample(140, lost)]
    for sample in samples:
        sample.ranks = [RankSample(7, 0)] * used
    (finding,) = evaluate(samples)
    assert finding.action.startswith("save what its ranks can, reboot" if used else "reboot the node")
    assert finding.action.endswith("if lost again, reseat it")


def test_behind_a_temperature_stands_its_limit_where_it_is_known() -> None:
    gpu = replace(_gpu(0, "hw_thermal"), temperature_slowdown_c=92.0)
    (finding, *_) = evaluate([_sample(at, gpu) for at in range(100, 110)])
    assert finding.message.endswith("91 of 92 °C")


def test_a_lost_gpu_explains_its_other_findings() -> None:
    hot = [_sample(at, _gpu(2, "sw_thermal"), _gpu(3, "hw_thermal")) for at in range(100, 110)]
    lost = GpuSample(3, state="lost", error="GPU is lost (NVML error 15)", last_seen_at=109.0)
    (finding, other) = evaluate(
        [*hot, _sample(110, _gpu(2, "sw_thermal"), lost), _sample(140, _gpu(2, "sw_thermal"), lost)]
    )
    assert (finding.id, finding.message) == ("gpu.lost", f"GPU 3 lost (last seen {clock_time(109)})")
    assert finding.evidence[0] == "GPU is lost (NVML error 15)"
    assert finding.folded == ["gpu.throttle.hw_thermal GPU 3"]
    assert other.subject == "GPU 2"


def test_a_gpu_that_vanishes_from_the_list_is_lost() -> None:
    samples = [_sample(100, _gpu(2), _gpu(3)), _sample(101, _gpu(2)), _sample(102, _gpu(2))]
    (finding,) = evaluate(samples)
    assert (finding.id, finding.subject, finding.since) == ("gpu.lost", "GPU 3", 101)
    assert evaluate([*samples, _sample(103, _gpu(2), _gpu(3))])[0].until == 102


def test_a_reboot_forgets_the_old_list() -> None:
    samples = [_sample(100, _gpu(2), _gpu(3), boot_id="x"), _sample(300, _gpu(2), boot_id="y")]
    assert evaluate(samples) == []


def test_a_stuck_driver_is_one_line() -> None:
    why = "NVML does not answer: stuck in nvmlDeviceGetPowerUsage for 12 s"
    sample = _sample(100, GpuSample(3, state="error", error=why), gaps=[Gap("nvml", why, code="stuck")])
    (finding,) = evaluate([sample])
    assert (finding.id, finding.severity, finding.message) == ("nvml.stuck", "critical", why)
    assert finding.folded == ["gpu.error GPU 3"]


def test_a_machine_without_a_driver_is_healthy() -> None:
    gap = Gap("nvml", "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)")
    assert evaluate([_sample(100, gaps=[gap])]) == []


def test_a_gpu_error_is_told() -> None:
    (finding,) = evaluate([_sample(100, GpuSample(3, state="error", error="GPU needs a reset"))])
    assert (finding.id, finding.message) == ("gpu.error", "GPU 3: GPU needs a reset")


def test_a_power_brake_on_every_gpu_is_the_chassis() -> None:
    samples = [_sample(at, *(_gpu(index, "power_brake") for index in range(8))) for at in range(100, 110)]
    (finding,) = evaluate(samples)
    assert (finding.subject, finding.message) == ("all 8 GPUs", "PSU brake on all 8 GPUs")
    assert len(finding.folded) == 8


def test_nodes_do_not_mix() -> None:
    other = Sample("n2", 100.5, gpus=[_gpu(0)])
    samples = [_sample(at, _gpu(0, "hw_thermal"), _gpu(1)) for at in range(100, 110)]
    assert [(one.node, one.id) for one in evaluate([*samples, other])] == [("n1", "gpu.throttle.hw_thermal")]


def test_ids_are_unique_and_severities_known() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.severity for rule in RULES} <= {"info", "warning", "critical"}
