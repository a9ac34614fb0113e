"""The drain line and the exclude list: what Slurm and a shell make of them."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from mltop.probes.model import Finding, RankSample
from mltop.tui.render.cells import plain
from mltop.tui.render.slurm import MOST_REASON, box_lines, clean_reason, reason_of, run_by_slurm, slurm_lines
from tests.tui.fake_views import fleet


def test_both_lines() -> None:
    lines = slurm_lines(["node07", "node12"], "GPU 4 fell off the bus (Xid 79)", True)
    assert lines.exclude == "--exclude=node[07,12]"
    assert lines.drain == (
        'scontrol update nodename=node[07,12] state=drain reason="mltop: GPU 4 fell off the bus (Xid 79)"'
    )
    assert lines.best == lines.drain


def test_without_slurm_there_is_only_the_list() -> None:
    lines = slurm_lines(["node07"], "x", False)
    assert (lines.exclude, lines.drain, lines.best) == ("--exclude=node07", "", "--exclude=node07")


@pytest.mark.parametrize(
    ("nodes", "listed"),
    [
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n2", "n1", "n1"], "n[1-2]"),
        (["ada@node1", "root@node2"], "node[1-2]"),
        (["rack1n1", "rack1n2", "rack2n1"], "rack1n[1-2],rack2n1"),
        (["n01-ib", "n02-ib"], "n01-ib,n02-ib"),
        (["a.b.c"], "a.b.c"),
    ],
)
def test_lists_are_such_as_slurm_reads(nodes: list[str], listed: str) -> None:
    assert slurm_lines(nodes, "x", True).exclude == f"--exclude={listed}"


@pytest.mark.parametrize("name", ["$(id)", "a b", "::1", "-x", "a;b", "a'b", "*", "", "n[1-2]", "a\nb", "é"])
def test_names_that_slurm_cannot_have_are_left_out_and_said(name: str) -> None:
    lines = slurm_lines(["n1", name], "x", True)
    assert (lines.exclude, lines.left_out) == ("--exclude=n1", (name,))
    alone = slurm_lines([name], "x", True)
    assert (alone.exclude, alone.drain, alone.left_out) == ("", "", (name,))


@pytest.mark.parametrize("shell", ["/bin/zsh", "/usr/bin/tcsh"])
def test_shells_in_which_brackets_are_files_get_quotes(shell: str) -> None:
    lines = slurm_lines(["n1", "n2"], "x", True, shell)
    assert shlex.split(lines.exclude) == ["--exclude=n[1-2]"] and lines.exclude.startswith("'")
    assert shlex.split(lines.drain)[2] == "nodename=n[1-2]" and "'n[1-2]'" in lines.drain
    assert slurm_lines(["n1"], "x", True, shell).exclude == "--exclude=n1"


HOSTILE = "a\"; rm -rf / #`id`$(id)\\\n\x1b[2J\u202e!history'x"


def test_a_reason_is_one_word_to_the_shell_whatever_stands_in_it() -> None:
    words = shlex.split(slurm_lines(["n1"], HOSTILE, True).drain)
    assert words[:4] == ["scontrol", "update", "nodename=n1", "state=drain"] and len(words) == 5
    assert not set(words[4]) & set("\"'`$\\!\n\x1b") and words[4].isascii() and words[4].isprintable()


def test_reasons_are_short_and_never_empty() -> None:
    assert clean_reason("x " * 400).endswith("...") and len(clean_reason("y" * 500)) == MOST_REASON
    assert clean_reason("") == clean_reason("\"'\n") == "mltop: taken out by hand"
    assert clean_reason("mltop: a b") == "mltop: a b"
    assert clean_reason("read on /data pending …") == "mltop: read on /data pending ..."


def test_the_reason_is_the_gravest_of_these_nodes() -> None:
    findings = [
        Finding("a", "warning", "n1", "GPU 0", "warm"),
        Finding("b", "critical", "n2", "GPU 4", "GPU 4 fell off the bus (Xid 79)"),
        Finding("c", "info", "n3", "tip", "2 CPUs"),
        Finding("job.odd_rank", "critical", "n3", "rank 2", "rank 2 leaves its GPU idle"),
    ]
    assert reason_of(findings, ["n1", "n2"]) == "GPU 4 fell off the bus (Xid 79)"
    assert reason_of(findings, ["n1"]) == "warm"
    assert reason_of(findings, ["n3"]) == reason_of(findings, []) == ""


@pytest.mark.parametrize(
    ("changes", "is_slurms"),
    [({}, False), ({"launcher": "srun"}, True), ({"cgroup": "/system.slice/slurmstepd.scope/job_7/step_0"}, True)],
)
def test_whose_job_it_is(changes: dict[str, str], is_slurms: bool) -> None:
    (node, *_) = fleet(0, 2).nodes
    assert node.sample is not None
    node.sample.ranks = [replace(RankSample(5, launcher="torchrun"), **changes)]  # type: ignore[arg-type]
    assert run_by_slurm([node]) is is_slurms


def test_the_box_says_that_nothing_is_run() -> None:
    text = "\n".join(plain(line) for line in box_lines(slurm_lines(["n1", "$x"], "hot", True), "--exclude=n1", 60))
    assert "to copy; mltop runs none of it" in text and "no names of Slurm's: $x" in text
    assert "copied: --exclude=n1" in text
