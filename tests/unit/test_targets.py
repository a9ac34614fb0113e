"""What the user types for TARGETS, good and bad."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, expand, read_hostfile, resolve


def test_node_lists_expand_as_clustershell_does() -> None:
    assert expand("node[08-10,20]") == ["node08", "node09", "node10", "node20"]


@pytest.mark.parametrize("text", ["", "  ", "node[01-", "node[3-1]", "@"])
def test_a_bad_node_list_is_named(text: str) -> None:
    with pytest.raises(UsageProblem, match="-w"):
        expand(text)


def test_hostfiles_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# training nodes\nn01 slots=8\nn02:8\n\nn[03-04]   # two more\nn05.example.org\n")
    assert read_hostfile(path) == ["n01", "n02", "n03", "n04", "n05.example.org"]


def test_hostfile_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n01\nn[02\n")
    with pytest.raises(UsageProblem, match="line 2"):
        read_hostfile(path)
    with pytest.raises(UsageProblem, match="No such file"):
        read_hostfile(tmp_path / "missing")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageProblem, match="not text"):
        read_hostfile(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageProblem, match="names no host"):
        read_hostfile(path)


def test_nothing_typed_is_this_machine() -> None:
    targets = resolve(TargetOptions())
    assert targets.nodes == (platform.node(),)
    assert targets.title == "this machine"


def test_other_machines_are_refused_rather_than_half_watched() -> None:
    with pytest.raises(UsageProblem, match=r"nosuch-a,nosuch-b.*run mltop on the node"):
        resolve(TargetOptions(nodes=("localhost,nosuch-[a,b]".replace("[a,b]", "a,nosuch-b"),)))
    assert resolve(TargetOptions(nodes=("n[1-3]",), via="local")).nodes == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TargetOptions(job="abc"), "not a Slurm job id"),
        (TargetOptions(interval_s=0.0), "--interval 0"),
        (TargetOptions(interval_s=float("nan")), "--interval nan"),
        (TargetOptions(timeout_s=-1), "--timeout -1"),
        (TargetOptions(python="/nowhere/python"), "no such program"),
        (TargetOptions(via="pdsh"), "this machine only"),
    ],
)
def test_bad_values_are_named(options: TargetOptions, words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        resolve(options)


def test_options_after_the_command_win_over_those_before_it() -> None:
    merged = TargetOptions(nodes=("a",), interval_s=5.0).merged(TargetOptions(nodes=("b",)))
    assert (merged.nodes, merged.interval_s) == (("b",), 5.0)
