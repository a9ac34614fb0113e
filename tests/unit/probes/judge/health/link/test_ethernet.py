"""Ethernet interfaces and EFA adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.model import LinkSample, Sample
from tests.builders.health_links import bare_gpu, down, judge, node, only, over, port, told

GONE = {
    "state": None,
    "physical_state": None,
    "error": "interface vanished",
    "error_code": "interface_vanished",
    "counters": {},
}


def eth(counters: dict[str, int] | None = None, device: str = "eth0", **fields: Any) -> LinkSample:
    known = {"rx_crc_errors": 0, "rx_errors": 3, "tx_errors": 0, "rx_missed_errors": 9, "carrier_changes": 3}
    whole = LinkSample(device, 1, "ethernet", "UP", "LinkUp", 100e9, 4e6, 3e6, device, 9000)
    return replace(whole, **{"counters": {**known, **(counters or {})}, **fields})


def efa_port(counters: dict[str, int] | None = None, **fields: Any) -> LinkSample:
    known = {"rx_drops": 700, "no_completion_cmds": 2}
    return replace(
        LinkSample("rdmap16s27", 1, "efa", "ACTIVE", "LinkUp", 100e9),
        **{"counters": {**known, **(counters or {})}, **fields},
    )


def with_links(at: float, *links: LinkSample, name: str = "n1") -> Sample:
    return node(at, name=name, links=list(links))


# Errors


@pytest.mark.parametrize(
    ("counters", "message"),
    [
        (lambda at: {}, None),
        (lambda at: {"rx_crc_errors": int(at >= 60)}, None),  # a single one
        (lambda at: {"rx_crc_errors": int(at // 60)}, "eth0: rx_crc_errors 1/min"),  # each minute one
        (lambda at: {"rx_crc_errors": int(at // 90)}, None),
        (lambda at: {"rx_crc_errors": int(at), "rx_errors": int(at)}, "eth0: rx_crc_errors 60/min"),
        (lambda at: {"tx_errors": int(at // 10)}, "eth0: tx_errors 6/min"),
        (lambda at: {"rx_missed_errors": 9 + int(at)}, "eth0: rx_missed_errors 60/min"),
        (lambda at: {"rx_errors": 10**6}, None),  # from before
        (lambda at: {"rx_dropped": int(at) * 500}, None),  # packets that nobody asked for
        (lambda at: {"carrier_changes": 3 + 2 * (at >= 60)}, None),  # unplugged once
        (
            lambda at: {"carrier_changes": 3 + 2 * (at >= 60) + 2 * (at >= 120)},
            "eth0: carrier changed 4 times in the last hour",
        ),
    ],
)
def test_errors(counters: Any, message: str | None) -> None:
    found = judge(*over(range(0, 301, 10), lambda at: with_links(at, eth(counters(at)))))
    assert [one.severity for one in found] == ["warning"] * (message is not None)
    assert message is None or found[0].message.startswith(message)


def test_the_interface_of_a_roce_port_is_told_under_the_ports_name() -> None:
    def make(at: float) -> Sample:
        return with_links(at, port(4, kind="roce", netdev="eth4", counters={"netdev_rx_crc_errors": int(at)}))

    finding = only(*over(range(0, 31, 10), make))
    assert (finding.id, finding.subject) == ("eth.errors", "mlx5_4")
    assert finding.message == "eth4 (mlx5_4): rx_crc_errors 30/min"


def test_the_interface_of_an_infiniband_port_is_not_judged() -> None:
    def make(at: float) -> Sample:
        return with_links(at, port(4, counters={"netdev_rx_errors": int(at), "netdev_carrier_changes": int(at)}))

    assert judge(*over(range(0, 100, 10), make)) == []


# Speed, state, MTU


def _fleet(at: float, own: LinkSample, *, usual: LinkSample | None = None, count: int = 3) -> list[Sample]:
    others = [with_links(at + 0.01 * number, usual or eth(), name=f"n{number + 2}") for number in range(count)]
    return [*others, with_links(at + 0.5, own)]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (eth(), None),
        (eth(rate_bits_per_s=10e9), "eth0 at 10 of 100 Gb/s"),
        (eth(rate_bits_per_s=200e9), None),
        (eth(rate_bits_per_s=None), None),
        (eth(mtu=1500), "eth0 has an MTU of 1500, like nodes 9000"),
        (eth(mtu=9216), None),
        (eth(state="DOWN", physical_state="LinkDown", rate_bits_per_s=None), "eth0 is down"),
        (eth(state="UNKNOWN", physical_state="LinkUp"), None),
        (eth(state=None, physical_state=None), None),
        (eth(device="eth7", rate_bits_per_s=10e9), None),  # like nodes have no such interface
    ],
)
def test_against_like_nodes(own: LinkSample, message: str | None) -> None:
    found = judge(*_fleet(0, own))
    assert [(one.id, one.severity, one.message) for one in found] == (
        [("eth.slow", "warning", message)] if message else []
    )
    assert [
        one.id for one in judge(*_fleet(0, own, count=1)) if one.id == "eth.slow"
    ] == []  # two nodes are no majority


def test_an_interface_that_nobody_has_connected() -> None:
    unplugged = eth(device="eth3", state="DOWN", physical_state="LinkDown", rate_bits_per_s=None)
    assert judge(with_links(0, eth(), unplugged), with_links(60, eth(), unplugged)) == []
    assert judge(*_fleet(0, unplugged, usual=unplugged)) == []


def test_an_interface_is_compared_with_what_it_was() -> None:
    def make(later: LinkSample) -> list[Sample]:
        return over(range(0, 50, 10), lambda at: with_links(at, eth() if at < 20 else later))

    assert only(*make(eth(state="DOWN", physical_state="LinkDown"))).message == "eth0 is down, it was up before"
    assert only(*make(eth(rate_bits_per_s=10e9))).message == "eth0 at 10 of 100 Gb/s"
    assert only(*make(eth(**GONE))).message == "eth0 vanished: the interface is gone"
    assert judge(*make(eth(mtu=1500))) == []
    short = over(range(0, 50, 5), lambda at: with_links(at, eth(**GONE) if at == 20 else eth()))
    assert judge(*short) == []


def test_login_nodes_are_no_like_nodes() -> None:
    login = [replace(one, gpus=[]) for one in _fleet(0, eth(rate_bits_per_s=10e9))]
    login[-1].gpus = [bare_gpu(0)]
    assert judge(*login) == []


def test_a_roce_port_that_is_down_says_all() -> None:
    lost = down(4, kind="roce", netdev="eth4")
    fine = port(4, kind="roce", netdev="eth4", mtu=9000)
    samples = [with_links(0, fine), *over(range(10, 50, 10), lambda at: with_links(at, lost))]
    assert told(*samples) == [("critical", "ib.down", "mlx5_4")]
    small = [with_links(0.1 * number, fine, name=f"n{number}") for number in (2, 3)]
    assert told(*small, with_links(0.9, replace(fine, mtu=1500))) == [("warning", "eth.slow", "mlx5_4")]


# EFA


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (efa_port(), []),
        (efa_port({"rx_drops": 1_600}), []),  # 90 a second
        (efa_port({"rx_drops": 1_800}), [("warning", "efa", "rdmap16s27")]),
        (efa_port({"no_completion_cmds": 3}), [("critical", "efa", "rdmap16s27")]),
        (efa_port({"rx_drops": 0, "no_completion_cmds": 0}), []),  # loaded anew
        (efa_port(state="DOWN", physical_state="Disabled"), [("critical", "efa", "rdmap16s27")]),
        (efa_port(error="state: Input/output error", state=None, counters={}), []),
    ],
)
def test_efa(later: LinkSample, expected: list[tuple[str, str, str]]) -> None:
    assert told(with_links(0, efa_port()), with_links(10, later)) == expected


def test_efa_whose_interface_is_down() -> None:
    lost = eth(device="ens32", state="DOWN", physical_state="LinkDown")
    adapter = efa_port(netdev="ens32")
    found = told(with_links(0, adapter, eth(device="ens32")), with_links(10, adapter, lost))
    assert ("critical", "efa", "rdmap16s27") in found
    assert judge(with_links(0, adapter, lost), with_links(10, adapter, lost)) == []


def test_an_efa_adapter_that_is_gone() -> None:
    gone = efa_port(error="device vanished", error_code="device_vanished", state=None, counters={})
    samples = [with_links(0, efa_port()), *over(range(10, 40, 10), lambda at: with_links(at, gone))]
    assert told(*samples) == [("critical", "ib.missing", "rdmap16s27")]
