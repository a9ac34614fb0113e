"""Any number of anything from one node: what it costs grows as the number, and what is said stays readable."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import Hit, Rule
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import (
    BlockedProcess,
    Finding,
    Gap,
    GpuSample,
    KernelEvent,
    LinkSample,
    NvlinkLink,
    PciDevice,
    RankSample,
    Sample,
)
from tests.builders.health_samples import node_h100

NOW = 100_000.0
SMALL, LARGE = 250, 1000
MOST_TIMES = 9.0  # what is linear takes 4 times as long, what is quadratic 16 times


def sick_gpu(index: int) -> GpuSample:
    """Everything that a rule about GPUs looks for, at once."""
    gpu = GpuSample(
        index, f"GPU-{index}", "NVIDIA H100", f"{index:08x}:1b:00.0", state=("ok", "lost", "error")[index % 3]
    )
    gpu.busy, gpu.power_w, gpu.power_limit_w, gpu.power_limit_default_w = 0.99, 300.0 + index % 7, 500.0, 700.0
    gpu.temperature_c, gpu.temperature_margin_c, gpu.memory_temperature_c = 60.0 + index % 40, float(index % 9), 99.0
    gpu.memory_temperature_max_c, gpu.sm_clock_mhz, gpu.sm_clock_max_mhz = 95.0, 1000 + index % 900, 1980
    gpu.throttle_reasons = ["hw_thermal", "sw_thermal", "power_brake", "sw_power_cap"]
    gpu.ecc.enabled, gpu.ecc.uncorrected_volatile, gpu.ecc.sram_uncorrected_aggregate = False, index % 5, 9
    gpu.remap.failed, gpu.remap.pending, gpu.remap.uncorrected = index % 2 == 0, True, 600
    gpu.recovery_action, gpu.mig_pending, gpu.mig_enabled = "gpu_reset", True, False
    gpu.driver, gpu.vbios, gpu.persistence, gpu.compute_mode = (
        f"570.{index % 50}",
        f"96.{index % 3}",
        False,
        "prohibited",
    )
    gpu.memory_used_bytes, gpu.processes, gpu.fabric.state = 1 << 36, [], "in_progress"
    gpu.pcie.width, gpu.pcie.width_max, gpu.pcie.gen, gpu.pcie.gen_max = 8, 16, 5, 5
    gpu.nvlink.links = [NvlinkLink(0, active=index % 2 == 0, errors={"replay": index, "crc": index})]
    return gpu


def with_gpus(count: int) -> Sample:
    return Sample("n1", NOW, gpus=[sick_gpu(index) for index in range(count)])


def with_ranks(count: int) -> Sample:
    sample = node_h100(NOW)
    sample.ranks = [
        RankSample(
            10_000 + number,
            number,
            job=f"job {number % 50}",
            world_size=count,
            gpus=[number % 8],
            state="ZDR"[number % 3],
            cpus_allowed=str(number % 100),
            settings={"NCCL_P2P_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_IB_DISABLE": "1"},
            open_files=1000,
            open_files_limit=1024,
            memlock_limit_bytes=65536,
            rss_bytes=number << 20,
            uid=number % 7,
        )
        for number in range(count)
    ]
    sample.host.blocked = [BlockedProcess(10_000 + number, "python", 500.0, "nfs", number) for number in range(count)]
    return sample


def with_links(count: int) -> Sample:
    sample = node_h100(NOW)
    kinds = ("infiniband", "roce", "ethernet", "efa")
    sample.links = [
        LinkSample(
            f"mlx5_{number}",
            kind=kinds[number % 4],
            netdev=f"eth{number}",
            state=("ACTIVE", "DOWN", "INIT")[number % 3],
            physical_state="Polling",
            rate_bits_per_s=1e11 * (1 + number % 4),
            pci_bus_id=f"{number:04x}:18:00.0",
            tx_bytes_per_s=1e10,
            saturated=["symbol_error"],
            error="device vanished" if number % 11 == 0 else None,
            error_code="device_vanished" if number % 11 == 0 else "",
            counters={"symbol_error": number, "port_xmit_wait": number, "port_xmit_data": 1, "rx_crc_errors": number},
        )
        for number in range(count)
    ]
    return sample


def with_pci(count: int) -> Sample:
    sample = node_h100(NOW)
    sample.pci = [
        PciDevice(
            f"{number:04x}:1b:00.0",
            ("gpu", "nic")[number % 2],
            0x10DE,
            0x2330 + number % 3,
            driver="nvidia",
            link_width=8,
            link_width_max=16,
            acs=True,
            aer={"correctable": number, "nonfatal": number},
        )
        for number in range(count)
    ]
    return sample


def with_events(count: int) -> Sample:
    """Far more than an agent keeps."""
    kinds = (
        "xid",
        "sxid",
        "off_bus",
        "oom",
        "hung_task",
        "nfs",
        "mlx5",
        "link",
        "disk_io",
        "pcie_limited",
        "aer",
        "mce",
    )
    sample = node_h100(NOW)
    sample.kernel_events = [
        KernelEvent(
            NOW - 1 - number / 10,
            kinds[number % 12],
            f"0000:{number % 256:02x}:00",
            74 + number % 9,
            "text",
            pid=number,
        )
        for number in range(count)
    ]
    return sample


def with_gaps(count: int) -> Sample:
    sample = with_gpus(count)
    for gpu in sample.gpus:
        gpu.state = "ok"
    sample.gaps = [Gap(f"gpu.{number}.{name}", "no", "") for number in range(count // 4) for name in GAPS]
    return sample


GAPS = ("temperature_margin_c", "temperature_slowdown_c", "ecc", "throttle_reasons")
MADE = (with_gpus, with_ranks, with_links, with_pci, with_events, with_gaps)


def took_s(made: Callable[[int], Sample], count: int) -> float:
    """Of three samples of a node, folded, with what is unknown."""
    samples = [made(count) for _ in range(3)]
    health = Health(eager=True)
    began = time.process_time()
    for number, sample in enumerate(samples):
        sample.sampled_at += 20.0 * number
        health.see(sample)
        health.of("n1")
    unknowns_of(samples[-1])
    return time.process_time() - began


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
def test_four_times_as_much_does_not_take_sixteen_times_as_long(made: Callable[[int], Sample]) -> None:
    took_s(made, SMALL)  # what is imported and cached at first
    assert any(took_s(made, LARGE) < MOST_TIMES * took_s(made, SMALL) for _ in range(3))


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
def test_what_is_said_stays_readable(made: Callable[[int], Sample]) -> None:
    health = Health(eager=True)
    for number in range(3):
        sample = made(LARGE)
        sample.sampled_at += 20.0 * number
        health.see(sample)
    found = [one for one in health.findings() if one.until is None]
    assert not [one.message for one in found if one.id == "health.failed" and "more than" not in one.message]
    assert max(len([one for one in found if one.id == rule.id]) for rule in RULES) <= 65
    assert max((len(one.folded) for one in found), default=0) <= 65
    assert max(len(text) for one in found for text in (one.message, one.action, *one.evidence)) < 4000


def many_findings(count: int) -> list[Finding]:
    rules = [rule for rule in RULES if rule.id.startswith(("gpu.", "nvlink."))]
    return [
        Finding(
            rules[number % len(rules)].id, "critical", "n1", f"GPU {number // 40}", "text", since=NOW, remedy="reset"
        )
        for number in range(count)
    ]


def test_twenty_thousand_findings_are_folded_in_no_time() -> None:
    def folded_s(count: int) -> float:
        findings, best = many_findings(count), float("inf")
        gc.disable()  # what other tests have left is not what this one measures
        try:
            for _ in range(3):
                began = time.process_time()
                fold_findings(findings, working_gpus=8)
                best = min(best, time.process_time() - began)
        finally:
            gc.enable()
        return best

    assert folded_s(20_000) < MOST_TIMES * folded_s(5_000)


def test_of_very_many_hits_of_one_rule_most_are_one_line() -> None:
    def check(_: Moment) -> list[Hit]:
        return [Hit(f"GPU {number}", f"GPU {number} is sick") for number in range(20_000)]

    node = NodeJudge("n1", [Rule("test.rule", "warning", 0.0, "act", check)])
    node.see(Sample("n1", NOW))
    found = node.findings()
    assert len(found) == 65
    assert found[-1].message == "… and 19,936 more, e.g. GPU 64 is sick"
    node.see(Sample("n1", NOW + 1))
    assert {one.subject for one in node.findings()} == {one.subject for one in found}, "the same ones, not others"


def test_what_ends_in_very_many_places_is_bounded_too() -> None:
    def check(moment: Moment) -> list[Hit]:
        return [Hit(f"job {moment.now.sampled_at:.0f} {number}", "sick") for number in range(60)]

    node = NodeJudge("n1", [Rule("test.rule", "warning", 0.0, "act", check)])
    for second in range(100):
        node.see(Sample("n1", NOW + second))
    ended = [one for one in node.findings() if one.until is not None]
    assert len(ended) == 257
    assert ended[0].message == "… and 5,684 more that have ended"


def test_a_node_that_names_ever_new_counters_says_so() -> None:
    node = Health()
    for second in range(40):
        sample = with_links(400)
        sample.sampled_at += second
        for link in sample.links:
            link.device = f"{link.device}_{second}"
        node.see(sample)
    assert "names more than 4,096 counters or gauges" in str(node.findings())
