"""Fabric rules: Fabric Manager, IMEX, and GPUs that have not joined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.link import fabric
from mltop.probes.judge.health.registry import rules_of
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import Fabric, Gap, Nvlink, Sample
from tests.builders.health_links import MODULES, RULES, bare_gpu, board, judge, nvlinks, only, over, told
from tests.builders.health_samples import gpu, node_h100, rank, sample

RACK = "5f1c7c52-0b6e-4e0e-9d0e-2f0c3a1b4d5e"
NOT_JOINED = {"state": "in_progress", "health": None}


def _services(at: float, manager: str, **fields: Any) -> Sample:
    return board(at, host={"services": {"nvidia-fabricmanager": manager}, **fields.pop("host", {})}, **fields)


def _all(changes: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {index: {"fabric": changes} for index in range(8)}


def _to_switches() -> dict[int, dict[str, Any]]:
    no_fabric = {"state": None, "health": None}
    links = [replace(one, remote="switch") for one in nvlinks().links]
    return {index: {"fabric": no_fabric, "nvlink": {"links": links}} for index in range(8)}


# Fabric Manager


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (_services(0, "active"), None),
        (_services(0, "activating"), None),
        (_services(0, "inactive"), "Fabric Manager is down (inactive)"),
        (_services(0, "failed"), "Fabric Manager is down (failed)"),
        # The driver runs in a container, and so does its Fabric Manager: the GPUs are in the fabric.
        (_services(0, "absent"), None),
        (_services(0, "absent", gpus=_all(NOT_JOINED)), "Fabric Manager is not installed"),
        (_services(0, "failed", host={"uptime_s": 90.0}), None),  # just booted
        (_services(0, "inactive", pci=[]), None),  # no NVSwitch
        (board(0, host={"services": {}}), None),  # unknown
        # Switches that are not this machine's to see: NVLinks lead to them, or the driver speaks of a fabric.
        (_services(0, "failed", pci=[], gpus=_to_switches()), "Fabric Manager is down (failed)"),
        (_services(0, "failed", pci=[]), "Fabric Manager is down (failed)"),
        (_services(0, "inactive", pci=[], gpus=_all(NOT_JOINED)), "Fabric Manager is down (inactive)"),
        (_services(0, "inactive", pci=[], gpus=_to_switches()), None),  # its service VM has it
    ],
)
def test_the_manager(one: Sample, expected: str | None) -> None:
    found = [finding for finding in judge(one) if finding.id == "fabric.manager"]
    assert [finding.severity for finding in found] == ["critical"] * (expected is not None)
    assert expected is None or found[0].message.startswith(expected)


def test_a_manager_that_fails_where_no_switch_is_is_worth_knowing_only() -> None:
    """An image that has it runs on a machine with PCIe cards."""
    cards = {
        index: {"fabric": {"state": "not_supported", "health": None}, "nvlink": {"links": []}} for index in range(8)
    }
    finding = only(_services(0, "failed", pci=[], gpus=cards))
    assert (finding.id, finding.severity) == ("fabric.manager", "info")
    assert "needs none" in finding.message


def test_the_manager_explains_the_fabric() -> None:
    finding = only(_services(0, "failed", gpus=_all(NOT_JOINED)))
    assert finding.id == "fabric.manager"
    assert finding.folded[0] == "fabric.state all 8 GPUs"
    assert finding.evidence[0] == "0 of 8 GPUs are in the fabric"


def test_a_manager_that_keeps_stopping() -> None:
    def make(at: float, every: int) -> Sample:
        return _services(at, "failed" if at % every == 50 else "active")

    assert judge(*over(range(0, 500, 5), lambda at: make(at, 1000))) == []
    found = judge(*over(range(0, 500, 5), lambda at: make(at, 150)))
    assert [(one.id, one.message) for one in found] == [("fabric.manager", "Fabric Manager stopped 3 times in 10 min")]


def test_a_manager_that_comes_back_clears() -> None:
    found = only(*over(range(0, 120, 5), lambda at: _services(at, "failed" if 10 <= at <= 30 else "active")))
    assert (found.since, found.until) == (10, 30)


# GPUs in the fabric


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"state": "not_supported", "health": None}, None),
        ({"state": None, "health": None}, None),
        (NOT_JOINED, "GPU 3 has not joined the NVLink fabric (in progress)"),
        ({"state": "not_started", "health": None}, "GPU 3 has not joined the NVLink fabric (not started)"),
        ({"health": "unhealthy"}, "GPU 3: NVLink fabric is unhealthy"),
        (
            {"health": "limited", "problems": ["degraded_bandwidth"]},
            "GPU 3: NVLink fabric is limited: its bandwidth is degraded",
        ),
        (
            {"health": None, "problems": ["route_unhealthy"]},
            "GPU 3: NVLink fabric is unhealthy: its routes are unhealthy",
        ),
    ],
)
def test_a_gpu_in_the_fabric(changes: dict[str, Any], message: str | None) -> None:
    found = judge(board(0, {3: {"fabric": changes}}))
    assert [(one.severity, one.message) for one in found] == ([("critical", message)] if message else [])


def test_joining_takes_a_minute() -> None:
    def make(seconds: int) -> list[Sample]:
        return over(range(0, seconds + 1, 10), lambda at: board(at, _all(NOT_JOINED)))

    assert judge(*make(50)) == []
    assert only(*make(60)).message == "The NVLink fabric is not ready on all 8 GPUs"


def test_a_single_gpu_without_nvlinks_has_nothing_to_join() -> None:
    waiting = Fabric("in_progress")
    alone = sample(0, [gpu(0, fabric=waiting, nvlink=nvlinks(inactive=range(18)))])
    assert judge(alone) == []
    assert told(sample(0, [gpu(0, fabric=waiting)])) == [("critical", "fabric.state", "GPU 0")]
    assert judge(sample(0, [gpu(0, fabric=waiting, mig_enabled=True), gpu(1, nvlink=Nvlink())])) == []


# IMEX


def _rack(at: float, imex: str, busy: bool = False, name: str = "n1", uuid: str | None = RACK) -> Sample:
    gpus = [bare_gpu(index, fabric=Fabric("completed", "ok", [], 1, uuid), processes=[]) for index in range(2)]
    host = {"services": {"nvidia-imex": imex}}
    one = board(at, gpus=None, host=host, pci=[], node=name, ranks=[rank(0)] if busy else [])
    one.gpus = gpus
    return one


@pytest.mark.parametrize(
    ("one", "severities"),
    [
        (_rack(0, "active", busy=True), []),
        (_rack(0, "absent", busy=True), []),
        (_rack(0, "failed"), ["critical"]),
        (_rack(0, "inactive"), []),  # started for each job
        (_rack(0, "inactive", busy=True), ["warning"]),
        (_rack(0, "failed", busy=True, uuid=None), []),  # a node of its own
        (_rack(0, "failed", busy=True, uuid="00000000-0000-0000-0000-000000000000"), []),
    ],
)
def test_imex(one: Sample, severities: list[str]) -> None:
    assert [finding.severity for finding in judge(one)] == severities


def test_imex_that_ran_before_or_runs_on_like_nodes_is_missed() -> None:
    stopped = [_rack(0, "active", busy=True), *over(range(10, 40, 10), lambda at: _rack(at, "inactive", busy=True))]
    assert told(*stopped) == [("critical", "fabric.imex", "IMEX")]
    peers = [_rack(0, "active", name=f"n{number}") for number in (2, 3)]
    finding = only(*peers, _rack(0.5, "inactive"))
    assert (finding.node, finding.evidence[0]) == ("n1", "active on 2 of 3 like nodes")


# All rules about links


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_described(rule: Rule) -> None:
    assert rule.meaning and rule.threshold and rule.source and rule.needs
    assert rule.action
    assert rule.severity in ("info", "warning", "critical")


def test_every_module_has_rules_and_ids_are_unique() -> None:
    assert all(rules_of(module) for module in MODULES)
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids)) == 30


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        ("gpu.3.fabric", {"fabric.state"}),
        ("host.services", {"fabric.manager", "fabric.imex"}),
        ("gpu.3.nvlink", {"nvlink.inactive", "nvlink.speed", "nvlink.replay", "nvlink.crc"}),
        ("gpu.3.nvlink.errors", {"nvlink.replay", "nvlink.crc"}),
        ("gpu.3.pcie", {"pcie.width", "pcie.replay"}),
        ("pci.0000:9b:00.0", {"pcie.width", "pcie.replay", "pcie.limited"}),
        ("pci.acs", {"pcie.acs"}),
        ("host.modules", {"gdr.peermem"}),
        ("kernel_log", {"pcie.limited", "gdr.peermem", "ib.driver"}),
    ],
)
def test_what_cannot_be_read_makes_rules_unknown(what: str, rules: set[str]) -> None:
    (unknown,) = unknowns_of(node_h100(0, gaps=[Gap(what, "no permission")]), RULES)
    assert set(unknown.rules) == rules


def test_a_port_that_cannot_be_read_makes_the_rules_about_ports_unknown() -> None:
    (unknown,) = unknowns_of(node_h100(0, gaps=[Gap("links.mlx5_4", "Input/output error")]), RULES)
    assert {"ib.down", "ib.flap", "ib.ber", "eth.slow"} <= set(unknown.rules)
    assert not unknowns_of(
        node_h100(0, gaps=[Gap("gpu.0.fabric", "no NVSwitch", kind="unsupported")]), rules_of(fabric)
    )
