"""`mltop probe all-reduce` and `pairs` over hosts of their own: all well, and one bad host in several ways."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.cluster import Hosts

pytestmark = pytest.mark.hosts
TORCH = Path(importlib.util.find_spec("torch").origin or "").parent  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(4) as cluster:
        cluster.mltop("snapshot", "-w", cluster.pattern, "--json", "--timeout", "60")  # the bundle is there
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(hosts: Hosts) -> Iterator[None]:
    yield
    for host in hosts:
        host.heal()
    try:
        hosts.wait_clean()
    finally:
        for host in (hosts.login, *hosts):
            host.kill_strangers()


def probe(hosts: Hosts, *args: str, names: str = "") -> tuple[int, dict[str, Any]]:
    done = hosts.mltop(
        "probe", *args, "-w", names or hosts.pattern, "--torch-python", sys.executable, "--json",
        timeout_s=180, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_four_hosts(hosts: Hosts) -> None:
    code, report = probe(hosts, "all-reduce", "--sizes", "64K,4M")
    assert report["failures"] == []
    assert [(result["ranks"], len(result["nodes"]), result["wrong"]) for result in report["results"]] == [(4, 4, 0)] * 2
    assert all(result["busbw_bytes_per_s"] > 0 for result in report["results"])
    assert code in (0, 1)  # four ranks on two cores: one may really have been late
    assert [state["state"] for state in report["nodes"]] == ["live"] * 4
    assert "--nnodes=4" in report["command"]
    assert f"--rdzv-endpoint={hosts.address('h01')}:" in report["command"]


def test_a_host_whose_ports_are_blocked_is_named(hosts: Hosts) -> None:
    """The one they meet at: test_probe_all_reduce_hosts.py."""
    hosts["h03"].close_ports()
    code, report = probe(hosts, "all-reduce", "--sizes", "64K")
    assert code == 3
    said = json.dumps([report["failures"], report["verdict"]])
    assert "connect to h03" in said, said


def test_a_host_without_torch_is_left_out_and_named(hosts: Hosts) -> None:
    hosts["h02"].hide_directory(TORCH)
    code, report = probe(hosts, "all-reduce", "--sizes", "64K")
    assert code in (1, 3)
    assert [failure["node"] for failure in report["failures"]] == ["h02"], report["failures"]
    assert "torch" in report["failures"][0]["why"]
    assert [result["nodes"] for result in report["results"]] == [["h01", "h03", "h04"]]


def test_no_torch_anywhere_says_what_would_help(hosts: Hosts) -> None:
    done = hosts.mltop("probe", "all-reduce", "-w", "h[01-02]", "--json", timeout_s=180, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert {failure["node"] for failure in report["failures"]} == {"h01", "h02"}
    assert all("torch" in failure["why"] for failure in report["failures"])
    assert all("--torch-python" in failure["fix"] for failure in report["failures"])


def test_a_host_that_is_down_does_not_hold_up_the_others(hosts: Hosts) -> None:
    hosts["h02"].stop_sshd()
    code, report = probe(hosts, "all-reduce", "--sizes", "64K")
    assert code in (1, 3)
    assert {failure["node"] for failure in report["failures"]} == {"h02"}
    assert [result["nodes"] for result in report["results"]] == [["h01", "h03", "h04"]]


def test_pairs_of_good_hosts(hosts: Hosts) -> None:
    code, report = probe(hosts, "pairs", "--size", "256K")
    assert report["failures"] == []
    measured = [result for result in report["results"] if result["busbw_bytes_per_s"]]
    assert {node for result in measured for node in result["nodes"]} == set(hosts.names)
    assert code in (0, 1)
