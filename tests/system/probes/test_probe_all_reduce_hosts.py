"""The all-reduce probe over four hosts with networks of their own: routes, firewalls, a link that goes down."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator

import psutil
import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import Hosts
from tests.hosts.keeper import SHARED
from tests.launchers import Event, Launchers, fake_torch
from tests.listening import Watch
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
nothing_left = fixtures.nothing_left

MIB = 1 << 20
NAMES = ["h01", "h02", "h03", "h04"]
DEADLINES_S = {"import torch": 200.0, "init": 60.0, "measure": 10.0}
SLOW_RANK, SLOW_S = 5, 0.05


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(4) as cluster:
        yield cluster


def _meet(launchers: Launchers, hosts: Hosts, ranks: int, **more: object) -> None:
    by_name = {name: hosts[name] for name in NAMES}
    options: Event = {"deadlines_s": DEADLINES_S, "join_s": 120, **more}
    launchers.meet(dict.fromkeys(NAMES, ranks), hosts=by_name, **options)


def test_rounds_over_four_hosts_until_a_link_is_cut(hosts: Hosts) -> None:
    with Launchers() as launchers:
        _meet(launchers, hosts, 2, env={"MLTOP_PROBE_DELAY": f"{SLOW_RANK}:{SLOW_S}"})
        launchers.wait_ready()
        for number, name in enumerate(NAMES):
            ready = launchers[name].wait("ready")["data"]
            assert (ready["interface"], ready["address"]) == ("eth0", hosts.address(name))
            assert ready["added"] == {"GLOO_SOCKET_IFNAME": "eth0"}
            assert ready["first_rank"] == 2 * number and ready["joined"] == NAMES
        _slow_rank_waits_least(launchers)
        _pairs_measure_at_the_same_time(launchers)
        _a_cut_off_host_is_named(launchers, hosts)


def _processes_of(launchers: Launchers) -> list[int]:
    found = []
    for launcher in list(launchers):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process.pid for process in psutil.Process(launcher.process.pid).children(recursive=True)]
    return found


def _slow_rank_waits_least(launchers: Launchers) -> None:
    launchers.tell_round(1, [NAMES], [MIB], budget_s=1.0)
    assert launchers.wait_round(1) == {name: {"round": 1, "group": 0} for name in NAMES}
    times = {event["rank"]: event["data"] for name in NAMES for event in launchers[name].all("times", round=1)}
    assert set(times) == set(range(8)) and all(data["wrong"] == 0 for data in times.values())
    assert times[SLOW_RANK]["node"] == "h03"
    medians = {rank: statistics.median(data["times_s"]) for rank, data in times.items()}
    assert min(medians, key=medians.__getitem__) == SLOW_RANK


def _pairs_measure_at_the_same_time(launchers: Launchers) -> None:
    launchers.tell_round(2, [["h01", "h03"], ["h04", "h02"]], [MIB])
    groups = {name: data["group"] for name, data in launchers.wait_round(2).items()}
    assert groups == {"h01": 0, "h03": 0, "h02": 1, "h04": 1}
    ranks = {
        name: [event["data"]["rank"] for event in launchers[name].all("times", round=2)] for name in ("h04", "h02")
    }
    assert sorted(ranks["h04"]) == [0, 1] and sorted(ranks["h02"]) == [2, 3]  # in the order of the group


def _a_cut_off_host_is_named(launchers: Launchers, hosts: Hosts) -> None:
    launchers.tell_round(3, [NAMES], [MIB] * 200, budget_s=5)
    launchers["h01"].wait("stage", stage="measure 1 MiB", round=3)
    hosts["h04"].cut_link()
    for name in NAMES[:3]:
        launchers[name].wait("round", round=3, failed=True)
    failures = [event for name in NAMES[:3] for event in launchers[name].all("failed")]
    assert [event["why"] for event in failures] == ["h04 does not answer: its launcher or its network stands still"]
    assert failures[0]["stage"] == "measure 1 MiB" and failures[0]["data"]["node"] == "h04"
    assert launchers["h04"].wait("failed")["why"].startswith("h01, the leader, does not answer")
    assert launchers["h04"].wait_end() == 1
    # The others need neither it nor its connections.
    for name in NAMES[:3]:
        launchers[name].tell({"tell": "round", "round": 4, "groups": [NAMES[:3]], "sizes_bytes": [MIB]})
    for name in NAMES[:3]:
        assert launchers[name].wait("round", round=4)["data"] == {"round": 4, "group": 0}


def test_a_host_behind_a_firewall_is_named_and_the_others_go_on(hosts: Hosts) -> None:
    hosts["h03"].drop_connects()
    with Launchers() as launchers:
        _meet(launchers, hosts, 1)
        failure = launchers["h03"].wait("failed")
        who = f"h01, h02, h04 cannot connect to h03 ({hosts.address('h03')})"
        assert failure["why"] == f"{who}: timed out (a firewall, or no route)"
        assert failure["stage"] == "join" and "allow TCP" in failure["fix"]
        assert launchers["h03"].wait_end() == 1
        others = ["h01", "h02", "h04"]
        for name in others:
            assert launchers[name].wait("ready")["data"]["joined"] == others
            launchers[name].tell({"tell": "round", "round": 1, "groups": [others], "sizes_bytes": [MIB]})
        for name in others:
            assert launchers[name].wait("round", round=1)["data"] == {"round": 1, "group": 0}


def test_of_several_networks_only_the_chosen_one_is_listened_on(hosts: Hosts) -> None:
    """By the sockets of every process of the probe; ssh came by eth0."""
    for host in hosts:
        host.run(["ip", "link", "add", "name", "aa0", "type", "veth", "peer", "name", "aa1"])  # first by name
        host.run(["ip", "address", "add", f"10.99.0.{host.name[1:]}/24", "dev", "aa0"])
        for end in ("aa0", "aa1"):
            host.run(["ip", "link", "set", "dev", end, "up"])

    try:
        ssh = f"{hosts.address('h02')} 51234 {hosts.address('h01')} 22"
        with Launchers() as launchers, Watch(lambda: _processes_of(launchers)) as watch:
            _meet(launchers, hosts, 1, env={"SSH_CONNECTION": ssh})
            launchers.wait_ready()
            launchers.tell_round(1, [NAMES], [4 * MIB] * 50, budget_s=5)
            wait_until(lambda: len(watch.addresses()) >= len(NAMES), 60, "the ranks of every host to listen")
        assert watch.addresses() == {hosts.address(name) for name in NAMES}, watch.seen
    finally:
        for host in hosts:
            host.run(["ip", "link", "delete", "dev", "aa0"])


def test_a_leader_that_nobody_reaches_is_named_by_all_others(hosts: Hosts) -> None:
    fake_torch(hosts.shared, "import signal; signal.pause()")
    hangs = {"PYTHONPATH": str(SHARED)}
    hosts["h01"].drop_connects()
    with Launchers() as launchers:
        _meet(launchers, hosts, 1, env=hangs, join_s=4)
        port = launchers["h01"].wait("listening")["data"]["port"]
        for name in NAMES[1:]:
            why = launchers[name].wait("failed", stage="join")["why"]
            assert why.startswith(f"cannot connect to h01 ({hosts.address('h01')}")
            assert f"port {port}: timed out (a firewall, or no route)" in why
            assert launchers[name].wait_end() == 1
        why = launchers["h01"].wait("failed", stage="join")["why"]
        assert why == "1 of 4 nodes joined within 4 s; waiting for h02, h03, h04"
