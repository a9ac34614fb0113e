"""Samples of nodes and recordings: every number that hardware cannot have is unknown, by the one table of ranges."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import GpuProcess, MigInstance, Sample, to_json
from mltop.probes.model.plausible import GPU, LINKS, PCI, Range
from mltop.probes.reach.receiving import sample_of_frame, sample_of_line, sift
from tests.builders.health_samples import node_h100

NOT_SIFTED = ("index", "pid")  # without them there is no record: receipt.py leaves such a one out


def whole() -> Sample:
    sample = deepcopy(node_h100(1e9))  # its parts are shared by all samples
    sample.gpus[0].processes = [GpuProcess(7, 1 << 30, gpu_instance=1)]
    sample.gpus[0].mig_instances = [MigInstance(0, gpu_instance=1, compute_instance=0)]
    sample.gpus[0].pcie.errors = {"replay": 1}
    sample.gpus[0].nvlink.links[0].errors = {"crc": 1}
    sample.gpus[0].throttle_share = {"sw_power_cap": 0.5}
    sample.pci[0].aer = {"fatal": 0}
    return sample


def put(holder: Any, path: list[str], value: float) -> None:
    """Into a sample's JSON: ``*`` is the first of a list, or any key of a table."""
    for name in path[:-1]:
        holder = holder[0] if name == "*" and isinstance(holder, list) else holder[name]
    holder[next(iter(holder)) if path[-1] == "*" else path[-1]] = value


def get(holder: Any, path: list[str]) -> Any:
    for name in path:
        holder = (
            holder[0]
            if isinstance(holder, list)
            else next(iter(holder.values()), None)
            if name == "*"
            else holder[name]
        )
    return holder


def outside(limits: Range) -> float:
    beyond = limits.high * 2 + 1
    return beyond if isinstance(limits.high, float) else int(beyond)


ROWS = [
    *[("gpus", path, limits) for path, limits in GPU.items()],
    *[("pci", path, limits) for path, limits in PCI.items()],
    *[("links", path, limits) for path, limits in LINKS.items()],
]


def test_what_is_healthy_passes() -> None:
    sample = whole()
    before = to_json(sample)
    assert sift(sample) == []
    assert to_json(sample) == before


@pytest.mark.parametrize(("table", "path", "limits"), ROWS, ids=[f"{table}.{path}" for table, path, _ in ROWS])
def test_every_row_of_the_table_is_sifted(table: str, path: str, limits: Range) -> None:
    names = path.split(".")
    if names[-1] in NOT_SIFTED:
        return
    told = json.loads(to_json(whole()))
    value = outside(limits)
    put(told[table][0], names, value)
    for decode in (
        lambda text: sample_of_line(text),
        lambda text: sample_of_frame(b'{"kind":"sample","sample":' + text + b"}"),
    ):
        sample = decode(json.dumps(told).encode())
        found = json.loads(to_json(sample))
        assert get(found[table][0], names) != value
    gaps = [gap for gap in sample_of_line(json.dumps(told).encode()).gaps if gap.code == "implausible"]
    assert len(gaps) == 1
    assert limits.shown(value) in gaps[0].why


@pytest.mark.parametrize(
    ("table", "path", "rule"),
    [
        ("gpus", "temperature_c", "gpu.temp.peer"),
        ("gpus", "ecc.uncorrected_volatile", "gpu.ecc.dbe_volatile"),
        ("gpus", "remap.banks.none", "gpu.remap.banks"),
        ("gpus", "pcie.width", "pcie.width"),
        ("gpus", "pcie.replay_count", "pcie.replay"),
        ("gpus", "nvlink.links.*.speed_bytes_per_s", "nvlink.speed"),
        ("gpus", "nvlink.links.*.errors.*", "nvlink.crc"),
        ("pci", "link_width", "pcie.width"),
        ("pci", "link_width_max", "pcie.width"),
        ("pci", "aer.*", "pcie.replay"),
        ("links", "rate_bits_per_s", "ib.rate"),
        ("links", "counters.*", "ib.ber"),
    ],
)
def test_a_rule_that_needs_it_is_unknown_with_the_value_in_the_reason(table: str, path: str, rule: str) -> None:
    limits = {"gpus": GPU, "pci": PCI, "links": LINKS}[table][path]
    value = outside(limits)
    told = json.loads(to_json(whole()))
    put(told[table][0], path.split("."), value)
    (unknown,) = [one for one in unknowns_of(sample_of_line(json.dumps(told).encode())) if rule in one.rules]
    assert limits.shown(value) in unknown.why


def test_what_two_numbers_together_tell() -> None:
    sample = whole()
    sample.gpus[0].sm_clock_mhz = 4 * (sample.gpus[0].sm_clock_max_mhz or 0)
    sample.gpus[1].memory_used_bytes = 1 + (sample.gpus[1].memory_total_bytes or 0)
    gaps = sift(sample)
    assert [gap.what for gap in gaps] == ["gpu.0.sm_clock_mhz", "gpu.1.memory_used_bytes"]
    assert sample.gpus[0].sm_clock_mhz is None
    assert sample.gpus[1].memory_used_bytes is None


@pytest.mark.parametrize(
    "path", ["memory_errors_corrected", "load_1m", "oom_kills", "pressure.io_full", "filesystems.*.available_bytes"]
)
def test_a_machine_counts_from_0_on(path: str) -> None:
    told = json.loads(to_json(whole()))
    put(told["host"], path.split("."), -1)
    sample = sample_of_line(json.dumps(told).encode())
    assert get(json.loads(to_json(sample))["host"], path.split(".")) is None
    (gap,) = [gap for gap in sample.gaps if gap.code == "implausible"]
    assert "it says -1" in gap.why and gap.what.startswith("host.") and gap.what.endswith(path.rpartition(".")[2])
