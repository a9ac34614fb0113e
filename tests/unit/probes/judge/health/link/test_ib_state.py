"""Ports of InfiniBand and RoCE: down or unused, flapping, slow, stuck, gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.model import Gap, LinkSample, Sample
from tests.builders.health_links import board, device, down, event, judge, node, only, over, port, ports, told
from tests.builders.health_samples import rank

VANISHED = {
    "state": None,
    "physical_state": None,
    "rate_bits_per_s": None,
    "error": "device vanished",
    "error_code": "device_vanished",
    "counters": {},
}
# A port that nobody uses: of another kind of card, never up.
SPARE = down(0, device="mlx5_8", pci_bus_id="0000:29:00.0", netdev="ibs9")


def _h100(at: float, *changed: LinkSample, name: str = "n1", **fields: Any) -> Sample:
    """Eight H100 and eight HCAs."""
    return board(at, links=ports(*changed), node=name, **fields)


# Down


def test_a_port_that_goes_down_is_critical_at_once() -> None:
    finding = only(node(0), node(1, down()))
    assert (finding.id, finding.severity, finding.subject) == ("ib.down", "critical", "mlx5_4")
    assert finding.message == "mlx5_4 is down (Polling)"
    assert finding.evidence[0] == "it was up since it is watched"
    assert (finding.since, finding.until) == (1, None)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (node(0), []),
        (node(0, SPARE), [("info", "ib.down", "mlx5_8")]),
        # Two GPUs need two ports: of eight seven are up.
        (node(0, down()), [("info", "ib.down", "mlx5_4")]),
        (_h100(0, down()), [("critical", "ib.down", "mlx5_4")]),
        (_h100(0, SPARE), [("info", "ib.down", "mlx5_8")]),
        (_h100(0, down(), SPARE), [("critical", "ib.down", "mlx5_4"), ("info", "ib.down", "mlx5_8")]),
        # Four HCAs is what this provider built in.
        (board(0, links=[*ports(count=3), down(3)]), [("info", "ib.down", "mlx5_3")]),
        (node(0, down(counters={"netdev_carrier_up_count": 2})), [("critical", "ib.down", "mlx5_4")]),
        (node(0, down(physical="Disabled", counters={"netdev_carrier_up_count": 2})), [("info", "ib.down", "mlx5_4")]),
        (node(0, down(kind="roce")), [("info", "ib.down", "mlx5_4")]),
        # What cannot be read is not down.
        (node(0, port(4, state=None, physical_state=None, error="state: Input/output error", counters={})), []),
        (node(0, port(4, state=None, physical_state=None)), []),
        (node(0, port(4, physical_state=None)), []),
        (node(0, port(4, physical_state="LinkErrorRecovery")), []),  # for a moment: ib.recovery counts these
        (node(0, replace(SPARE, kind="ethernet")), []),
    ],
)
def test_what_counts_as_down(sample: Sample, expected: list[tuple[str, str, str]]) -> None:
    assert told(sample) == expected


def test_a_node_without_any_link_is_one_line() -> None:
    finding = only(_h100(0, *map(down, range(8))))
    assert (finding.id, finding.severity, finding.subject) == ("ib.down", "critical", "all 8 InfiniBand ports")
    assert finding.message == "None of the 8 InfiniBand ports has a link"
    assert finding.evidence == [
        "0 ports ACTIVE, 8 belong to 8 x NVIDIA H100 80GB HBM3",
        ", ".join(f"mlx5_{number}" for number in range(8)),
    ]


def test_of_ports_that_were_up_each_is_told() -> None:
    found = told(_h100(0), _h100(1, *map(down, range(8))))
    assert found == [("critical", "ib.down", f"mlx5_{number}") for number in range(8)]


def test_like_nodes_tell_whether_a_port_is_used() -> None:
    used = [node(0.1 * number, name=f"n{number}") for number in (2, 3)]
    assert told(*used, node(0.9, down())) == [("critical", "ib.down", "mlx5_4")]
    unused = [node(0.1 * number, SPARE, name=f"n{number}") for number in (2, 3)]
    assert judge(*unused, node(0.9, SPARE))[2:] == []
    # Where like nodes name their ports otherwise, they still tell how many are up.
    renamed = [
        node(0.1 * number, name=f"n{number}", links=[replace(one, device=f"ib_{one.device}") for one in ports()])
        for number in (2, 3)
    ]
    found = judge(*renamed, node(0.8, name="n4"), node(0.9, down()))
    assert [(one.id, one.evidence[0]) for one in found] == [("ib.down", "7 ports ACTIVE, 8 on 3 of 4 like nodes")]


def test_login_nodes_are_no_like_nodes() -> None:
    login = [node(0.1 * number, down(), name=f"login{number}", gpus=[]) for number in range(3)]
    found = judge(*login, _h100(0.9, down()))
    assert ("critical", "n1") in [(one.severity, one.node) for one in found]


def test_a_link_without_a_subnet_manager() -> None:
    waiting = port(4, state="INIT")
    finding = only(node(0, waiting))
    assert (finding.severity, finding.message) == (
        "warning",
        "mlx5_4 has a link, but no subnet manager has made it ACTIVE (INIT)",
    )
    both = only(node(0, waiting, port(5, state="INIT")))
    assert both.message == "mlx5_4, mlx5_5 have a link, but no subnet manager has made them ACTIVE (INIT)"
    coming = [node(0, down()), node(1, waiting), node(2)]  # a cable is plugged in
    assert told(*coming) == [("info", "ib.down", "mlx5_4")]
    assert told(*coming[:2], node(11, waiting), node(21, waiting)) == [("warning", "ib.down", "mlx5_4")]


def test_a_reboot_forgets_that_a_port_was_up() -> None:
    later = replace(node(100, down()), boot_id="boot-2")
    assert told(node(0), later) == [("info", "ib.down", "mlx5_4")]


def test_a_port_that_is_down_explains_its_own_counters_and_nobody_elses() -> None:
    def make(at: float) -> Sample:
        errors = {"symbol_error": int(500 * at), "netdev_rx_crc_errors": int(50 * at)}
        other = port(5, counters={"symbol_error": int(500 * at)})
        return node(at, (down if at >= 30 else port)(4, kind="roce", counters=errors), other)

    found = judge(*over(range(0, 70, 10), make))
    assert [(one.id, one.subject) for one in found] == [("ib.down", "mlx5_4"), ("ib.ber", "mlx5_5")]
    assert sorted(found[0].folded) == ["eth.errors mlx5_4", "ib.ber mlx5_4"]


# Flaps


def _flapping(at: float, downed: int, **fields: Any) -> Sample:
    return node(at, port(4, counters={"link_downed": 7 + downed}), **fields)


@pytest.mark.parametrize(
    ("flaps", "hours", "ranks", "severity"),
    [
        (0, 0.1, True, None),
        (1, 0.1, False, "info"),
        (1, 0.1, True, "warning"),
        (2, 0.5, True, "warning"),
        (3, 0.5, False, "critical"),
        (3, 6.0, False, "warning"),
    ],
)
def test_flaps_by_number_and_time(flaps: int, hours: float, ranks: bool, severity: str | None) -> None:
    end = hours * 3600
    running = [rank(0)] if ranks else []

    def make(at: float) -> Sample:
        return _flapping(at, int(flaps * min(1.0, at / (end * 0.99))), ranks=running)

    found = judge(*over([step * end / 100 for step in range(101)], make))
    assert {one.id for one in found} <= {"ib.flap"}
    assert [one.severity for one in found if one.until is None] == ([severity] if severity else [])


def test_flaps_are_told_with_their_counter() -> None:
    finding = only(_flapping(0, 0), _flapping(10, 1), _flapping(20, 3))
    assert finding.message == "mlx5_4 flapped 3 times in the last hour"
    assert finding.evidence == ["link_downed +3"]
    assert only(_flapping(0, 0), _flapping(10, 1)).message == "mlx5_4 flapped once in the last hour"


def test_a_flap_is_forgotten_after_an_hour() -> None:
    samples = over(range(0, 4000, 30), lambda at: _flapping(at, int(at >= 90)))
    finding = only(*samples)
    assert (finding.since, finding.until) == (90, 3660)


def test_a_stuck_counter_leaves_the_state_to_count() -> None:
    stuck: dict[str, Any] = {"counters": {"link_downed": 255}, "saturated": ["link_downed"]}

    def make(at: float) -> Sample:
        return node(at, (down if at in (100, 200, 300) else port)(4, **stuck))

    found = judge(*over(range(0, 400, 10), make))
    flap = next(one for one in found if one.id == "ib.flap")
    assert (flap.severity, flap.message) == ("critical", "mlx5_4 flapped 3 times in the last hour")
    assert flap.evidence == ["seen going down +3, link_downed is stuck at its maximum"]
    assert [one.severity for one in flap.explains if one.id == "ib.saturated"] == ["info"], "of one card one line"


def test_flaps_between_two_samples_show_in_the_interfaces_counter() -> None:
    def make(at: float, downed: int) -> Sample:
        return node(at, port(4, counters={"link_downed": downed, "netdev_carrier_down_count": int(at // 100)}))

    stuck = over(range(0, 310, 10), lambda at: make(at, 255))
    assert ("critical", "ib.flap", "mlx5_4") in told(*stuck)
    # While the port's own counter counts, the interface's may move for other reasons (a new subnet manager).
    assert judge(*over(range(0, 310, 10), lambda at: make(at, 3))) == []


@pytest.mark.parametrize(
    ("high", "later", "is_flap"),
    [(200, 0, False), (255, 0, False), (255, 255, False), (254, 255, True), (200, 1, True)],
)
def test_a_counter_that_starts_anew_or_stood_high_is_no_flap(high: int, later: int, is_flap: bool) -> None:
    before, after = port(4, counters={"link_downed": high}), port(4, counters={"link_downed": later})
    found = judge(*(node(at, before if at < 15 else after) for at in (0.0, 10.0, 20.0, 30.0)))
    assert ("ib.flap" in [one.id for one in found]) == is_flap


def test_a_counter_that_is_gone_for_a_while_has_not_grown() -> None:
    without = port(4)
    del without.counters["link_downed"]
    assert judge(node(0), node(10, without), node(20, without), node(30)) == []


def test_a_port_that_refuses_to_be_read_has_not_flapped() -> None:
    refused = port(4, state=None, physical_state=None, error="link_downed: Invalid argument", counters={})
    assert judge(node(0), node(10, refused), node(20)) == []


# Counters that stand at their maximum


@pytest.mark.parametrize(
    ("counters", "saturated", "fires"),
    [
        ({"link_downed": 255}, ["link_downed"], True),
        ({"symbol_error": 65535}, [], True),
        ({"local_link_integrity_errors": 15}, [], True),
        ({"link_downed": 254}, [], False),
        ({"port_rcv_errors": 255}, [], False),  # it is 16 bits wide
        ({"symbol_error": 65535, "port_rcv_errors": 70_000}, [], False),  # a driver with wider counters
    ],
)
def test_saturation(counters: dict[str, int], saturated: list[str], fires: bool) -> None:
    found = judge(node(0, port(4, counters=counters, saturated=saturated)))
    assert [(one.id, one.severity) for one in found] == fires * [("ib.saturated", "info")]


def test_an_unused_port_may_be_stuck() -> None:
    stuck = replace(SPARE, counters={"link_downed": 255}, saturated=["link_downed"])
    assert [one.id for one in judge(node(0, stuck))] == ["ib.down"]


# Rate


def _at_rate(gbit: float, number: int = 3, **fields: Any) -> LinkSample:
    return port(number, rate_bits_per_s=gbit * 1e9, **fields)


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        (ports(), []),
        (ports(_at_rate(200)), ["mlx5_3 at 200 of 400 Gb/s"]),
        (ports(*(_at_rate(200, number) for number in range(8))), []),  # an HDR fabric
        (ports(*(_at_rate(200, number) for number in range(4))), []),  # two kinds of links
        (ports(_at_rate(200, firmware="20.1.1")), []),  # another kind of card
        (ports(_at_rate(100, kind="roce")), []),
        (ports(_at_rate(200, state="DOWN", physical_state="Polling")), []),
        (ports(_at_rate(200), count=2), []),
    ],
)
def test_rate_among_the_ports_of_a_node(links: list[LinkSample], slow: list[str]) -> None:
    found = judge(node(0, links=links), node(10, links=links))
    assert [one.message for one in found if one.id == "ib.rate"] == slow


def test_like_nodes_know_the_rate_best() -> None:
    all_slow = [_at_rate(200, number) for number in range(8)]
    fast = [node(0.1 * number, name=f"n{number}") for number in (2, 3)]
    assert len(judge(*fast, node(0.9, *all_slow))) == 8
    mixed = [node(0.1 * number, _at_rate(200), name=f"n{number}") for number in (2, 3)]
    assert judge(*mixed, node(0.9, _at_rate(200)))[2:] == []


def test_a_port_that_was_faster_is_slow_now() -> None:
    pair = [port(3), port(4)]
    slow = [_at_rate(200), port(4)]
    samples = [node(0, links=pair), *over(range(10, 40, 10), lambda at: node(at, links=slow))]
    finding = only(*samples)
    assert (finding.message, finding.evidence) == ("mlx5_3 at 200 of 400 Gb/s", ["it was faster before"])


# Devices


def test_a_device_that_vanishes() -> None:
    gone = port(4, **VANISHED)
    finding = only(node(0), *over(range(5, 20, 5), lambda at: node(at, gone)))
    assert (finding.id, finding.message) == ("ib.missing", "mlx5_4 vanished: the RDMA device is gone")
    assert judge(node(0), node(5, gone), node(10)) == []


def test_fewer_devices_than_like_nodes() -> None:
    fine = [node(0.1 * number, name=f"n{number}") for number in (2, 3)]
    finding = only(*fine, node(0.9, links=ports()[:7]))
    assert (finding.id, finding.message, finding.node) == ("ib.missing", "7 of 8 HCAs present", "n1")
    assert only(*fine, node(0.9, links=[])).message == "0 of 8 HCAs present"
    assert judge(*fine, node(0.9, links=ports())) == []
    confined = node(0.9, links=ports()[:7])
    confined.host.is_confined = True
    assert judge(*fine, confined) == []
    unlisted = node(0.9, links=[], gaps=[Gap("links.infiniband", "Permission denied")])
    assert judge(*fine, unlisted) == []


COMPLAINTS = {
    "mlx5_core 0000:9a:00.0: poll_health:835:(pid 0): device's health compromised - reached miss count": (
        "critical",
        "mlx5_4",
        "mlx5_4: firmware stopped answering",
    ),
    "mlx5_core 0000:9a:00.0: unrecoverable hardware error": (
        "critical",
        "mlx5_4",
        "mlx5_4: reports an unrecoverable hardware error",
    ),
    "mlx5_core 0000:9a:00.0: wait_func:1195: timeout. Will cause a leak of a command resource": (
        "critical",
        "mlx5_4",
        "mlx5_4: firmware does not finish a command",
    ),
    "mlx5_core 0000:9a:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot (27W).": (
        "warning",
        "mlx5_4 power",
        "mlx5_4 power: gets too little power from its slot",
    ),
    "mlx5_core 0000:9a:00.0: Port module event[error]: module 0, Cable error, High Temperature": (
        "warning",
        "mlx5_4 transceiver",
        "mlx5_4 transceiver: is too hot",
    ),
}


@pytest.mark.parametrize("text", COMPLAINTS)
def test_complaints_of_the_driver(text: str) -> None:
    said = event("mlx5", 95, text, "0000:9a:00.0")
    finding = only(node(100, kernel_events=[said]))
    assert (finding.severity, finding.subject, finding.message) == COMPLAINTS[text]
    assert (finding.since, finding.evidence) == (95, [text])
    assert judge(node(3700, kernel_events=[said])) == []
    assert judge(node(100, kernel_events=[event("mlx5", 95, "mlx5_core 0000:9a:00.0: Link up", "0000:9a:00.0")])) == []


def test_a_failed_driver_is_the_cause_of_what_its_ports_show_but_heat_is_not() -> None:
    texts = list(COMPLAINTS)
    failed = event("mlx5", 95, texts[0], "0000:9a:00.0")
    assert told(node(0), node(100, down(), kernel_events=[failed])) == [("critical", "ib.driver", "mlx5_4")]
    hot = event("mlx5", 95, texts[-1], "0000:9a:00.0")
    (found,) = judge(node(0), node(100, down(), kernel_events=[hot]))
    assert (found.severity, found.id, found.subject) == ("critical", "ib.down", "mlx5_4"), "the graver"
    assert [one.message for one in found.explains] == ["mlx5_4 transceiver: is too hot"]


@pytest.mark.parametrize(
    ("links", "confined", "subjects"),
    [
        (ports(), False, []),
        (ports(port(4, has_chardev=False)), False, ["mlx5_4"]),
        (ports(port(4, has_chardev=False)), True, ["mlx5_4"]),
        ([port(number, has_chardev=False) for number in range(2)], False, ["mlx5_0", "mlx5_1"]),
        ([port(number, has_chardev=False) for number in range(2)], True, []),  # a container without RDMA
        (ports(port(4, has_chardev=None)), False, []),
    ],
)
def test_character_devices(links: list[LinkSample], confined: bool, subjects: list[str]) -> None:
    one = node(0, links=links)
    one.host.is_confined = confined
    found = judge(one)
    assert [(finding.id, finding.subject) for finding in found] == [("ib.chardev", subject) for subject in subjects]


def test_ports_of_one_device_are_told_apart() -> None:
    second = replace(down(4), port=2)
    links = [*ports(), replace(port(4), port=2)]
    found = judge(node(0, links=links), node(10, links=[*ports(), second]))
    assert [(one.id, one.subject) for one in found] == [("ib.down", "mlx5_4/2")]
    assert device(4).bus_id == "0000:9a:00.0"
