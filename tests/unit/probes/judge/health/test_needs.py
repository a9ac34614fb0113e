"""The third state of all rules: whose input is missing is unknown, never silently fine."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import Gap, LinkSample, Sample, Unknown
from tests.builders.health_samples import NOT_HERE, node_h100

RULES = {rule.id: rule for rule in ALL_RULES}
# What a gap alone can tell of: there is no value that could be None.
BY_GAPS = (
    "nvml",
    "gpu.*.fabric.status",
    "gpu processes",
    "pci",
    "pci.acs",
    "kernel_log",
    "links",
    "ranks",
    "host.blocked",
    "host.filesystems.counters",
)
HOST_FIELDS = {
    "load": ("load_1m",),
    "memory": ("memory_available_bytes",),
    "swap": ("swap_used_bytes",),
    "shm": ("shm_used_bytes",),
    "filesystems": (),
}
PRESSURES = {"cpu": ("cpu_some",), "memory": ("memory_some",), "io": ("io_some",)}
LINK_FIELDS = {
    "state": "state",
    "phys_state": "physical_state",
    "rate": "rate_bits_per_s",
    "has_chardev": "has_chardev",
}
CASES = [(rule_id, need) for rule_id, rule in RULES.items() for need in rule.needs]


def whole() -> Sample:
    """A node that tells everything that any rule needs: also a RoCE port, an EFA adapter, old GPUs' retired pages."""
    return pickle.loads(_whole())  # a fifth of what deepcopy takes


@cache
def _whole() -> bytes:
    sample = deepcopy(node_h100(1000.0, gaps=[]))  # its parts are shared by all samples
    for gpu in sample.gpus:
        gpu.retired_pages, gpu.retired_pages_double_bit, gpu.retired_pages_pending = 0, 0, False
        gpu.temperature_slowdown_c, gpu.temperature_margin_c = 92.0, 30.0
    sample.host.lustre_health = "healthy"
    ethernet = next(link for link in sample.links if link.kind == "ethernet")
    infiniband = next(link for link in sample.links if link.kind == "infiniband")
    for device, kind, like in (("mlx5_8", "roce", infiniband), ("rdmap0s1", "efa", infiniband)):
        port = deepcopy(like)
        port.device, port.kind, port.pci_bus_id = device, kind, None
        port.counters |= {f"netdev_{name}": value for name, value in ethernet.counters.items()}
        port.counters |= {"roce_slow_restart": 0, "rx_drops": 0, "no_completion_cmds": 0}
        sample.links.append(port)
    return pickle.dumps(sample)


def alternatives(need: str) -> list[str]:
    return need.split(" | ")


def telling(found: list[Unknown], rule_id: str) -> list[Unknown]:
    return [one for one in found if rule_id in one.rules]


def is_told_by_values(need: str) -> bool:
    """Of single counters only gaps tell: which ones a port has is up to its driver."""
    if need in BY_GAPS or need in ("host.filesystems", "gpu.*.nvlink.links"):
        return False
    return not need.startswith("links.*.") or need[8:] in (*LINK_FIELDS, "counters")


def take_away(sample: Sample, need: str, only: bool = False) -> None:
    """The value is None wherever it could stand, or (``only``) for GPU 3, for mlx5_1, for the device of GPU 0."""
    kind, _, rest = need.partition(".")
    if kind == "gpu":
        for gpu in sample.gpus[3:4] if only else sample.gpus:
            blank(gpu, rest.removeprefix("*."))
    elif need.startswith("host.pressure."):
        for name in PRESSURES[rest.removeprefix("pressure.")]:
            setattr(sample.host.pressure, name, None)
    elif need == "host.cgroups.cpu":
        for group in sample.host.cgroups:
            group.cpu_throttled_fraction = None
    elif kind == "host":
        for name in HOST_FIELDS.get(rest, (rest,)):
            setattr(sample.host, name, {} if rest in ("services", "modules") else None)
    elif kind == "ranks":
        for rank in sample.ranks:
            setattr(rank, rest, "" if rest == "cpus_allowed" else None)
    elif kind == "links":
        for link in sample.links:
            if not only or link.device == "mlx5_1":
                blank_link(link, rest.removeprefix("*."))
    else:
        for device in sample.pci:
            if only and device.bus_id != "0000:1b:00.0":
                continue
            device.link_width, device.aer = (None, device.aer) if need == "pci.*.link" else (device.link_width, {})


def blank(record: Any, path: str) -> None:
    head, _, rest = path.partition(".")
    if head == "nvlink":
        for link in record.nvlink.links:
            setattr(link, rest, {} if rest == "errors" else None)
    elif rest:
        blank(getattr(record, head), rest)
    else:
        setattr(record, head, None)


def blank_link(link: LinkSample, name: str) -> None:
    if name == "counters":
        link.counters = {}
    else:
        setattr(link, LINK_FIELDS[name], None)


def test_a_whole_sample_leaves_nothing_unknown() -> None:
    assert unknowns_of(whole()) == []
    assert unknowns_of(node_h100(1000.0)) == [], "what a node of this kind does not have is not missed"
    assert {gap.kind for gap in NOT_HERE} == {"unsupported"}


def test_every_rule_states_what_it_needs() -> None:
    assert len(RULES) == 106
    assert [rule.id for rule in RULES.values() if not rule.needs] == []


@pytest.mark.parametrize(
    ("rule_id", "need"), [case for case in CASES if all(map(is_told_by_values, alternatives(case[1])))]
)
def test_a_value_that_is_not_there_is_unknown_although_no_gap_says_why(rule_id: str, need: str) -> None:
    sample = whole()
    for one in alternatives(need):
        take_away(sample, one)
    (unknown,) = telling(unknowns_of(sample), rule_id)
    assert unknown.why == "the node does not report it"
    for one in alternatives(need)[1:]:
        sample = whole()
        take_away(sample, one)
        assert telling(unknowns_of(sample), rule_id) == [], f"without {one} the other one will do"


@pytest.mark.parametrize(("rule_id", "need"), CASES)
def test_a_gap_makes_it_unknown_and_one_that_is_not_missed_does_not(rule_id: str, need: str) -> None:
    for names in gaps_about(need):
        found = {kind: telling(unknowns, rule_id) for kind, unknowns in unknowns_by_kind(need, *names).items()}
        assert found["unknown"], names
        assert {(one.why, one.fix) for one in found["unknown"]} == {("because", "sudo")}
        assert found["starting"] == []
        assert [one for one in found["unsupported"] if one.severity != "info"] == []


@cache
def unknowns_by_kind(need: str, *names: str) -> dict[str, list[Unknown]]:
    """Of all rules, by the kind of the gaps of these names; once for all rules that need it."""
    sample = whole()
    for one, name in zip(alternatives(need), names, strict=True):
        if is_told_by_values(one):
            take_away(sample, one, only=not name.startswith(("gpu.*", "host.", "ranks", "nvml")))
    found = {}
    for kind in ("unknown", "starting", "unsupported"):
        sample.gaps = [Gap(name, "because", "sudo", kind) for name in names]
        found[kind] = unknowns_of(sample)
    return found


def gaps_about(need: str) -> Iterator[list[str]]:
    """As collectors name them: the field of all, of one thing, of all that is read with it, in braces with others."""
    ways = alternatives(need)
    yield [one.replace("pci.*", "pci.0000:1b:00.0").replace("links.*", "links.mlx5_1") for one in ways]
    if need.startswith("gpu.*."):
        yield [one.replace("*", "3") for one in ways]
        yield [f"gpu.*.{{compute_capability,{one[6:]}}}" for one in ways]
        yield ["nvml" for _ in ways]
    if need.startswith("host."):
        yield [one if one.count(".") > 1 or "|" in need else f"host.{{hostname,{one[5:]}}}" for one in ways]


def test_at_the_end_what_has_not_come_yet_is_unknown_too() -> None:
    sample = whole()
    sample.host.load_1m = None
    sample.gaps = [Gap("host.load", "first look", kind="starting")]
    assert telling(unknowns_of(sample), "cpu.load") == []
    (unknown,) = telling(unknowns_of(sample, at_the_end=True), "cpu.load")
    assert unknown.why == "first look"


@pytest.mark.parametrize(
    ("rule_id", "fields"),
    [
        ("gpu.temp.hbm", ("memory_temperature_max_c", "memory_temperature_margin_c")),
        ("gpu.temp.margin", ("temperature_margin_c", "temperature_slowdown_c")),
    ],
)
def test_a_rule_that_has_nothing_to_go_by_says_so_and_nobody_misses_it(rule_id: str, fields: tuple[str, ...]) -> None:
    sample = whole()
    for name in fields:
        for gpu in sample.gpus:
            setattr(gpu, name, None)
        sample.gaps.append(Gap(f"gpu.*.{name}", "not supported", kind="unsupported"))
    (unknown,) = telling(unknowns_of(sample), rule_id)
    assert unknown.severity == "info"


def test_the_severity_of_what_is_unknown_is_that_of_its_gravest_rule() -> None:
    sample = whole()
    sample.gaps = [Gap("host.governor", "no"), Gap("kernel_log", "needs root")]
    sample.host.governor = None
    assert {one.what: one.severity for one in unknowns_of(sample)} == {
        "host.governor": "info",
        "kernel_log": "critical",
    }


def test_very_many_gaps_are_few_lines() -> None:
    sample = whole()
    sample.gaps = [Gap(f"links.mlx5_{number}.counters", f"error {number}") for number in range(5000)]
    found = unknowns_of(sample)
    assert len(found) == 65
    assert found[-1].why == "4,936 more things are not known"
    assert "ib.ber" in found[-1].rules
