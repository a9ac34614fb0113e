"""A mistake in one rule costs that rule: it is said once, and everything else is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn

import pytest

from mltop.probes.investigate.diagnosis import Diagnosis
from mltop.probes.judge.health.fleet import Health, JobHealth
from mltop.probes.judge.health.job.whole_job import facts_of_ranks
from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.judge.health.registry import JOB_RULES, READERS, RULES, Readers
from mltop.probes.judge.health.rule import FAILED, Rule
from mltop.probes.model import Finding, Sample
from mltop.probes.model.news.judged import RankPast
from mltop.probes.reach.view import FleetView
from mltop.tui.app.judging import HealthWatch
from mltop.tui.commands import rules
from tests.builders.evaluated import evaluate
from tests.builders.health_samples import node_h100
from tests.tui.fake_views import fleet

DBE = {3: {"ecc": {"uncorrected_volatile": 2}}}


def broken(*_: Any) -> NoReturn:
    raise KeyError("7")


def in_the_middle(_: Moment) -> Iterator[Any]:
    yield from ()
    raise ValueError("no such place")


def failing(rule_id: str, check: Any = broken) -> tuple[Rule, ...]:
    return tuple(replace(rule, check=check) if rule.id == rule_id else rule for rule in RULES)


def told(found: Iterable[Finding]) -> list[tuple[str, str, str]]:
    return [(one.id, one.subject, one.message) for one in found]


@cache
def two_nodes() -> list[Sample]:
    return [node_h100(1000.0 + at, DBE, node=node) for at in range(20) for node in ("n1", "n2")]


@pytest.mark.parametrize("check", [broken, in_the_middle])
@pytest.mark.parametrize("rule_id", [rule.id for rule in RULES[::7]])
def test_one_rule_that_fails_costs_its_own_answer(rule_id: str, check: Any) -> None:
    found = evaluate(two_nodes(), failing(rule_id, check))
    failed = [one for one in found if one.id == FAILED]
    assert [(one.node, one.subject, one.severity, one.since) for one in failed] == [
        ("n1", f"rule {rule_id}", "warning", 1000.0),
        ("n2", f"rule {rule_id}", "warning", 1000.0),
    ]
    assert {one.action for one in failed} == {"please report this"}
    assert all(one.message.startswith(f"rule {rule_id} failed: ") for one in failed)
    if rule_id != "gpu.ecc.dbe_volatile":
        assert {one.node for one in found if one.id == "gpu.ecc.dbe_volatile"} == {"n1", "n2"}


def test_what_a_rule_said_before_it_failed_does_not_stay_for_ever_and_it_may_recover() -> None:
    ill = [False]

    def check(moment: Moment) -> Iterator[Any]:
        if ill[0]:
            raise KeyError("7")
        return iter(next(rule for rule in RULES if rule.id == "gpu.ecc.dbe_volatile").check(moment))

    health = Health(rules=failing("gpu.ecc.dbe_volatile", check), eager=True)
    seen = []
    for at in range(30):
        ill[0] = 10 <= at < 20
        health.see(node_h100(1000.0 + at, DBE))
        seen.append({one.id for one in health.findings() if one.until is None})
    assert seen[5] == {"gpu.ecc.dbe_volatile"}
    assert FAILED in seen[15]
    assert seen[25] == {"gpu.ecc.dbe_volatile"}


@pytest.mark.parametrize("kind", Readers._fields)
def test_what_rules_remember_may_fail_too(kind: str) -> None:
    readers = READERS._replace(**{kind: (broken, *getattr(READERS, kind))})
    node = NodeJudge("n1", readers=readers)
    for at in range(20):
        node.see(node_h100(1000.0 + at, DBE))
    found = node.findings()
    assert [one for one in found if one.id == "gpu.ecc.dbe_volatile"]
    (failed,) = [one for one in found if one.id == FAILED]
    assert "KeyError: '7'" in failed.message


def test_a_rule_about_jobs_that_fails_costs_its_answer_about_that_job() -> None:
    def check(moment: Any) -> Iterator[Any]:
        if "bad" in moment.name:
            raise KeyError("7")
        return iter(next(rule for rule in JOB_RULES if rule.id == "job.hang").check(moment))

    health = Health(eager=True)
    health._jobs = JobHealth([replace(rule, check=check) if rule.id == "job.hang" else rule for rule in JOB_RULES])
    for at in range(0, 400, 5):
        for node, job in (("n1", "good"), ("n2", "bad")):
            sample = node_h100(1000.0 + at, load="spinning", node=node)
            for rank in sample.ranks:
                rank.job, rank.world_size = job, 8
            for gpu in sample.gpus:
                gpu.nvlink.rx_bytes_per_s = gpu.nvlink.tx_bytes_per_s = 0.0
            for link in sample.links:
                link.rx_bytes_per_s = link.tx_bytes_per_s = 0.0
            health.see(sample)
    found = [one for one in health.of_jobs() if one.until is None]
    assert {(one.id, one.node) for one in found if one.id in ("job.hang", FAILED)} == {
        ("job.hang", "n1"),
        (FAILED, "n2"),
    }
    (failed,) = [one for one in found if one.id == FAILED]
    assert failed.message == "rule job.hang failed: KeyError: '7'"


def test_ranks_that_cannot_be_read_for_their_job_are_told() -> None:
    health = Health(eager=True)
    for at in range(20):
        for node in ("n1", "n2"):
            sample = node_h100(1000.0 + at, node=node)
            if node == "n2":
                sample.ranks[0].read_syscalls = "7"  # type: ignore[assignment]  # what no decoder lets through
            health.see(sample)
    (failed,) = [one for one in health.findings() if one.id == FAILED]
    assert (failed.node, failed.subject, failed.until) == ("n2", "what jobs are judged by", None)
    assert "TypeError" in failed.message


def test_ranks_are_read_again_for_their_job_when_something_changed_or_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Sample] = []

    def facts(sample: Sample, pasts: Iterable[Any]) -> tuple[Any, ...]:
        read.append(sample)
        if len(read) == 1:
            raise KeyError("7")
        return facts_of_ranks(sample, pasts)

    monkeypatch.setattr("mltop.probes.judge.health.fleet.facts_of_ranks", facts)
    jobs, first, second = JobHealth(), node_h100(1000.0), node_h100(1001.0)
    for at in range(3):
        jobs.see(first, [], 1000.0 + at)
    assert [one.subject for one in jobs.findings()] == ["what jobs are judged by"]
    assert read == [first, first], "what failed is tried again"
    jobs.see(first, [RankPast(first.ranks[0].pid, moves="io")], 1003.0)
    jobs.see(second, [], 1004.0)
    jobs.see(second, [], 1005.0)
    assert read[2:] == [first, second] and jobs.findings() == ()


def test_a_check_with_a_rule_that_failed_is_not_fine() -> None:
    """What could not be judged is unknown: exit 3, and not a warning of the machine."""
    health = Health(rules=failing("gpu.lost"))
    health.see(node_h100(1000.0))
    health.see(node_h100(1001.0))
    checked = rules.judged(Diagnosis(health), [])
    (failed,) = [one for one in checked.unknown if one.what == "rule gpu.lost"]
    assert (failed.why, failed.fix) == ("rule gpu.lost failed: KeyError: '7'", "please report this")
    assert checked.findings == []
    assert checked.exit == 3


def test_a_node_that_cannot_be_judged_at_all_leaves_the_others_their_findings() -> None:
    """Also what is no rule's: the screen goes on, and says so of that node."""
    views = [fleet(tick, nodes=9) for tick in range(3)]
    watch = HealthWatch()
    watch._allowed_s = 10.0
    healthy = watch.findings(views[0])
    for view in views:
        sample = view.nodes[0].sample
        assert isinstance(sample, Sample)
        sample.kernel_events = 7  # type: ignore[assignment]  # what no decoder lets through
    watch = HealthWatch()
    found: tuple[Finding, ...] = ()
    for view in views:
        watch._allowed_s = 10.0
        found = watch.findings(FleetView(view.taken_at, view.nodes, view.serial))
    (failed,) = [one for one in found if one.id == FAILED and one.subject == "health rules"]
    assert (failed.node, failed.action) == ("node001", "please report this")
    assert {one.id for one in healthy} <= {one.id for one in found}
