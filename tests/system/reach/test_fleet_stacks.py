"""`mltop stacks` over a real torch job of 16 ranks on 16 hosts, one of which hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import Hosts
from tests.hosts.host import Host
from tests.hosts.job import FleetJob
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
hosts = fixtures.hosts

CULPRIT = 11  # on h12


@pytest.fixture(scope="module")
def job(hosts: Hosts) -> Iterator[FleetJob]:
    with FleetJob(hosts, "slow_validation", CULPRIT) as running:
        running.wait_hung()
        yield running
    hosts.wait_clean()


def stacks(hosts: Hosts, *options: str) -> dict[str, Any]:
    """Exit code 0 when every node has answered, 3 otherwise."""
    done = hosts.mltop("stacks", "-w", hosts.pattern, "--json", *options, timeout_s=180, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (3 if report["not_answered"] else 0), done.stderr
    return report


def py_spy_copies(host: Host) -> list[str]:
    return [path.name for path in host.home.rglob("*py-spy*") if path.is_file()]


def agents(host: Host) -> list[str]:
    return [process.command for process in host.strangers() if "cases/train.py" not in process.command]


def test_the_rank_and_the_node_that_hang_are_named(hosts: Hosts, job: FleetJob) -> None:
    assert [py_spy_copies(host) for host in hosts] == [[]] * 16

    report = stacks(hosts, "--timeout", "90")
    assert report["not_answered"] == []
    assert [node["state"] for node in report["nodes"]] == ["live"] * 16
    (found,) = report["jobs"]
    assert found["world_size"] == 16
    verdict = found["verdict"]
    assert verdict["kind"] in ("hang", "suspect")  # for a minute it may be a validation
    assert [(c["rank"], c["node"]) for c in verdict["culprits"]] == [(CULPRIT, "h12")]
    assert "slow_validation" in verdict["culprits"][0]["where"]
    waiting = [c for c in found["classes"] if c["waiting_in"] == "all_reduce"]
    assert [(c["ranks"], c["count"]) for c in waiting] == [("0-10,12-15", 15)]
    assert all(len(py_spy_copies(host)) == 1 for host in hosts)
    for host in hosts:
        wait_until(lambda host=host: not agents(host), what=f"no agent on {host.name}")


def test_a_node_that_does_not_answer_is_named_and_the_rest_is_judged(hosts: Hosts, job: FleetJob) -> None:
    lost = hosts["h03"]
    lost.drop_connects()
    try:
        started = time.monotonic()
        report = stacks(hosts, "--timeout", "30")
        assert time.monotonic() - started < 90
    finally:
        lost.heal()
    silent = {entry["node"]: entry["reason"] for entry in report["not_answered"]}
    assert list(silent) == ["h03"], silent
    assert silent["h03"]
    told = {node["node"]: node for node in report["nodes"]}
    assert told["h03"]["state"] in ("connecting", "lost")
    assert told["h03"]["reason"]
    (found,) = report["jobs"]
    assert found["verdict"]["kind"] in ("hang", "suspect")  # for a minute it may be a validation
    assert CULPRIT in [culprit["rank"] for culprit in found["verdict"]["culprits"]]
    assert any("0-1,3-10,12-15" in c["ranks"] for c in found["classes"])
