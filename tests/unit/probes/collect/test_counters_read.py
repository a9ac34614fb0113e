"""Whether counters were read twice: collectors say since when all have been read, the rules when that is not enough."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.agent.frames import Frames
from mltop.probes.collect.host.source import HostSource
from mltop.probes.collect.links import LinkSource
from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.unknowns import growth_unknown
from mltop.probes.model import Sample, Unknown
from mltop.probes.model.sample import UNDATED_S, Reads
from mltop.probes.model.vocabulary import COUNTER_KINDS
from tests.builders.evaluated import evaluated
from tests.builders.health_samples import node_h100
from tests.fakes.proctree import ProcTree
from tests.fakes.sysfs import SysTree

GROWING = {rule.id: rule.grows for rule in RULES if rule.grows}


def read(at: float, *since: float) -> Sample:
    """``since``: for GPUs, ports, PCI devices and the host; one for all of them."""
    times = since if len(since) > 1 else since * 4
    return node_h100(at, counters_read_at=dict(zip(COUNTER_KINDS, times, strict=True)))


def growth(*samples: Sample) -> dict[str, list[str]]:
    found = evaluated(samples).unknowns(at_the_end=True)
    return {one.what: one.rules for one in found if one.what.startswith("growth.")}


def test_of_one_reading_nobody_knows_whether_counters_grow() -> None:
    found = growth(read(1000.0, 999.0))
    assert set(found) == {"growth.gpus", "growth.links", "growth.pci", "growth.host"}
    assert {"nvlink.replay", "nvlink.crc", "pcie.replay", "gpu.ecc.sbe_rate"} <= set(found["growth.gpus"])
    assert {"ib.ber", "ib.recovery", "ib.wait", "ib.flap", "eth.errors"} <= set(found["growth.links"])
    assert found["growth.pci"] == ["pcie.replay"]
    assert {"mem.oom", "mem.mce"} <= set(found["growth.host"])
    assert growth(read(1000.0, 999.0), read(1001.0, 1000.2)) == found, "that is the same reading"


def test_when_all_were_read_again_that_is_known() -> None:
    first = read(1000.0, 999.0)
    assert growth(first, read(1006.0, 1000.6)) == {}
    assert set(growth(first, read(1006.0, 1000.6, 1000.6, 1000.6, 1000.1))) == {"growth.host"}
    assert growth(first, read(1003.0, 1000.6, 999.0, 999.0, 999.0), read(1006.0, 999.0, 1001.0, 1001.0, 1001.0)) == {}
    rebooted = read(1007.0, 1006.9)
    rebooted.boot_id = "boot-2"
    assert set(growth(first, read(1006.0, 1000.6), rebooted)) == set(growth(first)), "all counts anew"


def test_what_is_not_there_cannot_grow() -> None:
    bare = Sample("n1", 1000.0)
    assert growth(bare) == {}
    without_links = read(1000.0, 999.0)
    without_links.links = []
    assert "growth.links" not in growth(without_links)
    without_gpus = read(1000.0, 999.0)
    without_gpus.gpus = [replace(gpu, state="lost") for gpu in without_gpus.gpus]
    assert set(growth(without_gpus)) == {"growth.links", "growth.pci", "growth.host"}, "nothing can be read of them"


def test_samples_of_versions_that_do_not_say_it_are_given_half_a_minute() -> None:
    old = [node_h100(1000.0 + at) for at in range(0, int(UNDATED_S) + 1, 5)]
    assert growth(*old) == {}
    assert set(growth(*old[:-1])) == {"growth.gpus", "growth.links", "growth.pci", "growth.host"}


def test_while_samples_come_it_is_not_unknown() -> None:
    health = Health()
    health.see(read(1000.0, 999.0))
    assert health.unknowns() == []


def test_what_is_missing_is_said_with_the_option_that_helps() -> None:
    reads = Reads()
    reads.see(read(1000.0, 999.0))
    (links,) = [one for one in growth_unknown(read(1000.0, 999.0), RULES, reads) if one.what == "growth.links"]
    assert isinstance(links, Unknown)
    assert "whether they grow was not judged" in links.why
    assert "--timeout" in links.fix


@pytest.mark.parametrize("rule_id", GROWING)
def test_a_rule_about_growth_does_not_fire_on_one_reading(rule_id: str) -> None:
    """So that its silence means nothing then."""
    assert set(GROWING[rule_id]) <= set(COUNTER_KINDS)
    sample = deepcopy(read(1000.0, 999.0))  # its parts are shared by all samples
    for link in sample.links:
        link.counters = {name: value + 10_000 for name, value in link.counters.items()}
    for gpu in sample.gpus:
        gpu.pcie.replay_count = 10_000
    found = evaluated([sample]).findings()
    assert rule_id not in [one.id for one in found if one.id not in ("ib.saturated", "ib.flap")]


def test_ports_are_read_a_second_time_within_five_seconds(tmp_path: Path) -> None:
    source = LinkSource(str(SysTree(tmp_path).h100_node().root))
    assert source.counters_read_at is None
    source.read(100.0)
    assert source.counters_read_at == 100.0
    for now in range(101, 106):
        source.read(float(now))
    assert source.counters_read_at is not None
    assert source.counters_read_at >= 100.5
    for now in range(106, 120):
        source.read(float(now))
        assert source.counters_read_at >= now - 5.0
    source.close()


def test_the_machines_counters_are_read_a_second_time_within_five_seconds(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    (tree.root / "vmstat").write_text("pswpin 0\npswpout 0\noom_kill 0\n")
    (tree.root / "self" / "cgroup").write_text("0::/\n")
    source = HostSource(str(tmp_path))
    assert source.counters_read_at is None
    seen = []
    for now in range(100, 145):
        source.read(float(now))
        assert source.counters_read_at is not None
        seen.append(source.counters_read_at)
    source.close()
    assert seen[0] == 100.0
    assert seen[5] >= 100.5
    assert all(at >= 100 + second - 30.5 for second, at in enumerate(seen))


def test_that_all_were_read_twice_is_told_at_once() -> None:
    """Between two whole samples is a minute: whoever waits for the second reading does not wait for that, too."""
    frames = Frames("n1")
    read_at = {at: read(1000.0 + at, 999.0 if at < 6 else 1000.0 + at - 5.0) for at in range(9)}
    sent = [at for at, sample in read_at.items() if "sample" in [message.kind for message in frames.of(sample)]]
    assert sent == [0, 6]
