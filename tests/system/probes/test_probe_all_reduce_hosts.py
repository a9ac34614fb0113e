"""The all-reduce probe over four hosts with networks of their own: routes, firewalls, a link that goes down."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator

import psutil
import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import Hosts
from tests.launchers import Launchers
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
    launchers.meet(dict.fromkeys(NAMES, ranks), hosts=by_name, deadlines_s=DEADLINES_S, **more)  # type: ignore[arg-type]


def test_rounds_over_four_hosts_until_a_link_is_cut(hosts: Hosts) -> None:
    with Launchers() as launchers:
        _meet(launchers, hosts, 2, env={"MLTOP_PROBE_DELAY": f"{SLOW_RANK}:{SLOW_S}"})
        launchers.wait_ready()
        for number, name in enumerate(NAMES):
            ready = launchers[name].wait("ready")["data"]
            assert (ready["interface"], ready["address"]) == ("eth0", hosts.address(name))
            assert ready["added"] == {"GLOO_SOCKET_IFNAME": "eth0"}
            assert ready["first_rank"] == 2 * number
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
    launchers.begin_round([NAMES], [MIB], budget_s=1.0)
    assert launchers.wait_round(1) == {name: {"round": 1, "group": 0} for name in NAMES}
    times = {event["rank"]: event["data"] for name in NAMES for event in launchers[name].all("times", round=1)}
    assert set(times) == set(range(8)) and all(data["wrong"] == 0 for data in times.values())
    assert times[SLOW_RANK]["node"] == "h03"
    medians = {rank: statistics.median(data["times_s"]) for rank, data in times.items()}
    assert min(medians, key=medians.__getitem__) == SLOW_RANK


def _pairs_measure_at_the_same_time(launchers: Launchers) -> None:
    launchers.begin_round([["h01", "h03"], ["h04", "h02"]], [MIB])
    groups = {name: data["group"] for name, data in launchers.wait_round(2).items()}
    assert groups == {"h01": 0, "h03": 0, "h02": 1, "h04": 1}
    ranks = {
        name: [event["data"]["rank"] for event in launchers[name].all("times", round=2)] for name in ("h04", "h02")
    }
    assert sorted(ranks["h04"]) == [0, 1] and sorted(ranks["h02"]) == [2, 3]  # in the order of the group


def _a_cut_off_host_is_named(launchers: Launchers, hosts: Hosts) -> None:
    launchers.begin_round([NAMES], [MIB] * 200, budget_s=5)
    launchers["h01"].wait("stage", stage="measure 1 MiB", round=3)
    hosts["h04"].cut_link()
    failed = launchers.result(3).failures
    where = f"h04 ({hosts.address('h04')})"
    assert failed["h04"].startswith(f"h[01-03] cannot connect to {where}: "), failed
    assert list(failed) == ["h04"] and launchers.failures(node="h04")[0].stage == "measure 1 MiB"
    # The others need neither it nor its connections.
    again = launchers.begin_round([NAMES[:3]], [MIB])
    assert launchers.result(again).failures == {}
    assert launchers.wait_round(again)["h03"] == {"round": again, "group": 0}


def test_a_host_behind_a_firewall_is_named_and_the_others_go_on(hosts: Hosts) -> None:
    hosts["h03"].drop_connects()
    with Launchers() as launchers:
        _meet(launchers, hosts, 1)
        others = ("h01", "h02", "h04")
        assert launchers.wait_ready() == others
        (failure,) = launchers.failures()
        who = f"h[01-02,04] cannot connect to h03 ({hosts.address('h03')})"
        assert failure.why == f"{who}: timed out (a firewall, or no route)"
        assert (failure.node, failure.stage) == ("h03", "join") and "allow TCP" in failure.fix
        assert launchers.result(launchers.begin_round([others], [MIB])).failures == {}


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
            launchers.begin_round([NAMES], [4 * MIB] * 50, budget_s=5)
            wait_until(lambda: len(watch.addresses()) >= len(NAMES), 60, "the ranks of every host to listen")
        assert watch.addresses() == {hosts.address(name) for name in NAMES}, watch.seen
    finally:
        for host in hosts:
            host.run(["ip", "link", "delete", "dev", "aa0"])


def test_a_first_host_that_nobody_reaches_is_left_out_as_any_other(hosts: Hosts) -> None:
    hosts["h01"].drop_connects()
    with Launchers() as launchers:
        _meet(launchers, hosts, 1)
        assert launchers.wait_ready() == ("h02", "h03", "h04")
        (failure,) = launchers.failures()
        assert failure.node == "h01"
        assert failure.why.startswith(f"h[02-04] cannot connect to h01 ({hosts.address('h01')}): timed out")
        assert launchers.result(launchers.begin_round([NAMES[1:]], [MIB])).failures == {}
