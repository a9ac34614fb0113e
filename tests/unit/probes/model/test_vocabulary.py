"""Words that programs decide by: closed, and strict where they come in."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from mltop.probes.model import (
    SEVERITIES,
    Gap,
    GapCode,
    GapKind,
    GpuSample,
    HostSample,
    MigInstance,
    NodeState,
    Sample,
    gravity,
    to_json,
)
from mltop.probes.model.gap import subject_text
from mltop.probes.model.sample import marked_not_here
from mltop.probes.reach.receiving import UNREADABLE, sample_of_frame, sample_of_line
from mltop.probes.record import read_recording
from tests.documents import ROOT

OLD = ROOT / "tests/fixtures/recordings/before_gap_subjects.jsonl.gz"
NOW = 1_763_640_000.0


def told(**changes: Any) -> bytes:
    """A sample's JSON with words changed: "gpus.0.state" and the like."""
    sample = json.loads(
        to_json(Sample("n1", NOW, gpus=[GpuSample(0, busy=0.5), GpuSample(1)], gaps=[Gap("host", "w")]))
    )
    for path, word in changes.items():
        *above, last = path.split("__")
        part = sample
        for name in above:
            part = part[int(name)] if name.isdigit() else part[name]
        part[last] = word
    return json.dumps(sample).encode()


@pytest.mark.parametrize(
    ("what", "source", "item", "fields"),
    [
        ("kernel_log", "kernel_log", "", []),
        ("gpu processes", "gpu processes", "", []),
        ("gpu.3.power_w", "gpu", "3", ["power_w"]),
        ("gpu.3", "gpu", "3", []),
        ("gpu.*.{sm_active,tensor_active}", "gpu", "*", ["sm_active", "tensor_active"]),
        ("gpu.1.nvlink.errors", "gpu", "1", ["nvlink.errors"]),
        (
            "gpu.0.mig_instances.1.{sm_active,dram_active}",
            "gpu",
            "0",
            ["mig_instances.1.sm_active", "mig_instances.1.dram_active"],
        ),
        ("host.{governor,services}", "host", "", ["governor", "services"]),
        ("links.mlx5_0.counters", "links", "mlx5_0", ["counters"]),
        ("links.rates", "links", "", ["rates"]),
        ("pci.0000:9b:00.0.link", "pci", "0000:9b:00.0", ["link"]),
        ("pci.{0000:00:05.0,0000:00:06.0}.aer", "pci", "{0000:00:05.0,0000:00:06.0}", ["aer"]),
        ("pci.acs", "pci", "", ["acs"]),
        ("rank.0-3", "rank", "0-3", []),
        ("rank.4711.world_size", "rank", "4711", ["world_size"]),
        ("node.gpu01.example.org", "node", "gpu01.example.org", []),
    ],
)
def test_what_a_gap_is_about_is_data_and_text(what: str, source: str, item: str, fields: list[str]) -> None:
    gap = Gap(what, "why")
    assert (gap.source, gap.item, gap.fields) == (source, item, fields)
    assert subject_text(source, item, fields) == what
    assert Gap.about(source, *fields, item=item, why="why") == gap


def test_several_pci_addresses_were_a_field_in_an_older_version() -> None:
    gap = Gap("pci.{0000:00:05.0,0000:00:06.0}.aer", "why", source="pci", fields=["{0000:00:05.0,0000:00:06.0}.aer"])
    assert (gap.items, gap.fields) == (["0000:00:05.0", "0000:00:06.0"], ["aer"])


HIDDEN = [
    Gap.about("host", "clock_synchronized", "clock_error_s", why="adjtimex says so", fix="chronyc tracking"),
    Gap.about("host", "services", why="no systemd here", kind="unsupported"),
    Gap.about("pci", "aer", item="{0000:00:05.0,0000:00:06.0}", why="no counters", kind="unsupported"),
    Gap.about("host", "governor", why="no control here", kind="unsupported"),
]


@pytest.mark.parametrize(
    ("host", "marked"),
    [
        (HostSample(is_virtual=False, is_confined=False), []),
        (HostSample(), []),
        (HostSample(is_confined=True), [0, 1]),
        (HostSample(is_virtual=True), [2, 3]),
        (HostSample(is_virtual=True, is_confined=True), [0, 1, 2, 3]),
    ],
)
def test_what_a_machine_of_its_kind_never_shows(host: HostSample, marked: list[int]) -> None:
    others = [
        Gap.about("kernel_log", why="no permission", fix="sudo mltop"),
        Gap.about("host", "services", why="systemctl has not answered yet", kind="starting"),
    ]
    found = marked_not_here([*HIDDEN, *others], host)
    assert [number for number, gap in enumerate(found) if gap.code == "not_here"] == marked
    assert all((found[number].kind, found[number].fix) == ("unsupported", "") for number in marked)
    assert [found[number].what for number in marked] == [HIDDEN[number].what for number in marked]
    assert found[len(HIDDEN) :] == others
    assert sample_of_line(to_json(Sample("n1", NOW, gaps=HIDDEN, host=host)).encode()).gaps == found[: len(HIDDEN)]


def test_a_subject_that_is_not_what_the_gap_says_does_not_count() -> None:
    assert Gap("gpu.3.power_w", "why", source="host", item="", fields=["load"]).source == "gpu"


@pytest.mark.parametrize("what", ["gpu.0." + "{" * 4_000_000, "gpu.0.{" + "a," * 2_000_000 + "}", "a, " * 1_000_000])
def test_a_subject_of_any_length_is_read_as_far_as_ours_go(what: str) -> None:
    assert len(Gap(what, "why").fields) <= 2048


def test_of_many_fields_some_are_taken() -> None:
    fields = [f"f{number}" for number in range(2000)]
    gap = {"what": subject_text("gpu", "0", fields), "why": "w", "source": "gpu", "item": "0", "fields": fields}
    sample = sample_of_line(told(gaps=[gap]))
    assert len(sample.gaps[0].fields) == 256
    assert "only 256 of 2000" in sample.gaps[1].why


def test_an_interface_with_a_dot_in_its_name_is_one_port() -> None:
    gap = Gap.about("links", "counters", item="eth0.100", why="why")
    assert Gap(**vars(gap)).item == "eth0.100"


def test_the_gravest_comes_first() -> None:
    assert sorted(SEVERITIES, key=gravity) == ["critical", "warning", "info"]


def test_a_state_s_fix_is_data_beside_the_sentence() -> None:
    state = NodeState.because("n1", "refused", "login refused (publickey)", "ssh n1 once by hand")
    assert state.reason == "login refused (publickey) (ssh n1 once by hand)"
    assert (state.why, state.fix) == ("login refused (publickey)", "ssh n1 once by hand")
    assert NodeState("n1", "lost", "the agent ended (exit code 1)").why == "the agent ended (exit code 1)"
    assert msgspec.convert(vars(state), NodeState) == state


def test_a_strange_word_costs_its_own_value_and_is_said() -> None:
    line = told(gaps__0__kind="guessed", gaps__0__code="melted", gpus__0__activity_source="nvtop")
    for sample in (sample_of_line(line), sample_of_frame(b'{"kind":"sample","sample":' + line + b"}")):
        assert (sample.gaps[0].kind, sample.gaps[0].code) == ("unknown", "")
        assert sample.gpus[0].busy == 0.5
    said = {gap.what: gap.why for gap in sample_of_line(line).gaps[1:]}
    assert set(said) == {"gpus.activity_source", "gaps.kind", "gaps.code"}
    assert "guessed" in said["gaps.kind"]


def test_a_gpu_whose_state_is_a_strange_word_is_not_fine() -> None:
    line = told(gpus__1__state="splendid")
    assert [gpu.state for gpu in sample_of_line(line).gpus] == ["ok", "error"]


def test_a_port_of_a_strange_kind_is_left_out() -> None:
    ports = [{"device": "a", "kind": "ethernet"}, {"device": "b", "kind": "token ring"}]
    sample = sample_of_line(told(links=ports))
    assert [link.device for link in sample.links] == ["a"]
    assert "token ring" in next(gap.why for gap in sample.gaps if gap.what == "links")


def test_what_is_no_word_at_all_is_unreadable_as_before() -> None:
    with pytest.raises(UNREADABLE):
        sample_of_line(told(gpus__0__state="splendid", gpus__1__busy="much"))
    with pytest.raises(UNREADABLE):
        sample_of_line(told(gaps__0__kind=7))


def test_many_strange_words_are_counted() -> None:
    gaps = [{"what": f"gpu.{index}.power_w", "why": "w", "kind": "guessed"} for index in range(40)]
    sample = sample_of_line(told(gaps=gaps))
    assert len(sample.gaps) == 40 + 8 + 1
    assert {gap.kind for gap in sample.gaps} == {"unknown"}


def test_healthy_samples_have_no_strange_words() -> None:
    gaps = [Gap("gpu.0.power_w", "w", kind=kind) for kind in get_args(GapKind)]
    sample = Sample("n1", NOW, gpus=[GpuSample(0, mig_instances=[MigInstance(0)])], gaps=gaps)
    sample.gaps += [Gap("nvml", "w", code=code) for code in get_args(GapCode)]
    assert sample_of_line(to_json(sample).encode()).gaps == sample.gaps


def test_a_recording_of_an_older_version_opens_with_subjects() -> None:
    """Made by the version before Gap.source; every second line is as versions before Gap.kind and Gap.code wrote it."""
    samples = list(read_recording(OLD).samples.by_time())
    assert [sample.node for sample in samples] == ["sim1", "sim2", "sim1", "sim2"]
    about = {(gap.source, gap.item): gap.fields for gap in samples[0].gaps}
    assert about["gpu", "*"] == ["sm_active", "tensor_active"]
    assert about["gpu", "1"] == ["mig_instances.0.sm_active", "mig_instances.0.dram_active"]
    assert about["pci", "0000:9b:00.0"] == ["link"]
    assert about["host", ""] == ["clock_synchronized", "clock_error_s"]
    assert [gpu.state for gpu in samples[0].gpus].count("lost") == 1
