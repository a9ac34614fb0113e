"""A healthy node gives no warning, whatever it does for hours; and every rule says what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.gpu import clocks, driver, ecc, inventory, processes, temperature, xids
from mltop.probes.judge.health.registry import READERS, RULES, rules_of
from mltop.probes.judge.health.rule import Expectations, Rule
from mltop.probes.model import GpuProcess, MigInstance, Sample
from tests.builders.health_samples import changed, gpu, judged, node_h100, sample, xid

OF_GPUS = rules_of(driver, inventory, xids, ecc, clocks, temperature, processes)
OWN = ("gpu.", "nvml.")
IDS = [
    "gpu.clock.low_busy",
    "gpu.compute_mode",
    "gpu.driver",
    "gpu.ecc.dbe_volatile",
    "gpu.ecc.off",
    "gpu.ecc.sbe_rate",
    "gpu.ecc.sram_aggregate",
    "gpu.ecc.sram_threshold",
    "gpu.error",
    "gpu.ghost_mem",
    "gpu.idle_memory",
    "gpu.leftover",
    "gpu.lemon",
    "gpu.lost",
    "gpu.mig",
    "gpu.missing",
    "gpu.orphan",
    "gpu.pages.retired",
    "gpu.persistence",
    "gpu.power.limit_low",
    "gpu.power.zero",
    "gpu.recovery",
    "gpu.remap.banks",
    "gpu.remap.count",
    "gpu.remap.failed",
    "gpu.remap.pending",
    "gpu.sxid",
    "gpu.temp.hbm",
    "gpu.temp.margin",
    "gpu.temp.peer",
    "gpu.throttle.hw_slowdown",
    "gpu.throttle.hw_thermal",
    "gpu.throttle.power_brake",
    "gpu.throttle.power_cap",
    "gpu.throttle.sw_thermal",
    "gpu.throttle.user_clocks",
    "gpu.xid.app",
    "gpu.xid.hw",
    "gpu.xid.repeat",
    "gpu.xid.warn",
    "nvml.stuck",
]
HOUR = [100_000.0 + at for at in range(0, 3600, 10)]


def _checkpointing(at: float) -> Sample:
    """90 s of every 600 all ranks write a checkpoint."""
    return node_h100(at, load="checkpoint" if at % 600 < 90 else "training")


def _old_troubles(at: float) -> Sample:
    """Counters that months have left behind: none of them moves."""
    old = {"ecc": {"corrected_aggregate": 48_221, "uncorrected_aggregate": 3}, "remap": {"uncorrected": 2}}
    return node_h100(at, {3: old})


def _uneven_work(at: float) -> Sample:
    """A pipeline's heavy stage runs at its power limit, the others wait in a collective at full clock."""
    return node_h100(at, load="spinning", loads={5: "capped"})


def _two_jobs(at: float) -> Sample:
    """Half of the node computes at its power limit, the other half runs a light job at full clock."""
    whole = node_h100(at, load="capped", gpus={index: {"sm_clock_mhz": 1500} for index in range(4)})
    whole.gpus[4:] = [gpu(index, "training", at) for index in range(4, 8)]
    for rank in whole.ranks[4:]:
        rank.job = "1043"
    return whole


def _starting_job(at: float) -> Sample:
    """Memory is taken some seconds before the list of processes names its owner, every 5 minutes anew."""
    whole = node_h100(at)
    for one in whole.gpus if at % 300 < 20 else ():
        one.processes = []
    return whole


def _rows_of_different_air(at: float) -> Sample:
    return node_h100(at, {index: {"temperature_c": 70.0, "memory_temperature_c": 78.0} for index in (4, 5, 6, 7)})


def _in_a_container(at: float) -> Sample:
    """Four of eight GPUs were given to it; the kernel's PCI list shows all, and processes of others are hidden."""
    whole = node_h100(at, host={"is_confined": True})
    whole.gpus = [changed(one, {"processes": []}) for one in whole.gpus[:4]]
    whole.ranks = whole.ranks[:4]
    return whole


def _passed_through(at: float) -> Sample:
    """Two GPUs belong to a virtual machine."""
    whole = node_h100(at)
    whole.gpus, whole.ranks = whole.gpus[:6], whole.ranks[:6]
    for device in whole.pci:
        if device.bus_id in ("0000:d1:00.0", "0000:df:00.0"):
            device.driver = "vfio-pci"
    return whole


def _in_mig_mode(at: float) -> Sample:
    mig = {"mig_enabled": True, "mig_pending": True, "busy": None, "processes": [], "throttle_reasons": []}
    mig |= {"mig_instances": [MigInstance(0, gpu_instance=1)]}
    return node_h100(at, dict.fromkeys(range(8), mig))


def _cooling_down(at: float) -> Sample:
    """One GPU's job ends every 5 minutes: it stays warm for some seconds at the power of an idle one."""
    since = at % 300
    after = {"temperature_c": round(31.0 + 32.0 * 2.718 ** (-since / 20)), "power_w": 70.0}
    return node_h100(at, {2: after}, load="idle")


SCENES: dict[str, Callable[[float], Sample]] = {
    "training": node_h100,
    "capped": lambda at: node_h100(at, load="capped"),
    "idle": lambda at: node_h100(at, load="idle"),
    "spinning": lambda at: node_h100(at, load="spinning"),
    "checkpointing": _checkpointing,
    "old troubles": _old_troubles,
    "uneven work": _uneven_work,
    "two jobs": _two_jobs,
    "starting job": _starting_job,
    "rows": _rows_of_different_air,
    "container": _in_a_container,
    "passed through": _passed_through,
    "mig": _in_mig_mode,
    "cooling down": _cooling_down,
    "old xids": lambda at: node_h100(at, kernel_events=[xid(90_000.0, 79), xid(90_001.0, 45)]),
    "no gpus": lambda at: sample(at),
}


CHANGING = ("training", "checkpointing", "starting job", "cooling down")


@pytest.mark.parametrize("scene", SCENES)
def test_a_healthy_hour_says_nothing(scene: str) -> None:
    """With these rules alone: those about links and jobs have their own hours."""
    health = Health(rules=OF_GPUS)
    for at in HOUR if scene in CHANGING else HOUR[::3]:
        health.see(SCENES[scene](at))
        assert [one for one in health.findings() if not one.id.startswith("job.")] == []
    assert judged([SCENES[scene](HOUR[7])], *OWN) == []


def test_a_healthy_fleet_says_nothing() -> None:
    def fleet() -> Iterator[Sample]:
        for at in HOUR[:30]:
            for number in range(4):
                yield replace(node_h100(at + number, load="capped"), node=f"n{number}")

    assert judged(fleet(), *OWN, asked=Expectations(expect_gpus=8, lemons={"GPU-other": "Xid 79"})) == []


def test_a_live_view_in_which_a_gpu_comes_later_says_nothing() -> None:
    few = node_h100(100.0, pci=[])
    few.gpus, few.ranks = few.gpus[:6], few.ranks[:6]
    assert judged([few, node_h100(101.0), node_h100(102.0)], *OWN) == []


def test_all_rules_are_there() -> None:
    assert sorted(rule.id for rule in OF_GPUS) == sorted(IDS)
    assert {rule.id for rule in OF_GPUS} <= {rule.id for rule in RULES}
    assert ecc.counters in READERS.counters
    assert clocks.facts in READERS.facts
    assert driver.facts in READERS.facts


@pytest.mark.parametrize("rule", OF_GPUS, ids=lambda rule: rule.id)
def test_every_rule_says_what_it_means(rule: Rule) -> None:
    assert rule.meaning
    assert rule.threshold
    assert rule.source
    assert rule.action
    assert rule.needs or rule.id == "nvml.stuck"  # which is about a gap itself


def test_only_time_can_tell() -> None:
    patient = {rule.id for rule in OF_GPUS if not rule.eager}
    assert patient == {
        "gpu.clock.low_busy",
        "gpu.throttle.power_cap",
        "gpu.temp.peer",
        "gpu.temp.margin",
        "gpu.orphan",
        "gpu.ecc.sbe_rate",
        "nvml.stuck",
    }


def test_processes_that_are_not_known_are_not_none() -> None:
    """The scenes above would hide a rule that never fires: this is the same node with one thing wrong."""
    ghost = [node_h100(at, {2: {"processes": []}}) for at in HOUR[:5]]
    assert [one.id for one in judged(ghost, *OWN)] == ["gpu.ghost_mem"]
    unknown = [node_h100(at, {2: {"processes": None}}) for at in HOUR[:5]]
    assert judged(unknown, *OWN) == []
    mps = [node_h100(at, {2: {"processes": [GpuProcess(7, None, "mps")]}}) for at in HOUR[:5]]
    assert judged(mps, *OWN) == []
