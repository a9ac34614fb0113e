"""PCIe rules: width, speed, errors, ACS and GPUDirect."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.judge.health.link.pcie import replay_limit_per_min
from mltop.probes.model import PciDevice, Sample
from tests.builders.health_links import (
    bare_gpu,
    board,
    device,
    devices,
    event,
    judge,
    node,
    only,
    over,
    port,
    ports,
    told,
)
from tests.builders.health_samples import GPU_BUSES, sample

LIMITED = (
    "pci 0000:{bus}:00.0: 63.008 Gb/s available PCIe bandwidth, limited by {speed} GT/s PCIe x8 link at 0000:00:01.0 "
    "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)


# Width and speed


@pytest.mark.parametrize(
    ("load", "pcie", "message"),
    [
        ("training", {}, None),
        ("training", {"width": 8}, "GPU 5 PCIe link at x8 of x16"),
        ("idle", {"gen": 5, "width": 8}, "GPU 5 PCIe link at x8 of x16"),
        ("idle", {"gen": 1}, None),
        ("idle", {"gen": 1, "width": 8}, None),  # some platforms lower both; at work it is judged
        ("training", {"gen": 3, "width": None}, "GPU 5 PCIe link at gen 3 of gen 5 while busy"),
        ("training", {"gen": None, "gen_max": None}, None),
        ("training", {"width": None, "width_max": None}, None),
        ("training", {"width": 16, "width_max": 8}, None),
    ],
)
def test_the_link_of_a_gpu(load: str, pcie: dict[str, Any], message: str | None) -> None:
    found = judge(*over(range(0, 21, 5), lambda at: board(at, {5: {"pcie": pcie}}, loads={5: load})))
    assert [(one.id, one.severity, one.message) for one in found] == (
        [("pcie.width", "warning", message)] if message else []
    )


def test_speed_needs_ten_seconds_of_work_and_never_fires_on_one_sample() -> None:
    slow = {5: {"pcie": {"gen": 3}}}
    assert judge(board(0, slow)) == []
    assert judge(*over(range(0, 11, 5), lambda at: board(at, slow))) == []
    assert told(*over(range(0, 16, 5), lambda at: board(at, slow))) == [("warning", "pcie.width", "GPU 5")]
    bursts = over(range(0, 60, 5), lambda at: board(at, slow, loads={5: "idle" if at % 15 == 0 else "training"}))
    assert judge(*bursts) == []


def test_width_is_seen_in_one_sample() -> None:
    assert only(board(0, {5: {"pcie": {"width": 4}}})).evidence[0] == "PCI 0000:c3:00.0"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], []),
        ([device(4, link_width=8)], [("warning", "pcie.width", "mlx5_4")]),
        ([device(4, link_width=None)], []),
        ([device(4, link_width=8, link_width_max=255)], []),  # no width
        ([device(4, link_speed_gt_per_s=16.0)], [("warning", "pcie.width", "mlx5_4")]),
        # All eight alike: the slots are built so.
        ([device(number, link_width=8) for number in range(8)], [("info", "pcie.width", "mlx5_4")]),
    ],
)
def test_the_link_of_a_nic(changed: list[PciDevice], expected: list[tuple[str, str, str]]) -> None:
    found = told(*over(range(0, 11, 5), lambda at: node(at, pci=devices(*changed))))
    assert [one for one in found if one[2] == "mlx5_4"] == expected
    assert len(found) in (len(expected), 8)


def test_an_idle_nic_may_be_slow() -> None:
    slow = [device(4, link_speed_gt_per_s=2.5)]
    idle = port(4, rx_bytes_per_s=0.0, tx_bytes_per_s=0.0)
    assert judge(*over(range(0, 21, 5), lambda at: node(at, idle, pci=devices(*slow)))) == []


def test_what_like_nodes_have_is_how_the_machine_is_built() -> None:
    narrow = devices(device(4, link_width=8))
    gpus = {5: {"pcie": {"width": 8}}}
    everywhere = {index: {"pcie": {"width": 8}} for index in range(8)}
    assert judge(*(node(0.1 * number, name=f"n{number}", pci=narrow) for number in range(4))) == []
    assert judge(*(board(0.1 * number, everywhere, node=f"n{number}") for number in range(3)))[2:] == []
    healthy = [node(0.1 * number, name=f"n{number}", pci=devices()) for number in range(1, 4)]
    assert only(*healthy, node(0.9, name="n9", pci=narrow)).node == "n9"
    fine = [board(0.1 * number, node=f"n{number}") for number in range(1, 4)]
    assert only(*fine, board(0.9, gpus, node="n9")).subject == "GPU 5"


def test_all_gpus_alike_are_one_line() -> None:
    finding = only(board(0, {index: {"pcie": {"width": 8}} for index in range(8)}))
    assert finding.subject == "all 8 GPUs"


# What the kernel says


def _limited(at: float, buses: list[str], speed: str = "8.0", **fields: Any) -> Sample:
    events = [
        event("pcie_limited", at - 500, LIMITED.format(bus=bus, speed=speed), f"0000:{bus}:00.0") for bus in buses
    ]
    return board(at, kernel_events=events, **fields)


def test_limited_bandwidth_of_one_gpu_is_a_warning_and_of_all_a_design() -> None:
    finding = only(_limited(0, ["c3"]))
    assert (finding.id, finding.severity, finding.subject) == ("pcie.limited", "warning", "GPU 5")
    assert finding.since == -500
    every = only(_limited(0, list(GPU_BUSES)))
    assert (every.severity, every.subject) == ("info", "GPU 0")
    assert every.message == (
        "GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7: less PCIe bandwidth than they could use"
    )


@pytest.mark.parametrize(
    "one",
    [
        _limited(0, ["c3"], speed="2.5"),  # probed while asleep
        _limited(0, ["2b"]),  # a disk
        _limited(0, ["ff"]),  # no such device
        _limited(0, ["c3"], host={"uptime_s": 100.0}),  # of the boot before
    ],
)
def test_limits_that_mean_nothing(one: Sample) -> None:
    assert judge(one) == []


def test_a_limit_that_like_nodes_have_is_a_design() -> None:
    found = judge(*(_limited(0.1 * number, ["c3"], node=f"n{number}") for number in range(4)))
    assert {one.severity for one in found[-2:]} == {"info"}
    healthy = [board(0.1 * number, node=f"n{number}") for number in range(1, 4)]
    assert only(*healthy, _limited(0.9, ["c3"], node="n9")).severity == "warning"


# Errors


def test_the_limit_is_dcgms() -> None:
    assert replay_limit_per_min(32.0, 16) == 31  # 0.001 x 32 x 60 x 16 = 30.72
    assert replay_limit_per_min(8.0, 4) == 2
    assert replay_limit_per_min(None, None) == 31


def _counting(at: float, replay: int = 0, aer: dict[str, int] | None = None, **fields: Any) -> Sample:
    counted = {"correctable": 0, "nonfatal": 0, "fatal": 0, **(aer or {})}
    return board(
        at,
        {5: {"pcie": {"replay_count": 5_000 + replay}}},
        pci=devices(device(4, aer=counted), device(2, "gpu", aer={})),
        links=ports(),
        **fields,
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda n: {}, []),
        (lambda n: {"replay": 5 * n}, []),  # 30 in a minute
        (lambda n: {"replay": 6 * n}, [("warning", "pcie.replay", "GPU 5")]),
        (lambda n: {"aer": {"correctable": 5 * n}}, []),
        (lambda n: {"aer": {"correctable": 900 * n}}, [("warning", "pcie.replay", "mlx5_4")]),
        (lambda n: {"aer": {"nonfatal": n // 6}}, [("warning", "pcie.replay", "mlx5_4")]),
        (lambda n: {"aer": {"fatal": n // 6}}, [("critical", "pcie.replay", "mlx5_4")]),
        (lambda n: {"aer": {"fatal": 3}}, []),  # from before
    ],
)
def test_errors_per_minute(step: Any, expected: list[tuple[str, str, str]]) -> None:
    assert told(*(_counting(10.0 * n, **step(n)) for n in range(7))) == expected


def test_replays_are_told_with_their_rate_and_end() -> None:
    samples = [_counting(10.0 * n, replay=100 * min(n, 6)) for n in range(30)]
    finding = only(*samples[:7])
    assert finding.message == "600 PCIe replays/min on GPU 5"
    assert finding.evidence == ["its link may have 31/min"]
    assert only(*samples).until == 110  # a minute after the last one


def test_a_driver_reload_starts_the_counter_anew() -> None:
    assert judge(_counting(0), _counting(10, replay=-5_000), _counting(20, replay=-4_999)) == []


def test_a_fatal_error_in_the_log_is_critical_once() -> None:
    text = "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:c3:00.0"
    fatal = event("aer", 5.0, text, "0000:c3:00.0", severity="fatal")
    finding = only(*(_counting(10.0 * n, kernel_events=[fatal]) for n in range(1, 4)))
    assert (finding.severity, finding.message) == ("critical", "fatal PCIe error on GPU 5")
    assert judge(_counting(10_000, kernel_events=[fatal])) == []


def test_nvml_counts_fatal_errors_where_the_kernel_does_not() -> None:
    samples = [board(at, {2: {"pcie": {"errors": {"fatal_error": int(at > 15)}}}}, pci=[]) for at in (0.0, 10.0, 20.0)]
    assert told(*samples) == [("critical", "pcie.replay", "GPU 2")]


# ACS and GPUDirect


@pytest.mark.parametrize(
    ("fields", "fires"),
    [
        ({"host": {"is_virtual": False}}, True),
        ({"host": {"is_virtual": True}}, False),
        ({"host": {"is_virtual": None}}, False),
    ],
)
def test_acs_matters_on_bare_metal(fields: dict[str, Any], fires: bool) -> None:
    on = devices(device(4, acs=True), device(5, "gpu", acs=True))
    found = judge(board(0, pci=on, **fields))
    assert [one.message for one in found] == fires * [
        "ACS is on above 2 GPUs and NICs: they reach each other through the CPU"
    ]
    assert judge(sample(0, [bare_gpu(0)], pci=on, host={"is_virtual": False})) == []  # one GPU and no network
    assert judge(board(0, pci=devices(device(4, acs=None)), **fields)) == []


@pytest.mark.parametrize(
    ("kernel", "modules", "fields", "fires"),
    [
        ("5.4.0-150-generic", {"nvidia_peermem": False}, {}, True),
        ("5.4.0-150-generic", {"nvidia_peermem": True}, {}, False),
        ("5.4.0-150-generic", {"nvidia_peermem": False, "nv_peer_mem": True}, {}, False),
        ("5.4.0-150-generic", {}, {}, False),  # unknown
        ("5.12.0", {"nvidia_peermem": False}, {}, False),
        ("6.8.0-45-generic", {"nvidia_peermem": False}, {}, False),
        ("", {"nvidia_peermem": False}, {}, False),
        ("5.4.0", {"nvidia_peermem": False}, {"links": []}, False),
        ("5.4.0", {"nvidia_peermem": False}, {"links": [port(0, state="DOWN", physical_state="Disabled")]}, False),
        ("5.4.0", {"nvidia_peermem": False}, {"gpus": []}, False),
        ("5.4.0", {"nvidia_peermem": False}, {"links": [port(0, kind="roce")]}, False),  # a virtual machine's network
    ],
)
def test_gpudirect(kernel: str, modules: dict[str, bool], fields: dict[str, Any], fires: bool) -> None:
    one = node(0, **fields)
    one.host.kernel, one.host.modules, one.host.is_virtual = kernel, modules, True
    assert ("gdr.peermem" in [finding.id for finding in judge(one)]) == fires


def test_peermem_complains_in_the_log() -> None:
    text = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"
    finding = only(node(100, kernel_events=[event("peermem", 90, text, "nvidia-peermem")]))
    assert (finding.id, finding.since, finding.evidence) == ("gdr.peermem", 90, [text])
    assert judge(node(5000, kernel_events=[event("peermem", 90, text, "nvidia-peermem")])) == []
