"""Error counters of ports: growth counts, a past does not; and a healthy hour of a whole node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from mltop.probes.judge.health.names import rate_text
from mltop.probes.judge.health.trails import Trails
from mltop.probes.model import LinkSample, PciDevice, Sample
from tests.builders.health_links import RULES, bare_gpu, judge, node, nvlinks, only, over, port, ports, told
from tests.builders.health_samples import gpu, node_h100, worn_links

STEP_S = 10.0
BUSY = {"tx_bytes_per_s": 2.5e9}


def _counting(per_step: dict[str, int], steps: int = 7, past: int = 1_000, **fields: str) -> list[Sample]:
    """mlx5_4's counters grow at each step of 10 s, from a past that is no fault."""

    def make(step: int) -> Sample:
        values = {name: past + count * step for name, count in per_step.items()}
        return node(step * STEP_S, port(4, counters=values, **fields))

    return [make(step) for step in range(steps)]


@pytest.mark.parametrize(
    ("per_step", "expected"),
    [
        ({"symbol_error": 0}, None),
        ({"symbol_error": 20}, None),  # 120 in an hour may be
        ({"symbol_error": 21}, ("critical", "ib.ber")),
        ({"link_error_recovery": 0}, None),
        ({"link_error_recovery": 1}, ("warning", "ib.recovery")),
        ({"local_link_integrity_errors": 1}, ("critical", "ib.integrity")),
        ({"excessive_buffer_overrun_errors": 1}, ("critical", "ib.integrity")),
        ({"port_rcv_errors": 100}, None),  # 10 a second
        ({"port_rcv_errors": 110}, ("warning", "ib.rcv_errors")),
        ({"port_xmit_discards": 1000}, None),
        ({"port_xmit_discards": 1010}, ("warning", "ib.discards")),
        ({"local_ack_timeout_err": 9}, None),
        ({"local_ack_timeout_err": 10}, ("warning", "ib.transport")),
        ({"packet_seq_err": 99}, None),
        ({"packet_seq_err": 100}, ("warning", "ib.transport")),
        ({"implied_nak_seq_err": 100}, ("warning", "ib.transport")),
        ({"out_of_sequence": 99}, None),
        ({"out_of_sequence": 100}, ("warning", "ib.transport")),
        ({"req_transport_retries_exceeded": 1}, ("warning", "ib.transport")),
        ({"rnr_nak_retry_err": 1}, ("critical", "ib.transport")),
        ({"roce_slow_restart": 100}, None),
        ({"roce_slow_restart": 110}, ("warning", "roce.slow")),
        ({"port_xmit_wait": 2_489_603_687, "rx_write_requests": 10**6, "port_rcv_data": 10**9}, None),
    ],
)
def test_each_counter_at_its_limit_and_just_below(per_step: dict[str, int], expected: tuple[str, str] | None) -> None:
    small = "link_error" in str(per_step) or "integrity" in str(per_step) or "buffer" in str(per_step)
    found = told(*_counting(per_step, past=3 if small else 1_000))
    assert found == ([(*expected, "mlx5_4")] if expected else [])


@pytest.mark.parametrize(
    ("per_step", "message", "evidence"),
    [
        ({"symbol_error": 150}, "bit errors on mlx5_4: 900 in the last hour", ["now 15/s"]),
        ({"port_xmit_discards": 3000}, "mlx5_4 drops 300/s packets that it cannot send", []),
        ({"port_rcv_errors": 200}, "mlx5_4 receives 20/s malformed packets", []),
        ({"link_error_recovery": 2}, "mlx5_4 retrains its link 12 times a minute", []),
        (
            {"rnr_nak_retry_err": 1, "local_ack_timeout_err": 20},
            "peers are not answering mlx5_4 as they should",
            ["local_ack_timeout_err 2/s", "rnr_nak_retry_err +6 in the last hour"],
        ),
    ],
)
def test_messages_have_figures(per_step: dict[str, int], message: str, evidence: list[str]) -> None:
    finding = only(*_counting(per_step, past=3))
    assert (finding.message, finding.evidence) == (message, evidence)


def test_many_bit_errors_at_once_are_a_warning_before_they_are_critical() -> None:
    samples = [node(at, port(4, counters={"symbol_error": count})) for at, count in ((0.0, 0), (10.0, 110))]
    assert told(*samples) == [("warning", "ib.ber", "mlx5_4")]
    assert told(*samples, node(20.0, port(4, counters={"symbol_error": 130}))) == [("critical", "ib.ber", "mlx5_4")]


def test_bit_errors_explain_what_else_a_bad_cable_does() -> None:
    finding = only(*_counting({"symbol_error": 500, "port_rcv_errors": 500, "link_error_recovery": 2}, past=0))
    assert (finding.id, sorted(finding.folded)) == ("ib.ber", ["ib.rcv_errors mlx5_4", "ib.recovery mlx5_4"])


def test_a_rate_that_ends_clears_after_a_minute() -> None:
    samples = [
        node(at, port(4, counters={"port_rcv_errors": int(50 * min(at, 60))})) for at in map(float, range(0, 200, 10))
    ]
    finding = only(*samples)
    assert (finding.since, finding.until) == (10, 60)
    assert only(*samples[:10]).until is None


def test_out_of_order_everywhere_is_adaptive_routing() -> None:
    def make(at: float, numbers: range) -> Sample:
        return node(at, *(port(number, counters={"out_of_sequence": int(5_000 * at)}) for number in numbers))

    assert judge(*over(range(0, 60, 10), lambda at: make(at, range(8)))) == []
    assert len(judge(*over(range(0, 60, 10), lambda at: make(at, range(2))))) == 2


@pytest.mark.parametrize("name", ["symbol_error", "port_rcv_errors", "port_xmit_discards", "roce_slow_restart"])
def test_resets_and_saturation_are_no_growth(name: str) -> None:
    def make(at: float, values: list[int]) -> list[Sample]:
        return [node(at + 10.0 * place, port(4, counters={name: value})) for place, value in enumerate(values)]

    assert judge(*make(0, [60_000, 0, 0, 1, 2])) == []  # a driver that was loaded anew
    assert {one.id for one in judge(*make(0, [65_535, 65_535, 65_535]))} <= {"ib.saturated"}


def test_a_pause_of_the_samples_is_no_burst() -> None:
    """Two hours without a sample: what came meanwhile is seen in one, and was no high rate."""
    values = [(0.0, 0), (10.0, 0), (7210.0, 8_000), (7211.0, 8_000), (7212.0, 8_001)]
    for name in ("port_rcv_errors", "roce_slow_restart", "local_ack_timeout_err"):
        pauses = [node(at, port(4, counters={name: count // (2 if "ack" in name else 1)})) for at, count in values]
        assert judge(*pauses) == []
    assert told(*(node(at, port(4, counters={"port_rcv_errors": 20 * count})) for at, count in values)) != []


def test_samples_a_minute_apart_still_make_rates() -> None:
    def make(per_s: int) -> list[Sample]:
        return [node(60.0 * step, port(4, counters={"port_rcv_errors": 60 * per_s * step})) for step in range(4)]

    assert judge(*make(9)) == []
    assert told(*make(11)) == [("warning", "ib.rcv_errors", "mlx5_4")]


def test_a_port_that_refuses_to_be_read_is_no_reset() -> None:
    refused = port(4, state=None, error="counters: Input/output error", counters={})
    high = port(4, counters={"symbol_error": 9_000})
    assert judge(*(node(at, refused if at == 20 else high) for at in map(float, range(0, 60, 10)))) == []


def test_growth_is_spread_over_the_time_it_came_in() -> None:
    def at(time: float, errors: int) -> Sample:
        return node(time, port(4, counters={"symbol_error": errors}))

    def count(sample: Sample) -> list[tuple[str, str, float]]:
        return [("p", "errors", sample.links[4].counters["symbol_error"])]

    trails, samples = Trails(), [at(0, 0), at(10, 5), at(310, 65), at(311, 65)]
    for one in samples:
        trails.see(one, [count], [])
    assert (trails.grown("p", "errors", 10.0).amount, trails.grown("p", "errors", 10.0).over_s) == (60, 301)
    assert trails.grown("p", "nothing such", 10.0).per(60) == 0
    assert (rate_text(140.2), rate_text(0.2)) == ("140/s", "12/min")


# Waiting for credits


def _waiting(ticks: dict[int, int], steps: int = 8, **fields: float) -> list[Sample]:
    """Ports send 6.25e9 words in 10 s and wait ``ticks`` meanwhile."""

    def make(number: int, step: int) -> LinkSample:
        words = 10**12 + 6_250_000_000 * step
        waited = 2_489_603_687 + ticks.get(number, 0) * step
        return port(number, counters={"port_xmit_data": words, "port_xmit_wait": waited}, **{**BUSY, **fields})

    return [node(STEP_S * step, *(make(number, step) for number in range(8))) for step in range(steps)]


@pytest.mark.parametrize(
    ("samples", "subjects"),
    [
        (_waiting({}), []),
        (_waiting({4: 700_000_000}), ["mlx5_4"]),
        (_waiting({4: 700_000_000}, steps=6), []),  # not yet a minute
        (_waiting(dict.fromkeys(range(8), 700_000_000)), []),  # all alike
        (_waiting({4: 30_000_000}), []),  # hardly any
        (_waiting({4: 700_000_000}, tx_bytes_per_s=1e6), []),  # idle ports
    ],
)
def test_a_port_that_waits_more_than_its_siblings(samples: list[Sample], subjects: list[str]) -> None:
    assert told(*samples) == [("info", "ib.wait", subject) for subject in subjects]


@pytest.mark.parametrize("every_s", [1.0, 0.5])
def test_counters_that_are_told_every_five_seconds_only_are_judged_all_the_same(every_s: float) -> None:
    """As they come from an agent: the light samples in between repeat what the whole one said."""
    whole = _waiting({4: 700_000_000}, steps=20)
    samples = []
    for number in range(int(100 / every_s)):
        known = whole[int(number * every_s / 5)]
        samples.append(
            replace(known, sampled_at=known.sampled_at - STEP_S * int(number * every_s / 5) + number * every_s)
        )
    assert told(*samples) == [("info", "ib.wait", "mlx5_4")]
    assert told(*samples[: int(55 / every_s)]) == [], "not yet a minute"


# A healthy hour


@pytest.mark.parametrize("load", ["training", "idle", "spinning"])
def test_a_healthy_hour_with_worn_ports_is_information_at_most(load: str) -> None:
    """One port's flap counter is stuck and one port is unused."""
    found = judge(*over(range(0, 3610, 30), lambda at: node_h100(at, load=load, links=worn_links(at, load))))
    assert sorted((one.severity, one.id, one.subject) for one in found) == [
        ("info", "ib.down", "mlx5_8"),
        ("info", "ib.saturated", "mlx5_5"),
    ]


def _plain(at: float, whole: Sample) -> Sample:
    """Nothing unused, nothing stuck: eight HCAs, a RoCE port and Ethernet whose harmless counters move."""
    moved = int(at)
    roce = port(0, device="mlx5_9", kind="roce", netdev="eth2", rate_bits_per_s=100e9)
    roce.counters.update({"netdev_rx_errors": 3, "netdev_rx_dropped": moved, "roce_slow_restart": moved // 60})
    moving = {"port_xmit_wait": 10**9 + 50 * moved, "port_xmit_data": 10**9 * moved, "out_of_sequence": moved // 10}
    ethernet = replace(whole.links[-1], counters={"rx_errors": 3 + moved // 1800, "rx_missed_errors": moved // 2000})
    worn = nvlinks(errors={5: {"crc": 4, "symbol": moved // 120}})
    gpus = [
        replace(one, nvlink=worn, pcie=replace(one.pcie, replay_count=14 + moved // 100), last_seen_at=at)
        for one in whole.gpus
    ]
    pci = [replace(one, aer={"correctable": 40 + moved // 60, "nonfatal": 2, "fatal": 1}) for one in whole.pci]
    busy = [port(number, counters=moving) for number in range(8)]
    return replace(whole, sampled_at=at, links=[*busy, roce, ethernet], gpus=gpus, pci=pci)


def test_a_plain_healthy_hour_has_not_even_information() -> None:
    whole = node_h100(0)
    assert judge(*over(range(0, 3610, 10), lambda at: _plain(at, whole))) == []


def test_a_fleet_of_healthy_nodes_says_nothing() -> None:
    whole = node_h100(0)
    nodes = [_plain(at, replace(whole, node=f"n{number}")) for at in (0.0, 10.0, 20.0) for number in range(5)]
    assert judge(*nodes) == []


def test_a_machine_without_any_of_it_is_silent() -> None:
    assert judge(*over(range(0, 50, 10), lambda at: Sample("n1", at))) == []
    bare = over(range(0, 50, 10), lambda at: Sample("n1", at, gpus=[bare_gpu(0)]))
    assert judge(*bare) == []
    unknown = LinkSample("mlx5_0")
    assert judge(*over(range(0, 50, 10), lambda at: Sample("n1", at, links=[unknown], pci=[PciDevice("x")]))) == []


def test_what_fires_on_one_sample_fires_the_same_when_it_is_changed_in_place() -> None:
    sample = node(0, gpus=[gpu(0), gpu(1)])
    assert judge(sample) == []
    sample.links[4].state = "INIT"
    sample.gpus[1].nvlink = nvlinks(inactive=(2,))
    assert [one.id for one in judge(sample)] == ["nvlink.inactive", "ib.down"]


def test_rules_of_time_do_not_fire_on_two_equal_samples() -> None:
    eager = {rule.id for rule in RULES if not rule.eager}
    assert eager == {"ib.wait"}
    for before, after in pairwise([node(0, links=ports()), node(1, links=ports()), node(2, links=ports())]):
        assert judge(before, after) == []


def test_the_first_step_is_no_rate() -> None:
    burst: Callable[[float], LinkSample] = lambda at: port(4, counters={"port_rcv_errors": 50 if at else 0})  # noqa: E731
    assert judge(*(node(at, burst(at)) for at in (0.0, 1.0, 2.0))) == []
