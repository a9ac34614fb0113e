"""Every rule about a GPU's state fires on its signal, says it in figures, and is silent on what looks like it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import GpuProcess, MigInstance
from tests.builders.health_samples import GIB, judged, node_h100, rank, sample

Fields = dict[str, Any]


@dataclass
class Case:
    """GPU 3 with ``bad`` fires ``id`` after ``hold_s``; with any of ``fine`` it does not."""

    id: str
    severity: str
    message: str
    bad: Fields
    fine: list[Fields] = field(default_factory=list)
    hold_s: float = 0.0
    load: str = "training"
    action: str = ""


LOW_CLOCK = {"sm_clock_mhz": 1100}
CASES = [
    Case(
        "gpu.throttle.hw_thermal",
        "critical",
        "GPU 3 is too hot, SM 1.10 of 1.98 GHz, 81 of 87 °C",
        {"throttle_reasons": ["hw_thermal"], "sm_clock_mhz": 1100, "temperature_c": 81.0},
        [{"throttle_share": {"hw_thermal": 0.04}}, {"throttle_reasons": None}],
        hold_s=5.0,
    ),
    Case(
        "gpu.throttle.hw_thermal",
        "critical",
        "GPU 3 is too hot, SM 1.98 of 1.98 GHz, 78 of 87 °C",
        {"throttle_share": {"hw_thermal": 0.2}, "throttle_ns": {}, "temperature_c": 78.0},
        [
            {"throttle_share": {"sw_power_cap": 0.9}, "throttle_ns": {}},
            {"throttle_share": {"hw_thermal": 0.2}, "throttle_ns": {}},  # cool and at full clock
        ],
        hold_s=5.0,
    ),
    Case(
        "gpu.throttle.sw_thermal",
        "warning",
        "GPU 3 slowing itself to stay cool, SM 1.70 of 1.98 GHz, 72 of 87 °C",
        {"throttle_reasons": ["sw_thermal"], "sm_clock_mhz": 1700, "temperature_c": 72.0},
        [{"temperature_c": 72.0}],
        hold_s=30.0,
    ),
    Case(
        "gpu.throttle.power_brake",
        "critical",
        "PSU brake on GPU 3, SM 0.42 of 1.98 GHz, 61 of 87 °C",
        {"throttle_reasons": ["hw_slowdown", "power_brake"], "sm_clock_mhz": 420},
        [{"throttle_reasons": ["sw_power_cap"]}],
        hold_s=5.0,
    ),
    Case(
        "gpu.throttle.hw_slowdown",
        "warning",
        "GPU 3: HW slowdown, cause unstated, SM 0.99 of 1.98 GHz, 61 of 87 °C",
        {"throttle_reasons": ["hw_slowdown"], "sm_clock_mhz": 990},
        [{"throttle_reasons": ["gpu_idle"]}],
        hold_s=5.0,
    ),
    Case(
        "gpu.throttle.power_cap",
        "warning",
        "GPU 3 at its 700 W limit runs 32 % slower than its peers, SM 1.16 of 1.98 GHz, 67 of 87 °C",
        {"sm_clock_mhz": 1160},
        [{"sm_clock_mhz": 1460}, {"sm_clock_mhz": 1160, "busy": 0.5}],
        hold_s=60.0,
        load="capped",
    ),
    Case(
        "gpu.throttle.user_clocks",
        "warning",
        "Clocks pinned at 1410 MHz on GPU 3, its peers run at 1980 MHz",
        {"throttle_reasons": ["applications_clocks"], "sm_clock_mhz": 1410},
        [
            {"throttle_reasons": ["applications_clocks"]},
            {"throttle_reasons": ["applications_clocks"], "sm_clock_mhz": 1410, "busy": 0.0},
        ],
        hold_s=10.0,
    ),
    Case(
        "gpu.power.limit_low",
        "warning",
        "GPU 3 capped at 500 W, peers 700 W",
        {"power_limit_w": 500.0},
        [{"power_limit_w": 690.0}, {"power_limit_w": None}],
        action="sudo nvidia-smi -i 3 -pl 700",
    ),
    Case(
        "gpu.power.limit_low",
        "warning",
        "GPU 3 capped at 600 W, default 650 W",
        {"name": "NVIDIA H200", "power_limit_w": 600.0, "power_limit_default_w": 650.0},
        [{"name": "NVIDIA H200", "power_limit_w": 600.0, "power_limit_default_w": 600.0}],
    ),
    Case(
        "gpu.clock.low_busy",
        "warning",
        "GPU 3 runs 30 % slower than its peers, SM 1.39 of 1.98 GHz, 61 of 87 °C",
        {"sm_clock_mhz": 1390},
        [{"sm_clock_mhz": 1700}, {"sm_clock_mhz": 1390, "busy": 0.6}, {"sm_clock_mhz": 1390, "name": "NVIDIA H200"}],
        hold_s=60.0,
    ),
    Case(
        "gpu.temp.margin",
        "warning",
        "GPU 3 at 83 °C: 4 °C below slowdown",
        {"temperature_c": 83.0, "temperature_margin_c": 4.0, "power_w": 690.0},
        [{"temperature_margin_c": 6.0}, {"temperature_margin_c": 0.0}, {"temperature_margin_c": -20.0}],
        hold_s=60.0,
    ),
    Case(
        "gpu.temp.margin",
        "warning",
        "GPU 3 at 84 °C: 3 °C below slowdown",
        {"temperature_c": 84.0, "temperature_margin_c": None, "power_w": 700.0},
        [{"temperature_margin_c": None}, {"temperature_margin_c": None, "temperature_slowdown_c": None}],
        hold_s=60.0,
    ),
    Case(
        "gpu.temp.margin",
        "warning",
        "GPU 3 at 91 °C: 4 °C above its slowdown temperature",
        {"temperature_c": 91.0, "temperature_margin_c": None, "power_w": 700.0},
    ),
    Case(
        "gpu.temp.margin",
        "warning",
        "GPU 3 at 91 °C: 4 °C above its slowdown temperature",
        {"temperature_c": 91.0, "temperature_margin_c": -4.0, "power_w": 700.0},
    ),
    Case(
        "gpu.temp.margin",
        "warning",
        "GPU 3 at 91 °C: 4 °C above its slowdown temperature",
        {"temperature_c": 91.0, "temperature_margin_c": 9.0, "power_w": 700.0},  # one of the two tells
        [{"temperature_margin_c": -1.0}],
    ),
    Case(
        "gpu.temp.hbm",
        "warning",
        "GPU 3: HBM at 90 °C, 2 °C above its limit",
        {"memory_temperature_c": 90.0, "memory_temperature_max_c": None, "memory_temperature_margin_c": -2.0},
        [{"memory_temperature_max_c": None, "memory_temperature_margin_c": 3.0}],
    ),
    Case(
        "gpu.temp.hbm",
        "warning",
        "GPU 3: HBM at 96 °C, its limit is 95 °C",
        {"memory_temperature_c": 96.0},
        [{"memory_temperature_c": 95.0}, {"memory_temperature_c": 96.0, "memory_temperature_max_c": None}],
    ),
    Case(
        "gpu.temp.peer",
        "warning",
        "GPU 3 runs 14 °C hotter than its siblings at the same load",
        {"temperature_c": 75.0},
        [{"temperature_c": 72.0}, {"temperature_c": 75.0, "power_w": 710.0}, {"temperature_c": 75.0, "power_w": None}],
        hold_s=60.0,
    ),
    Case(
        "gpu.ecc.dbe_volatile",
        "critical",
        "GPU 3: 2 uncorrectable memory errors since its last reset",
        {"ecc": {"uncorrected_volatile": 2}},
        [{"ecc": {"uncorrected_aggregate": 2}}, {"ecc": {"uncorrected_volatile": None}}],
    ),
    Case(
        "gpu.ecc.sram_threshold",
        "critical",
        "GPU 3: SRAM errors passed NVIDIA's RMA limit",
        {"ecc": {"sram_threshold_exceeded": True, "sram_uncorrected_aggregate": 7}},
        [{"ecc": {"sram_threshold_exceeded": None}}],
    ),
    Case(
        "gpu.ecc.sram_aggregate",
        "warning",
        "GPU 3: 5 lifetime SRAM errors",
        {"ecc": {"sram_uncorrected_aggregate": 5}},
    ),
    Case(
        "gpu.ecc.sram_aggregate",
        "info",
        "GPU 3: 1 lifetime SRAM error",
        {"ecc": {"sram_uncorrected_aggregate": 1}},
    ),
    Case("gpu.ecc.off", "warning", "ECC is off on GPU 3", {"ecc": {"enabled": False, "enabled_pending": False}}),
    Case(
        "gpu.ecc.off",
        "info",
        "ECC is off on GPU 3",
        {"name": "NVIDIA GeForce RTX 4090", "ecc": {"enabled": False, "enabled_pending": False}},
        [{"ecc": {"enabled": None, "enabled_pending": None}}],
    ),
    Case("gpu.ecc.off", "warning", "ECC of GPU 3 goes off at its next reset", {"ecc": {"enabled_pending": False}}),
    Case(
        "gpu.remap.pending",
        "warning",
        "Row remap pending on GPU 3",
        {"remap": {"pending": True}},
        [{"remap": {"pending": None}}],
        action="finish the job, then: sudo nvidia-smi -r -i 3",
    ),
    Case(
        "gpu.remap.pending",
        "warning",
        "Repair of a memory channel or TPC pending on GPU 3",
        {"remap": {"repair_pending": True}},
    ),
    Case(
        "gpu.remap.failed",
        "critical",
        "Row remap failed on GPU 3: memory cannot be repaired",
        {"remap": {"failed": True, "pending": True, "banks": {"none": 1}}},
    ),
    Case(
        "gpu.remap.banks",
        "critical",
        "GPU 3: 2 memory banks without spare rows",
        {"remap": {"banks": {"none": 2, "low": 1}}},
        [{"remap": {"banks": {"partial": 40}}}],
    ),
    Case("gpu.remap.banks", "warning", "GPU 3: 1 memory bank with few spare rows", {"remap": {"banks": {"low": 1}}}),
    Case(
        "gpu.remap.count",
        "warning",
        "GPU 3: 512 rows remapped for uncorrectable errors",
        {"remap": {"uncorrected": 512}},
        [{"remap": {"uncorrected": 511}}, {"remap": {"corrected": 600}}],
    ),
    Case(
        "gpu.pages.retired",
        "critical",
        "GPU 3: 63 pages retired",
        {"retired_pages": 63},
        [{"retired_pages": 62, "retired_pages_double_bit": 14}, {"retired_pages_double_bit": 20}],
    ),
    Case(
        "gpu.pages.retired",
        "warning",
        "GPU 3: page retirement pending",
        {"retired_pages": 3, "retired_pages_pending": True},
    ),
    Case(
        "gpu.recovery",
        "critical",
        "GPU 3: the driver asks for: GPU reset",
        {"recovery_action": "gpu_reset"},
        [{"recovery_action": None}],
    ),
    Case(
        "gpu.recovery",
        "critical",
        "GPU 3: the driver asks for: node reboot",
        {"recovery_action": "node_reboot"},
        action="drain and reboot the node",
    ),
    Case(
        "gpu.recovery",
        "warning",
        "GPU 3: the driver asks for: drain of peer-to-peer traffic",
        {"recovery_action": "drain_p2p"},
    ),
    Case("gpu.recovery", "critical", "GPU 3: the driver asks for: action 9", {"recovery_action": "action_9"}),
    Case(
        "gpu.persistence",
        "info",
        "Persistence off on GPU 3: slow start, lost counters",
        {"persistence": False},
        [{"persistence": None}],
    ),
    Case(
        "gpu.compute_mode",
        "warning",
        "GPU 3 is in Prohibited compute mode: no job can start on it",
        {"compute_mode": "prohibited"},
        [{"compute_mode": "exclusive_process"}],
    ),
    Case(
        "gpu.mig",
        "warning",
        "GPU 3 goes into MIG mode at its next reset",
        {"mig_pending": True},
        [{"mig_enabled": None, "mig_pending": None}],
        hold_s=30.0,
    ),
    Case(
        "gpu.mig",
        "warning",
        "GPU 3 is in MIG mode without instances: no job can run on it",
        {"mig_enabled": True, "mig_pending": True},
        [
            {"mig_enabled": True, "mig_pending": True, "mig_instances": [MigInstance(0)]},
            {"mig_enabled": True, "mig_pending": True, "state": "lost"},
        ],
        hold_s=30.0,
        action="sudo nvidia-smi mig -i 3 -cgi PROFILE -C; or leave MIG mode: sudo nvidia-smi -i 3 -mig 0",
    ),
    Case(
        "gpu.power.zero",
        "warning",
        "GPU 3 reports 99 % busy at 0 W: no job can run there",
        {"busy": 0.99, "power_w": 0.0},
        [{"busy": 0.0, "power_w": 0.0}, {"busy": 0.99, "power_w": None}, {"busy": None, "power_w": 0.0}],
        hold_s=10.0,
    ),
    Case(
        "gpu.power.zero",
        "warning",
        "GPU 3 reports 100 % busy at 0 MHz: no job can run there",
        {"busy": 1.0, "power_w": None, "sm_clock_mhz": 0},
        [{"busy": 1.0, "sm_clock_mhz": None}],
        hold_s=10.0,
    ),
    Case(
        "gpu.mig",
        "warning",
        "GPU 3 leaves MIG mode at its next reset",
        {"mig_enabled": True, "mig_pending": False},
        hold_s=30.0,
    ),
    Case(
        "gpu.ghost_mem",
        "warning",
        "71 GiB on GPU 3 used by no visible process",
        {"processes": []},
        [
            {"processes": [], "memory_used_bytes": 400 * 1024**2},
            {"processes": None},
            {"processes": [], "memory_used_bytes": None},
        ],
        hold_s=30.0,
    ),
    Case(
        "gpu.driver",
        "warning",
        "GPU 3 has VBIOS 96.00.74.00.01, 7 beside it 96.00.99.00.01",
        {"vbios": "96.00.74.00.01"},
        [{"vbios": "96.00.74.00.01", "name": "NVIDIA H200"}, {"vbios": None}],
    ),
    Case("gpu.error", "critical", "GPU 3: Unknown Error", {"state": "error", "error": "Unknown Error"}),
]
_NAMES = [f"{case.id} {number}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_it_fires_after_its_hold(case: Case) -> None:
    before = [] if not case.hold_s else [node_h100(1000.0 + at, {3: case.bad}, case.load) for at in _until(case.hold_s)]
    assert judged(before, "gpu.") == []
    (finding,) = judged([*before, node_h100(1000.0 + case.hold_s, {3: case.bad}, case.load)], "gpu.")
    assert (finding.id, finding.severity, finding.message) == (case.id, case.severity, case.message)
    assert finding.subject == "GPU 3"
    assert finding.until is None
    assert finding.action
    assert case.action in ("", finding.action)


@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_what_looks_like_it_is_silent(case: Case) -> None:
    for fine in case.fine:
        times = [1000.0 + at for at in range(0, int(case.hold_s) + 40, 10)]
        found = judged([node_h100(at, {3: fine}, case.load) for at in times], case.id)
        assert found == [], fine


@pytest.mark.parametrize("case", [case for case in CASES if case.hold_s], ids=lambda case: case.id)
def test_it_ends_and_a_short_burst_is_nothing(case: Case) -> None:
    """Bridged for three times the hold; an end is the last time that it was seen."""
    end, clear_s = 1000.0 + 2 * case.hold_s, 3 * case.hold_s
    times = [1000.0 + case.hold_s * step / 2 for step in range(16)]
    (finding,) = judged([node_h100(at, {3: case.bad} if at <= end else {}, case.load) for at in times], "gpu.")
    assert (finding.id, finding.since, finding.until) == (case.id, 1000.0, end)
    bridged = [at for at in times if at < end + clear_s]
    (finding,) = judged([node_h100(at, {3: case.bad} if at <= end else {}, case.load) for at in bridged], "gpu.")
    assert finding.until is None
    burst = [node_h100(at, {3: case.bad} if at == times[4] else {}, case.load) for at in times]
    assert judged(burst, "gpu.") == []


def _until(hold_s: float) -> list[float]:
    step_s = hold_s / 5
    return [step_s * step for step in range(5)]


def test_clocks_pinned_everywhere_are_one_line_of_context() -> None:
    pinned = {"throttle_reasons": ["applications_clocks"], "sm_clock_mhz": 1410}
    (finding,) = judged([node_h100(1000.0 + at, dict.fromkeys(range(8), pinned)) for at in (0, 10)], "gpu.")
    assert (finding.severity, finding.subject) == ("info", "all 8 GPUs")
    assert finding.message == "Clocks pinned on all 8 GPUs"


def test_correctable_errors_count_by_their_growth() -> None:
    def at(time: float, count: int) -> Any:
        return node_h100(time, {3: {"ecc": {"corrected_aggregate": count}}})

    slow = [at(1000.0 + 600 * step, 50_000 + 16 * step) for step in range(20)]
    assert judged(slow, "gpu.") == []
    (finding,) = judged([at(1000.0, 50_000), at(1600.0, 50_060), at(2200.0, 50_130)], "gpu.")
    assert (finding.id, finding.severity) == ("gpu.ecc.sbe_rate", "warning")
    assert finding.message == "Correctable errors climbing on GPU 3: 130 in 20 min"
    volatile = [
        node_h100(time, {3: {"ecc": {"corrected_aggregate": None, "corrected_volatile": count}}})
        for time, count in ((1000.0, 7), (1600.0, 150))
    ]
    assert [one.id for one in judged(volatile, "gpu.")] == ["gpu.ecc.sbe_rate"]


def test_double_bit_pages_count_by_their_growth() -> None:
    def at(time: float, pages: int) -> Any:
        return node_h100(time, {3: {"retired_pages": 20, "retired_pages_double_bit": pages}})

    assert judged([at(1000.0, 16), at(5000.0, 17)], "gpu.") == []
    (finding,) = judged([at(1000.0, 16), at(5000.0, 17), at(90_000.0, 18)], "gpu.")
    assert finding.message == "GPU 3: 18 pages retired for double bit errors, 2 of them this week"
    assert finding.severity == "critical"


def test_a_dead_process_holds_memory() -> None:
    dead = rank(3, rank=None, state="Z", gpus=[])

    def at(time: float) -> Any:
        ranks = [rank(index, time) for index in range(8) if index != 3]
        return node_h100(time, {3: {"processes": [GpuProcess(dead.pid, 71 * GIB)]}}, ranks=[*ranks, dead])

    assert judged([at(1000.0)], "gpu.") == []
    (finding,) = judged([at(1000.0), at(1010.0)], "gpu.")
    assert (finding.id, finding.message) == ("gpu.orphan", "Dead process holds 71 GiB on GPU 3")
    assert finding.evidence == [f"state Z (zombie): pid {dead.pid}"]
    reaped = [node_h100(time, ranks=[dead], gpus={3: {"processes": []}, 2: {}}) for time in (1000.0, 1010.0)]
    assert judged(reaped, "gpu.") == []


def test_a_lemon_is_known_by_uuid_or_serial() -> None:
    asked = Expectations(lemons={"1653823000003": "Xid 79, 3 Nov", "GPU-5": "", "GPU-77": "fans"})
    third, fifth = judged([node_h100(1000.0)], "gpu.", asked=asked)
    assert third.message == "GPU 3: you had this broken GPU before (Xid 79, 3 Nov)"
    assert (fifth.subject, fifth.severity) == ("GPU 5", "warning")


def test_a_simulation_has_no_ghosts() -> None:
    ghost = {3: {"processes": []}}
    assert judged([node_h100(1000.0 + at, ghost, simulated=True) for at in (0, 40)], "gpu.") == []
    assert judged([node_h100(1000.0 + at, ghost, host={"is_confined": True}) for at in (0, 40)], "gpu.") == []
    mig = {3: {"processes": [], "mig_enabled": True, "mig_pending": True, "mig_instances": [MigInstance(0)]}}
    assert judged([node_h100(1000.0 + at, mig) for at in (0, 40)], "gpu.") == []


def test_nothing_known_is_nothing_wrong() -> None:
    empty = [
        sample(1000.0 + at, [type(node_h100(0.0).gpus[0])(index) for index in range(8)]) for at in range(0, 90, 10)
    ]
    assert judged(empty, "gpu.", "nvml.") == []
