"""One line for each failing card, driver, disk and server, however many complaints: and all of them kept in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.folding import MOST_HEADS, fold_findings
from mltop.probes.model import Finding, Gap, LinkSample, Sample
from mltop.probes.model.sample import BlockedProcess, FilesystemSample, KernelEvent
from tests.builders.evaluated import evaluate
from tests.builders.health_links import over
from tests.builders.health_samples import NIC_BUSES, NOT_HERE, filesystems, link, links, node_h100, pci, xid

BROKEN_AT = 30.0
TIMES = range(0, 121, 5)
NIC = f"0000:{NIC_BUSES[3]}:00.0"


def _since(at: float) -> float:
    return max(0.0, at - BROKEN_AT)


def _card(
    counters: Callable[[float], Mapping[str, float]] = lambda at: {},
    port: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
    events: Iterable[KernelEvent] = (),
) -> list[Sample]:
    """mlx5_3 breaks: its counters, its fields, its PCI device, lines of the kernel."""

    def make(at: float) -> Sample:
        found, devices, broken = links(at), pci(), at > BROKEN_AT
        own = found[3]
        counted = {**own.counters, **{name: own.counters.get(name, 0) + int(by) for name, by in counters(at).items()}}
        found[3] = replace(own, counters=counted, **((port or {}) if broken else {}))
        place = next(place for place, one in enumerate(devices) if one.bus_id == NIC)
        devices[place] = replace(devices[place], **((device or {}) if broken else {}))
        return node_h100(at, links=found, pci=devices, kernel_events=[one for one in events if one.at <= at])

    return over(TIMES, make)


HEALTH = "mlx5_core {}: poll_health:800: device's health compromised - reached miss count"
POWER = "mlx5_core {}: Detected insufficient power on the PCIe slot (25W)."
DOWN = {"state": "DOWN", "physical_state": "Polling"}
CARDS: dict[str, tuple[list[Sample], str, set[str]]] = {
    "a bad cable": (
        _card(
            lambda at: {
                "symbol_error": 50 * _since(at),
                "link_error_recovery": _since(at),
                "port_rcv_errors": 30 * _since(at),
                "local_link_integrity_errors": _since(at) > 0,
                "local_ack_timeout_err": 5 * _since(at),
                "port_xmit_discards": 300 * _since(at),
                "link_downed": 4 * (_since(at) > 0),
            }
        ),
        "ib.flap",
        {"ib.integrity", "ib.ber", "ib.rcv_errors", "ib.recovery", "ib.transport", "ib.discards"},
    ),
    "half of its rate": (
        _card(lambda at: {"local_ack_timeout_err": 5 * _since(at)}, {"rate_bits_per_s": 200e9}),
        "ib.rate",
        {"ib.transport"},
    ),
    "half of its lanes": (
        _card(lambda at: {"local_ack_timeout_err": 5 * _since(at)}, device={"link_width": 8}),
        "pcie.width",
        {"ib.transport"},
    ),
    "firmware": (
        _card(
            port=DOWN,
            device={"link_width": 8},
            events=[KernelEvent(at, "mlx5", NIC, None, text.format(NIC)) for at, text in ((40, HEALTH), (45, POWER))],
        ),
        "ib.driver",
        {"ib.driver", "ib.down", "pcie.width"},
    ),
    "gone": (
        _card(
            port={"error": "gone", "error_code": "device_vanished", "state": None},
            device={"aer": {"correctable": 0, "nonfatal": 0, "fatal": 1}},
        ),
        "ib.missing",
        {"pcie.replay"},
    ),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_failing_card_is_one_line(case: str) -> None:
    samples, told, kept = CARDS[case]
    (found,) = evaluate(samples)
    assert (found.id, found.subject) == (told, "mlx5_3")
    assert {one.id for one in found.explains} == kept
    assert len(found.explains) == len(found.folded) and all(one.message for one in found.explains)


def test_both_ports_of_a_card() -> None:
    def node(at: float) -> Sample:
        down = DOWN if at > BROKEN_AT else {}
        return node_h100(at, links=[link(3, **down), link(3, port=2, pci_bus_id=NIC.replace(".0", ".1"), **down)])

    (found,) = evaluate(over(TIMES, node))
    assert [one.subject for one in (found, *found.explains)] == ["mlx5_3", "mlx5_3/2"]


def test_two_cards_are_two_lines() -> None:
    down = over(
        TIMES, lambda at: node_h100(at, links=[link(n, **(DOWN if n in (3, 4) and at > 30 else {})) for n in range(8)])
    )
    assert [one.subject for one in evaluate(down)] == ["mlx5_3", "mlx5_4"]


def test_ports_whose_card_is_not_known_stay_apart() -> None:
    def node(at: float) -> Sample:
        down = DOWN if at > BROKEN_AT else {}
        return node_h100(at, links=[link(n, pci_bus_id=None, **(down if n < 2 else {})) for n in range(8)], pci=[])

    assert [one.subject for one in evaluate(over(TIMES, node))] == ["mlx5_0", "mlx5_1"]


def test_an_elastic_adapter_and_its_interface() -> None:
    def node(at: float) -> Sample:
        adapter = LinkSample("rdmap16s27", 1, "efa", "ACTIVE", "LinkUp", 100e9, netdev="ens32", pci_bus_id=NIC)
        adapter.counters = {"rx_drops": int(200 * _since(at)), "no_completion_cmds": 0}
        state = "DOWN" if at > BROKEN_AT else "UP"
        interface = LinkSample("ens32", 1, "ethernet", state, state, 100e9, mtu=9000, pci_bus_id=NIC)
        interface.counters = {"rx_errors": int(5 * _since(at))}
        return node_h100(at, links=[adapter, interface])

    (found,) = evaluate(over(TIMES, node))
    assert found.id == "efa" and {one.id for one in found.explains} == {"eth.slow", "eth.errors"}


def test_a_file_server_is_one_line_whatever_is_mounted_from_it() -> None:
    mounts = [FilesystemSample(name, f"10.0.4.11:{name}", "nfs4", True, False) for name in ("/home", "/ckpt", "/data")]
    other = FilesystemSample("/other", "10.0.4.12:/other", "nfs4", True, False)

    def node(at: float) -> Sample:
        stalled_s = at - BROKEN_AT if at > BROKEN_AT else None
        own = [replace(one, stalled_s=stalled_s, counters={"retrans": int(100 * _since(at))}) for one in mounts]
        said = [KernelEvent(32, "nfs", "10.0.4.11", None, "nfs: server 10.0.4.11 not responding")] if at > 32 else []
        host = {
            "filesystems": [*own, replace(other, stalled_s=stalled_s)],
            "blocked": [BlockedProcess(4711, "python", _since(at), "rpc_wait", 3)],
        }
        return node_h100(at, host=host, kernel_events=said)

    found = evaluate(over(TIMES, node))
    assert {(one.id, one.server) for one in found} == {("fs.stall", "10.0.4.11"), ("fs.stall", "10.0.4.12")}
    (first,) = [one for one in found if one.server == "10.0.4.11"]
    told = " ".join(one.message for one in (first, *first.explains))
    assert all(name in told for name in ("/home", "/ckpt", "/data", "NFS 10.0.4.11", "rank 3")), told


def test_lustre() -> None:
    server = "10.1.1.1@o2ib"
    mounts = [FilesystemSample(one, f"{server}:{one}", "lustre", True, False, stalled_s=40.0) for one in ("/a", "/b")]
    (found,) = evaluate([node_h100(100.0, host={"filesystems": mounts, "lustre_health": "NOT HEALTHY"})])
    assert found.server == server and len(found.explains) == 2


def test_a_disk_and_its_partitions() -> None:
    said = [
        KernelEvent(35, "disk_io", "nvme4n1", None, "blk_update_request: I/O error, dev nvme4n1"),
        KernelEvent(36, "disk_io", "nvme4", None, "nvme nvme4: I/O 12 QID 3 timeout"),
        KernelEvent(37, "remount_ro", "nvme4n1p1", None, "Remounting filesystem read-only"),
        KernelEvent(38, "disk_io", "nvme5", None, "nvme nvme5: I/O 12 QID 3 timeout"),
    ]
    found = evaluate([node_h100(100.0, kernel_events=said, host={"filesystems": filesystems()})])
    assert [(one.id, one.subject) for one in found] == [("disk.io", "nvme4n1"), ("disk.io", "nvme5")]
    assert [one.subject for one in found[0].explains] == ["nvme4n1p1", "nvme4"]


@pytest.mark.parametrize("code", [62, 119])
def test_faults_of_all_gpus_are_one_line_that_names_them(code: int) -> None:
    events = [xid(35 + index, code, index) for index in range(8)]
    (found,) = evaluate([node_h100(100.0, kernel_events=events)])
    assert found.subject == "all 8 GPUs" and f"e.g. Xid {code} on GPU 0" in found.message
    assert [one.subject for one in found.explains] == [f"GPU {index}" for index in range(8)]


def test_seven_of_eight_gpus_are_seven_lines() -> None:
    found = evaluate([node_h100(100.0, kernel_events=[xid(35, 62, index) for index in range(7)])])
    assert len(found) == 7


def test_a_driver_that_hangs_over_a_fault_is_told_by_the_fault() -> None:
    def node(at: float) -> Sample:
        stuck = [Gap("nvml", "NVML does not answer: stuck in X on GPU 3", code="stuck")] if at > 40 else []
        return node_h100(at, kernel_events=[xid(35, 119)] if at > 35 else [], gaps=[*NOT_HERE, *stuck])

    (found,) = evaluate(over(TIMES, node))
    assert (found.id, [one.id for one in found.explains]) == ("gpu.xid.hw", ["nvml.stuck"])


# What must not be hidden.


def _of_port(rule_id: str, severity: Any, since: float, until: float | None = None, subject: str = "p") -> Finding:
    return Finding(rule_id, severity, "n1", subject, f"{rule_id} at {since:.0f}", since=since, until=until)


def _fold(*findings: Finding) -> list[Finding]:
    return fold_findings(findings, 8, cards=lambda: {"p": "card", "q": "card"})


def test_what_is_over_does_not_hide_what_goes_on() -> None:
    told = _fold(_of_port("ib.flap", "critical", 10, 20), _of_port("ib.transport", "warning", 500))
    assert {one.id for one in told} == {"ib.flap", "ib.transport"}


def test_what_was_over_long_before_is_another_story() -> None:
    told = _fold(_of_port("ib.flap", "warning", 9000), _of_port("ib.transport", "warning", 10, 20))
    assert len(told) == 2


def test_the_harmless_hides_nothing_grave() -> None:
    told = _fold(_of_port("ib.flap", "info", 10), _of_port("ib.transport", "warning", 10, subject="q"))
    assert [(one.id, one.folded) for one in told] == [("ib.transport", ["ib.flap p"])]


def test_a_card_that_fails_again_and_again_costs_little() -> None:
    """Hours of flaps that are over: a few lines of one card, and the work of a few passes."""
    ended = [_of_port("ib.transport", "warning", 1000.0 * at, 1000.0 * at + 10) for at in range(200)]
    assert len(_fold(*ended)) == 200
    assert MOST_HEADS < 20


def test_folding_a_card_anew_changes_nothing() -> None:
    health = Health()
    samples = CARDS["a bad cable"][0]
    for one in samples:
        health.see(one)
    first = [(one.folded, [kept.message for kept in one.explains]) for one in health.of("n1")]
    health.see(replace(samples[-1], sampled_at=samples[-1].sampled_at + 0.01))
    assert [(one.folded, [kept.message for kept in one.explains]) for one in health.of("n1")] == first
