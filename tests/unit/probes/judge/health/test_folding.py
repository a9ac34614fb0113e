"""One cause, one line: what a fault drags along is folded into it. What cannot be read is unknown, with the command."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.folding import MOST_FOLDED, fold_findings
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import Finding, Gap, KernelEvent, NvlinkLink, Sample, to_json
from tests.builders.health_samples import GPU_BUSES, gpu, judged, node_h100, sample, xid

NOW = 100_000.0
LOST = {"state": "lost", "error": "GPU is lost (NVML error 15: GPU is lost)", "last_seen_at": NOW - 4}


def _one_line(samples: list[Sample], *more: str) -> Finding:
    found = judged(samples, "gpu.", "nvml.", "nvlink.", "fabric.", "pcie.", *more)
    assert [(one.id, one.subject, one.message) for one in found[1:]] == []
    return found[0]


def test_a_gpu_that_fell_off_the_bus() -> None:
    """Lost to NVML, its Xids, its links and what its own numbers said just before."""
    slowed = {3: {"throttle_reasons": ["hw_thermal"], "sm_clock_mhz": 900}}
    hot = [node_h100(NOW - 20 + at, slowed) for at in range(15)]
    dead = gpu(3, **LOST)
    dead.nvlink.links = [NvlinkLink(index, False) for index in range(18)]
    events = [
        xid(NOW - 4, 79),
        KernelEvent(NOW - 4, "off_bus", f"0000:{GPU_BUSES[3]}:00.0", None, "GPU has fallen off the bus."),
        xid(NOW - 3, 154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        xid(NOW - 2, 45),
    ]
    after = [node_h100(NOW + at, {3: LOST}, kernel_events=events) for at in range(20)]
    for one in after:
        one.gpus[3] = dead
    finding = _one_line([*hot, *after])
    assert (finding.id, finding.subject, finding.since, finding.until) == ("gpu.lost", "GPU 3", NOW - 4, None)
    assert {"gpu.xid.hw GPU 3", "gpu.throttle.hw_thermal GPU 3"} <= set(finding.folded)


def test_without_nvmls_word_the_xid_stands_alone() -> None:
    finding = _one_line([node_h100(NOW, kernel_events=[xid(NOW - 4, 79), xid(NOW - 4, 45)])])
    assert finding.id == "gpu.xid.hw"


def test_a_power_brake_on_every_gpu_is_the_chassis() -> None:
    braked = {"throttle_reasons": ["hw_slowdown", "power_brake"], "sm_clock_mhz": 420}
    finding = _one_line([node_h100(NOW + at, dict.fromkeys(range(8), braked)) for at in range(0, 120, 5)])
    assert (finding.subject, finding.message) == ("all 8 GPUs", "PSU brake on all 8 GPUs")
    assert len(finding.folded) == 8


def test_a_hot_node_is_one_line() -> None:
    hot = {
        "throttle_reasons": ["hw_thermal", "sw_thermal", "hw_slowdown"],
        "temperature_c": 88.0,
        "temperature_margin_c": -1.0,
        "memory_temperature_c": 97.0,
        "sm_clock_mhz": 900,
    }
    finding = _one_line([node_h100(NOW + at, dict.fromkeys(range(8), hot)) for at in range(0, 120, 5)])
    assert finding.message == "All 8 GPUs are too hot"
    alone = _one_line([node_h100(NOW + at, {3: hot}) for at in range(0, 120, 5)])
    assert (alone.id, alone.subject) == ("gpu.throttle.hw_thermal", "GPU 3")
    assert {one.split()[0] for one in alone.folded} >= {"gpu.clock.low_busy", "gpu.temp.margin", "gpu.temp.hbm"}


SLOW_FOR = {
    "gpu.throttle.hw_thermal": {"throttle_reasons": ["hw_thermal"]},
    "gpu.throttle.sw_thermal": {"throttle_reasons": ["sw_thermal"]},
    "gpu.throttle.power_brake": {"throttle_reasons": ["power_brake"]},
    "gpu.throttle.hw_slowdown": {"throttle_reasons": ["hw_slowdown"]},
    "gpu.throttle.power_cap": {"throttle_reasons": ["sw_power_cap"]},
    "gpu.throttle.user_clocks": {"throttle_reasons": ["applications_clocks"]},
    "gpu.power.limit_low": {"throttle_reasons": ["sw_power_cap"], "power_limit_w": 400.0, "power_w": 400.0},
}


@pytest.mark.parametrize("cause", SLOW_FOR)
def test_a_slow_gpu_is_told_by_its_cause(cause: str) -> None:
    slow = {"sm_clock_mhz": 1100, **SLOW_FOR[cause]}
    finding = _one_line([node_h100(NOW + at, {3: slow}) for at in range(0, 120, 5)])
    assert (finding.id, finding.subject) == (cause, "GPU 3")
    assert "gpu.clock.low_busy GPU 3" in finding.folded


MEMORY: dict[str, tuple[dict[str, Any], list[int]]] = {
    "gpu.ecc.dbe_volatile": (
        {"ecc": {"uncorrected_volatile": 1}, "remap": {"pending": True}, "recovery_action": "gpu_reset"},
        [63, 94, 43],
    ),
    "gpu.remap.pending": ({"remap": {"pending": True}}, [63, 94]),
    "gpu.remap.failed": (
        {"remap": {"failed": True, "uncorrected": 600, "banks": {"none": 3}}, "recovery_action": "gpu_reset"},
        [63],
    ),
    "gpu.recovery": ({"remap": {"pending": True}, "recovery_action": "gpu_reset"}, []),
    "gpu.ecc.sram_threshold": ({"ecc": {"sram_threshold_exceeded": True, "sram_uncorrected_aggregate": 9}}, []),
    "gpu.xid.hw": (
        {"ecc": {"uncorrected_volatile": 1}, "remap": {"failed": True}, "recovery_action": "gpu_reset"},
        [48, 64, 95, 45],
    ),
}


@pytest.mark.parametrize("cause", MEMORY)
def test_a_memory_fault_is_one_line(cause: str) -> None:
    fields, codes = MEMORY[cause]
    events = [xid(NOW - 5 + place, code) for place, code in enumerate(codes)]
    finding = _one_line([node_h100(NOW + at, {3: fields}, kernel_events=events) for at in range(5)])
    assert (finding.id, finding.subject) == (cause, "GPU 3")
    assert finding.folded


def test_faults_of_two_gpus_are_two_lines() -> None:
    events = [xid(NOW - 5, 94, 1), xid(NOW - 5, 94, 2)]
    found = judged([node_h100(NOW, {1: {"remap": {"pending": True}}}, kernel_events=events)], "gpu.")
    assert [(one.id, one.subject) for one in found] == [("gpu.remap.pending", "GPU 1"), ("gpu.xid.warn", "GPU 2")]


def test_an_unreadable_kernel_log_is_said_with_the_command() -> None:
    fix = "sudo usermod -aG adm $USER   # and log in again"
    gap = Gap("kernel_log", "kernel log unreadable (/dev/kmsg: operation not permitted)", fix)
    (unknown,) = [one for one in unknowns_of(node_h100(NOW, gaps=[gap]), RULES) if "gpu.xid.hw" in one.rules]
    assert (unknown.what, unknown.fix) == ("kernel_log", fix)
    xid_rules = {"gpu.xid.hw", "gpu.xid.warn", "gpu.xid.app", "gpu.xid.repeat", "gpu.sxid"}
    assert {rule for rule in unknown.rules if rule.startswith("gpu.")} == xid_rules
    assert judged([node_h100(NOW, gaps=[gap])], "gpu.") == []


@pytest.mark.parametrize(
    ("what", "kind", "unknown"),
    [
        ("gpu.3.ecc", "unknown", {"gpu.ecc.dbe_volatile", "gpu.ecc.off", "gpu.ecc.sbe_rate"}),
        ("gpu.*.ecc.sram_threshold_exceeded", "unknown", {"gpu.ecc.sram_threshold"}),
        ("gpu.*.ecc.sram_threshold_exceeded", "unsupported", set()),
        ("gpu.3.throttle_reasons", "unknown", {"gpu.throttle.hw_thermal", "gpu.throttle.power_cap"}),
        ("gpu.*.remap", "unknown", {"gpu.remap.pending", "gpu.remap.failed", "gpu.remap.banks", "gpu.remap.count"}),
        ("gpu.*.processes", "unknown", {"gpu.orphan", "gpu.ghost_mem"}),
        ("gpu.*.recovery_action", "unknown", {"gpu.recovery"}),
        ("nvml", "unknown", {"gpu.lost", "gpu.missing", "gpu.ecc.dbe_volatile", "gpu.clock.low_busy"}),
        ("nvml.starting", "starting", set()),
        ("pci", "unknown", {"gpu.missing"}),
        ("host.pressure", "unknown", set()),
    ],
)
def test_what_a_gap_hides(what: str, kind: str, unknown: set[str]) -> None:
    found = unknowns_of(sample(NOW, gaps=[Gap(what, "because", kind=kind)]), RULES)
    rules = {rule for one in found for rule in one.rules if rule.startswith("gpu.")}
    assert unknown <= rules
    assert rules == set() or unknown


def test_a_live_view_keeps_one_line_while_a_fault_unfolds() -> None:
    """As it happens: an Xid, then NVML's counters, then the driver's advice, then the loss."""
    health = Health(rules=[rule for rule in RULES if rule.id.startswith(("gpu.", "nvml."))])
    story: list[tuple[dict[str, Any], list[int], str]] = [
        ({}, [48], "gpu.xid.hw"),
        ({"ecc": {"uncorrected_volatile": 1}}, [48, 63], "gpu.xid.hw"),
        ({"ecc": {"uncorrected_volatile": 1}, "recovery_action": "gpu_reset"}, [48, 63, 95], "gpu.xid.hw"),
        (LOST, [48, 63, 95, 79], "gpu.lost"),
    ]
    for step, (fields, codes, told) in enumerate(story):
        events = [xid(NOW + place, code) for place, code in enumerate(codes)]
        health.see(node_h100(NOW + 5 * step, {3: fields}, kernel_events=events))
        firing = [one for one in health.of("n1") if one.until is None]
        assert [one.id for one in firing] == [told], step


def test_gpus_that_all_need_a_reset_are_told_to_be_reset() -> None:
    """NVML error 16 of each: nothing is gone, and no reboot is asked for."""
    words = "GPU needs a reset (NVML error 16: GPU requires restart)"
    fallen = {"state": "lost", "error": words, "error_code": "needs_reset"}
    finding = _one_line([node_h100(NOW + at, dict.fromkeys(range(8), fallen)) for at in range(5)])
    assert (finding.subject, finding.message) == ("all 8 GPUs", "All 8 GPUs need a reset")
    assert (finding.action, finding.remedy) == ("end the jobs on the node, then: sudo nvidia-smi -r", "reset")


def test_what_holds_for_all_gpus_gives_way_as_a_whole() -> None:
    """All go back: nobody lists all eight of them as exceptions."""
    bad = {"remap": {"failed": True}, "ecc": {"enabled": False}}
    found = judged([node_h100(NOW, dict.fromkeys(range(8), bad))], "gpu.")
    (ecc,) = [one for one in found if one.id == "gpu.ecc.off"]
    assert (ecc.subject, ecc.remedy) == ("all 8 GPUs", "replace")
    assert "nvidia-smi" not in ecc.action and " not GPU" not in ecc.action


def test_exceptions_are_listed_in_order() -> None:
    bad = {index: {"ecc": {"enabled": False}, "remap": {"failed": index < 6}} for index in range(8)}
    (ecc,) = [one for one in judged([node_h100(NOW, bad)], "gpu.") if one.id == "gpu.ecc.off"]
    assert "not GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5: take the node" in ecc.action


# What is folded is kept whole.


def test_what_a_lost_gpu_explains_keeps_its_text() -> None:
    slowed = {3: {"throttle_reasons": ["hw_thermal"], "sm_clock_mhz": 900}}
    hot = [node_h100(NOW - 20 + at, slowed) for at in range(15)]
    lost = [node_h100(NOW + at, {3: LOST}, kernel_events=[xid(NOW - 4, 79)]) for at in range(3)]
    finding = _one_line([*hot, *lost])
    assert len(finding.explains) == len(finding.folded)
    told = {one.id: one for one in finding.explains}
    assert told["gpu.xid.hw"].message.startswith("Xid 79") and told["gpu.xid.hw"].evidence
    assert told["gpu.throttle.hw_thermal"].message.startswith("GPU 3 is too hot")
    assert all(one.explains == [] for one in finding.explains)


def test_all_gpus_keep_what_each_of_them_said() -> None:
    """Also where all of them together are folded again."""
    dead = {index: gpu(index, fabric={"state": "not_started"}) for index in range(8)}
    for index, one in dead.items():
        one.nvlink.links = [NvlinkLink(link, link >= 2 + index % 2) for link in range(18)]
    samples = [node_h100(NOW + at, host={"services": {"nvidia-fabricmanager": "failed"}}) for at in range(0, 120, 5)]
    for one in samples:
        one.gpus = list(dead.values())
    finding = _one_line(samples)
    assert finding.id == "fabric.manager"
    texts = [one.message for one in finding.explains]
    assert "GPU 3: 15 of 18 NVLinks up (0-2 down)" in texts and "GPU 4: 16 of 18 NVLinks up (0-1 down)" in texts
    assert len(texts) == len(finding.folded) == len({*finding.folded})


def test_folding_anew_doubles_nothing() -> None:
    """Ended findings are folded with every sample: they are not changed by it."""
    health = Health(rules=RULES)
    braked = {"throttle_reasons": ["hw_thermal"], "sm_clock_mhz": 900}
    for at in range(0, 60, 5):
        health.see(node_h100(NOW + at, dict.fromkeys(range(8), braked)))
    for at in range(60, 200, 5):
        health.see(node_h100(NOW + at))
    first = [(one.folded, one.explains) for one in health.of("n1")]
    health.see(node_h100(NOW + 200))
    again = [(one.folded, one.explains) for one in health.of("n1")]
    assert first == again and any(len(explains) >= 8 for _, explains in again)


def test_of_very_many_every_kind_is_kept() -> None:
    """A thousand lines of one kind push no other one out."""
    many = [Finding("cpu.hung", "warning", "n1", f"task {at}", f"task {at} hangs", since=NOW) for at in range(200)]
    other = Finding("cpu.dstate", "critical", "n1", "rank 3", "rank 3 is stuck", since=NOW)
    cause = Finding("fs.stall", "critical", "n1", "/ckpt", "/ckpt does not answer", since=NOW)
    (told,) = fold_findings([*many, other, cause], 8)
    assert len(told.explains) == MOST_FOLDED == len(told.folded) - 1
    assert other.message in [one.message for one in told.explains]
    assert to_json(told).count("hangs") == MOST_FOLDED - 1
