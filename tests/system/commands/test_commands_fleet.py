"""Commands over nodes of which some are slow, late, silent or dead: the others are judged, and who is missing is said.

`ssh` is a program of ours here (tests/fakes/ssh_program.py); everything else is the real command line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from mltop.probes.investigate.capture import rejudge
from tests.fakes.ssh_program import DENIED, HANGS, REFUSED, fake_ssh, node
from tests.terminal import Terminal
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]
DEADLINE_S = 90
# A job of 8 ranks on h01 to h04, of which rank 3 hangs.
JOB = {f"h0{place + 1}": node(f"h0{place + 1}", "--first", str(2 * place), "--culprit", "3") for place in range(4)}


def mltop(
    directory: Path, hosts: Mapping[str, str], command: str, *args: str, columns: int = 80
) -> subprocess.CompletedProcess[str]:
    env = {**fake_ssh(directory, hosts), "COLUMNS": str(columns)}
    return subprocess.run(
        [*MLTOP, command, "--via", "ssh", *args],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=env,
        check=False,
    )


def stacks(directory: Path, hosts: Mapping[str, str], *args: str) -> tuple[int, dict[str, Any], str]:
    done = mltop(directory, hosts, "stacks", "--json", *args)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_job_over_four_nodes_is_one_job(tmp_path: Path) -> None:
    code, report, _ = stacks(tmp_path, JOB, "-w", "h[01-04]")
    assert code == 0
    assert [job["world_size"] for job in report["jobs"]] == [8]
    verdict = report["jobs"][0]["verdict"]
    assert (verdict["kind"], verdict["confidence"]) == ("hang", "high")
    assert [(culprit["rank"], culprit["node"]) for culprit in verdict["culprits"]] == [(3, "h02")]
    assert [made["ranks"] for made in report["jobs"][0]["classes"]] == ["3", "0-2,4-7"]
    assert {entry["node"]: entry["state"] for entry in report["nodes"]} == dict.fromkeys(JOB, "live")


def test_nodes_that_fail_are_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    hosts = {**JOB, "h04": REFUSED, "d*": DENIED}
    code, report, said = stacks(tmp_path, hosts, "-w", "h[01-04],d[1-5]")
    assert code == 3
    assert "mltop: d[1-5] refused: login refused" in said
    assert "mltop: h04 lost: connection refused" in said
    assert "so far (3 of 9 nodes" in said
    assert {entry["node"] for entry in report["not_answered"]} == {"h04", "d1", "d2", "d3", "d4", "d5"}
    assert all(entry["reason"] for entry in report["not_answered"])
    verdict = report["jobs"][0]["verdict"]
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [3]
    assert verdict["confidence"] == "medium"
    gaps = {gap["what"]: gap["why"] for gap in verdict["gaps"]}
    assert gaps["rank.6-7"] == "ranks 6-7 have not answered: they may be on d[1-5],h04"


def test_a_node_that_comes_late_joins(tmp_path: Path) -> None:
    hosts = {**JOB, "h04": node("h04", "--first", "6", "--late", "2.5")}
    code, report, _ = stacks(tmp_path, hosts, "-w", "h[01-04]", "--samples", "2")
    assert (code, report["not_answered"]) == (0, [])
    assert report["jobs"][0]["classes"][1]["ranks"] == "0-2,4-7"


@pytest.mark.parametrize("bad", [HANGS, node("h04", "--first", "6", "--mute")])
def test_a_silent_node_does_not_hold_up_the_others(bad: str, tmp_path: Path) -> None:
    """Neither one whose shell hangs nor one whose agent does not answer costs the deadline."""
    began = time.monotonic()
    code, report, _ = stacks(tmp_path, {**JOB, "h04": bad}, "-w", "h[01-04]", "--timeout", "80", "--samples", "4")
    assert time.monotonic() - began < 75
    assert code == 3
    assert [entry["node"] for entry in report["not_answered"]] == ["h04"]
    assert report["not_answered"][0]["reason"]
    assert [culprit["rank"] for culprit in report["jobs"][0]["verdict"]["culprits"]] == [3]


def test_the_deadline_holds_although_nobody_answers(tmp_path: Path) -> None:
    began = time.monotonic()
    code, report, _ = stacks(tmp_path, {"h*": HANGS}, "-w", "h[01-03]", "--timeout", "2")
    assert time.monotonic() - began < 50
    assert code == 3
    assert [entry["state"] for entry in report["not_answered"]] == ["connecting"] * 3
    assert report["jobs"] == []


def test_nodes_that_are_all_slow_to_connect_are_waited_for(tmp_path: Path) -> None:
    hosts = {f"h0{place + 1}": line + " --late 6" for place, line in enumerate(JOB.values())}
    code, report, _ = stacks(tmp_path, hosts, "-w", "h[01-04]", "--samples", "2", "--timeout", "80")
    assert (code, report["not_answered"]) == (0, [])
    assert [culprit["rank"] for culprit in report["jobs"][0]["verdict"]["culprits"]] == [3]


@pytest.mark.parametrize("command", [["stacks"], ["capture", "-o", "c"]])
def test_a_node_that_cannot_be_reached_does_not_cost_the_deadline(command: list[str], tmp_path: Path) -> None:
    """Nor one without ranks: nobody may still come."""
    began = time.monotonic()
    hosts = {"h01": node("h01", "--ranks", "0"), "h02": REFUSED, "h03": DENIED}
    args = [str(tmp_path / arg) if arg == "c" else arg for arg in command]
    done = mltop(tmp_path, hosts, *args, "-w", "h[01-03]", "--timeout", "80")
    assert time.monotonic() - began < 75
    assert done.returncode != 0
    if command == ["stacks"]:
        assert "no training ranks found: nothing to dump on the nodes that answered" in done.stdout


def test_no_node_answered(tmp_path: Path) -> None:
    done = mltop(tmp_path, {"h*": DENIED}, "stacks", "-w", "h[01-03]")
    assert done.returncode == 3
    assert done.stdout.endswith("no node answered: nothing could be dumped\n")
    assert "no training ranks found" not in done.stdout


def test_a_node_that_dies_with_its_ranks_is_where_to_look(tmp_path: Path) -> None:
    """Its samples named them; then it is gone before any stack came."""
    dies = f"timeout 3 {node('h04', '--first', '6', '--mute').removeprefix('exec ')}"
    hosts = {name: line.replace("--culprit 3", "--culprit -1") for name, line in JOB.items()}
    done = mltop(tmp_path, {**hosts, "h04": dies}, "stacks", "-w", "h[01-04]", "--timeout", "60")
    assert done.returncode == 3
    assert "ranks 6-7 on h04 gave no stack: look there first" in " ".join(done.stdout.split())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_prints_what_is_known(unbuffered: str, tmp_path: Path) -> None:
    hosts = {**JOB, "h04": REFUSED}
    running = subprocess.Popen(
        [*MLTOP, "stacks", "--json", "--via", "ssh", "-w", "h[01-04]", "--samples", "50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**fake_ssh(tmp_path, hosts), "PYTHONUNBUFFERED": unbuffered},
    )
    assert running.stderr is not None
    said = ""
    while "so far" not in said:
        line = running.stderr.readline()
        assert line, said
        said += line
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 130
    report = json.loads(out)
    assert [culprit["rank"] for culprit in report["jobs"][0]["verdict"]["culprits"]] == [3]
    assert [entry["node"] for entry in report["not_answered"]] == ["h04"]


def test_no_agent_is_left_behind(tmp_path: Path) -> None:
    mark = str(tmp_path / "nobody")
    hosts = {name: line + f" --culprit -1 --mark {mark}" for name, line in JOB.items()}
    assert mltop(tmp_path, hosts, "snapshot", "-w", "h[01-04]").returncode == 0

    def left() -> list[psutil.Process]:
        return [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]

    wait_until(lambda: not left(), what="the end of all agents")


@pytest.mark.parametrize("columns", [80, 120])
def test_pages_fit_their_terminal(columns: int, tmp_path: Path) -> None:
    hosts = {**JOB, "h04": REFUSED, "d*": DENIED}
    for command in (["snapshot"], ["stacks", "--samples", "2"], ["doctor"]):
        done = mltop(tmp_path, hosts, *command, "-w", "h[01-04],d[01-20]", columns=columns)
        assert done.returncode == 3, done.stderr
        assert "d[01-20]" in done.stdout
        lines = done.stdout.splitlines()
        assert max(len(line) for line in lines if not line.startswith("    do: ")) <= columns, done.stdout
        assert len(lines) < 30, done.stdout


def test_a_snapshot_does_not_wait_for_who_is_refused(tmp_path: Path) -> None:
    began = time.monotonic()
    done = mltop(tmp_path, {**JOB, "d*": DENIED}, "snapshot", "--json", "-w", "h[01-04],d[1-2]", "--timeout", "80")
    assert time.monotonic() - began < 75
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert {sample["node"] for sample in report["samples"]} == set(JOB)
    assert [entry["state"] for entry in report["nodes"]] == ["live"] * 4 + ["refused"] * 2


def test_doctor_checks_every_node(tmp_path: Path) -> None:
    hosts = {
        "h01": node("h01"),
        "h02": node("h02", "--skew", "30"),
        "h03": node("h03", "--mute"),
        "h04": REFUSED,
        "h05": DENIED,
    }
    done = mltop(tmp_path, hosts, "doctor", "--json", "-w", "h[01-05]")
    assert done.returncode == 3, done.stderr
    checks = {(check["node"], check["name"]): check for check in json.loads(done.stdout)["checks"]}
    assert checks["h01", "connection"]["state"] == "ok"
    assert checks["h01", "connection"]["why"].startswith("ssh, connected in ")
    assert checks["h01", "py-spy"]["state"] == "ok"
    assert (checks["h02", "clock"]["state"], checks["h02", "clock"]["fix"]) == ("warning", "sudo chronyc makestep")
    assert checks["h03", "agent's checks"]["state"] == "missing"
    assert checks["h04", "connection"]["state"] == "missing"
    assert "refused" in checks["h04", "connection"]["why"]
    assert checks["h05", "connection"]["fix"] == "ssh h05 once by hand; ssh-add -l"
    assert "once by hand" not in checks["h05", "connection"]["why"]
    assert checks["(this machine)", "ssh"]["why"].startswith("OpenSSH_9.9p9")


def test_doctor_says_that_the_program_that_is_needed_is_missing(tmp_path: Path) -> None:
    for program in ("bash", "python3"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = subprocess.run(
        [*MLTOP, "doctor", "--json", "-w", "h01", "--via", "ssh", "--timeout", "20"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PATH": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mltop: --via ssh: ssh is not installed here (apt install openssh-client)\n"


@pytest.mark.parametrize("command", ["snapshot", "doctor"])
def test_who_still_connects_at_the_deadline_was_not_reached(command: str, tmp_path: Path) -> None:
    done = mltop(tmp_path, {"h01": HANGS}, command, "-w", "h01", "--timeout", "2")
    assert done.returncode == 3
    assert re.search(r"not reached within \d+ s \(starting ssh\)", " ".join(done.stdout.split()))  # 2 s at least


def test_a_capture_over_nodes_holds_all_of_them_and_why_one_is_missing(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    done = mltop(tmp_path, {**JOB, "h04": REFUSED}, "capture", "-w", "h[01-04]", "-o", str(directory))
    assert done.returncode == 1, done.stderr
    assert done.stdout == f"{directory}\n"
    assert "h04 did not answer: connection refused" in done.stderr
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["complete"] is False
    nodes = {entry["node"]: entry for entry in manifest["nodes"]}
    assert [nodes[name]["state"] for name in sorted(nodes)] == ["live", "live", "live", "lost"]
    assert nodes["h01"]["connection"]["via"] == "ssh"
    assert nodes["h01"]["connection"]["connect_s"] > 0
    assert nodes["h04"]["reason"]
    assert "connection" not in nodes["h04"]  # it was never reached: nobody knows how
    assert sorted(os.listdir(directory / "stacks")) == ["h01", "h02", "h03"]
    material, reports = rejudge(directory)
    assert [culprit.rank for culprit in reports[0].verdict.culprits] == [3]
    assert [state.node for state in material.not_answered] == ["h04"]


def test_progress_is_one_line_on_a_terminal(tmp_path: Path) -> None:
    env = fake_ssh(tmp_path, {**JOB, "h04": HANGS})
    program = [*MLTOP, "stacks", "--via", "ssh", "-w", "h[01-04]", "--timeout", "4"]
    with Terminal(program, columns=80, lines=50, env=env) as terminal:
        terminal.wait_for("3/4 nodes connected")
        assert terminal.wait(60) == 3
        text = terminal.text()
    assert "nodes connected" not in text
    assert "h04 connecting: not reached within" in text
