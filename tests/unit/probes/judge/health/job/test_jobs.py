"""Rules about a job as a whole, over several nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.registry import JOB_RULES
from mltop.probes.model import Finding, Sample
from tests.builders.health_samples import gpu, links, rank, sample

NODES = 2
QUIET: dict[str, Any] = {"rx_bytes_per_s": 0.0, "tx_bytes_per_s": 0.0}
Changes = Callable[[int, float], Mapping[str, Any]]  # (rank, second) → its GPU's fields, "load", or its own ("rank")


def node(number: int, at: float, change: Changes, load: str) -> Sample:
    """Node ``number`` of a job of 16 ranks on two nodes."""
    gpus = []
    ranks = []
    for index in range(8):
        changes = dict(change(8 * number + index, at))
        its_load, own = changes.pop("load", load), changes.pop("rank", {})
        changes["nvlink"] = {"links": [], **changes.get("nvlink", {})}  # the sums stand beside them
        gpus.append(gpu(index, its_load, at, **changes))
        ranks.append(rank(index, at, rank=8 * number + index, world_size=8 * NODES, pid=5000 + index, **own))
    found = links(at, load)[:2]
    if load == "spinning":
        found = [type(one)(**{**vars(one), **QUIET}) for one in found]
    # No host and no PCI devices: of these no rule about a job knows anything.
    return sample(1000.0 + at, gpus, node=f"n{number}", ranks=ranks, links=found)


def watched(seconds: float, change: Changes, load: str = "training", step_s: float = 2.0) -> list[Finding]:
    """What the job's rules say at the end."""
    health = Health(rules=(), eager=True)
    for tick in range(int(seconds / step_s) + 1):
        for number in range(NODES):
            health.see(node(number, tick * step_s, change, load))
    own = {rule.id for rule in JOB_RULES}
    return [one for one in health.findings() if one.until is None and one.id in own]


def nothing(_: int, __: float) -> Mapping[str, Any]:
    return {}


def test_all_ranks_spin() -> None:
    (found,) = watched(130, nothing, "spinning")
    assert (found.id, found.severity, found.subject) == ("job.hang", "critical", "job 1042")
    assert found.message == 'job 1042: 16 GPUs 100 % "busy" at 130 W, no traffic: they wait in a collective'
    assert watched(100, nothing, "spinning") == [], "not yet"


@pytest.mark.parametrize(
    "well",
    [
        lambda number, _: {"tensor_active": 0.3} if number == 7 else {},
        lambda number, _: {"nvlink": {"rx_bytes_per_s": 2e9}} if number == 7 else {},
        lambda number, _: {"busy": 0.6} if number == 7 else {},
    ],
)
def test_a_job_in_which_something_moves_does_not_hang(well: Changes) -> None:
    assert [one for one in watched(140, well, "spinning") if one.id == "job.hang"] == []


STILL: dict[str, Any] = {"read_syscalls": 0, "write_syscalls": 0, "main_cpu_s": 0.0}


def test_one_rank_that_never_came() -> None:
    (found,) = watched(40, lambda number, _: {"load": "idle", "rank": STILL} if number == 11 else {}, "spinning")
    assert (found.id, found.node, found.subject) == ("job.odd_rank", "n1", "rank 11")
    assert "leaves its GPU idle while 15 others wait" in found.message
    (stuck,) = watched(40, lambda number, _: {"rank": {"state": "D", **STILL}} if number == 3 else {}, "spinning")
    assert (stuck.node, stuck.subject) == ("n0", "rank 3")
    several = watched(40, lambda number, _: {"load": "idle"} if number % 4 == 0 else {}, "spinning")
    assert several == [], "four of sixteen are no exception"


def test_a_rank_that_works_while_the_others_wait_is_not_accused() -> None:
    saving = watched(90, lambda number, _: {"load": "idle"} if number == 0 else {}, "spinning")
    assert [(one.severity, "reads or writes" in one.message) for one in saving] == [("info", True)]
    no_io = {"read_syscalls": 0, "write_syscalls": 0}
    loop = watched(40, lambda number, _: {"load": "idle", "rank": no_io} if number == 0 else {}, "spinning")
    assert [(one.severity, "takes a core" in one.message) for one in loop] == [("warning", True)]


def test_work_without_tensor_cores_is_no_hang() -> None:
    fp32 = {"busy": 1.0, "tensor_active": 0.0, "power_w": 610.0}
    assert watched(140, lambda _, __: fp32, "spinning") == []


def test_jobs_of_one_name_of_two_users_are_two_jobs() -> None:
    """One hangs while the other works: together they would neither hang nor work."""
    health = Health(rules=(), eager=True)
    for at in range(0, 140, 2):
        for number, (uid, user, load) in enumerate(((1000, "ada", "spinning"), (1001, "bob", "training"))):
            one = node(0, float(at), nothing, load)
            one.node = f"n{number}"
            for each in one.ranks:
                each.uid, each.user, each.world_size, each.rank = uid, user, 8, (each.rank or 0) % 8
            health.see(one)
    (found,) = [one for one in health.findings() if one.id.startswith("job.")]
    assert (found.id, found.node, found.subject) == ("job.hang", "n0", "job 1042 of ada")


def test_a_stranger_who_claims_a_jobs_ranks_hides_none_of_them() -> None:
    """Idle ranks of the same address and numbers keep nobody's job from being seen to hang."""
    health = Health(rules=(), eager=True)
    for at in range(0, 140, 2):
        one = node(0, float(at), nothing, "spinning")
        for each in one.ranks:
            each.uid, each.user, each.world_size = 1000, "ada", 8
        claimed = [replace(each, pid=each.pid + 1000, uid=1001, user="eve", gpus=[], state="S") for each in one.ranks]
        one.ranks += claimed
        health.see(one)
    found = [one for one in health.findings() if one.id == "job.hang"]
    assert [one.subject for one in found] == ["job 1042 of ada"]


def test_a_slow_clock_holds_the_others_up() -> None:
    slow = {"sm_clock_mhz": 1200}
    (found,) = watched(320, lambda number, _: slow if number == 5 else {})
    assert (found.id, found.severity, found.node, found.subject) == ("job.straggler", "warning", "n0", "rank 5")
    assert "1200 MHz, the others at 1980" in found.message
    assert watched(320, lambda number, _: {"sm_clock_mhz": 1750} if number == 5 else {}) == []


def test_the_power_of_all_but_one_dips() -> None:
    def dips(number: int, at: float) -> Mapping[str, Any]:
        return {"power_w": 560.0 if number == 9 or int(at) % 10 < 6 else 250.0}

    (found,) = watched(640, dips)
    assert (found.id, found.subject) == ("job.straggler", "rank 9")
    assert watched(640, lambda _, at: {"power_w": 560.0 if int(at) % 10 < 6 else 250.0}) == [], "all together"


def starving(at: float, workers: float) -> Mapping[str, Any]:
    idle = int(at) % 30 < 10
    return {"load": "checkpoint" if idle else "training", "rank": {"children_cpu_fraction": workers}}


def test_gpus_that_wait_for_data() -> None:
    (found,) = watched(360, lambda _, at: starving(at, 4.0))
    assert (found.id, found.subject) == ("job.starved", "job 1042")
    assert "GPUs wait for data 32 % of the time" in found.message
    assert watched(360, lambda _, at: starving(at, 0.1)) == [], "the workers have nothing to do"


def test_a_checkpoint_of_90_seconds_is_healthy() -> None:
    def writes(_: int, at: float) -> Mapping[str, Any]:
        return {"load": "checkpoint" if 200 <= at < 290 else "training", "rank": {"children_cpu_fraction": 4.0}}

    assert watched(400, writes) == []


def test_single_ranks_that_pause_in_turn() -> None:
    def pauses(number: int, at: float) -> Mapping[str, Any]:
        alone = {"cpu_fraction": 1.0, "children_cpu_fraction": 0.0}
        if int(at) // 4 % 16 == number:
            return {"load": "checkpoint", "rank": alone}
        return {"load": "spinning", "rank": {"children_cpu_fraction": 0.0}}

    found = watched(500, pauses)
    assert [(one.id, one.severity) for one in found] == [("job.gc", "info")]
    assert "garbage collector" in found[0].message


@pytest.mark.parametrize("load", ["training", "capped", "idle"])
def test_a_healthy_job_has_nothing_to_say(load: str) -> None:
    assert watched(700, nothing, load, step_s=5.0) == []


def test_a_node_that_is_not_heard_of_any_more_says_nothing_of_the_job() -> None:
    health = Health(rules=(), eager=True)
    for tick in range(100):
        health.see(node(0, 2.0 * tick, nothing, "spinning"))
        if tick < 20:
            health.see(node(1, 2.0 * tick, nothing, "spinning"))
    assert [one.id for one in health.of_jobs()] == [], "eight of sixteen ranks are no whole job"


def test_a_hang_that_ends_has_an_end() -> None:
    health = Health(rules=(), eager=True)
    for tick in range(300):
        for number in range(NODES):
            health.see(node(number, 2.0 * tick, nothing, "spinning" if tick < 100 else "training"))
    found = [one for one in health.findings() if one.id == "job.hang"]
    assert [one.until is None for one in found] == [False]


@pytest.mark.parametrize("rule", JOB_RULES, ids=lambda rule: rule.id)
def test_every_rule_is_documented(rule: Any) -> None:
    assert rule.meaning and rule.threshold and rule.source and rule.action
