"""`mltop kernel`: real agents on copied trees, each with a kernel log of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.kmsg import FakeKmsg
from tests.fakes.ssh_program import REFUSED, fake_ssh

MLTOP = [sys.executable, "-m", "mltop"]
AGENT = [sys.executable, "-m", "mltop.probes.agent", "--interval", "0.2"]
DEADLINE_S = 90
USUAL = ("Linux version 6.8.0-45-generic", "ACPI: Core revision 20230628", "mlx5_core 0000:5c:00.0: firmware 28.39")
ODD = "NVRM: Xid (PCI:0000:05:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


def tree(directory: Path, name: str, lines: Sequence[str]) -> Path:
    """A copied tree with this kernel log; none where there are no lines."""
    root = directory / name
    for part in ("dev", "proc"):
        (root / part).mkdir(parents=True)
    (root / "proc/stat").write_text("cpu 1 2 3 4\nbtime 1700000000\n")
    if lines:
        kmsg = FakeKmsg(root / "dev")
        for line in lines:
            kmsg.write(line, level=3 if line == ODD else 6)
        kmsg.close()
    return root


def host(root: Path) -> str:
    """The shell line of a host whose agent sees this tree."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return "exec " + shlex.join(["env", f"MLTOP_SYSROOT={root}", f"PYTHONPATH={path}", *AGENT, "--node", root.name])


def kernel(directory: Path, hosts: Mapping[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    env = {**fake_ssh(directory, hosts), "MLTOP_STATE_DIR": str(directory / "state"), "COLUMNS": "100"}
    return subprocess.run(
        [*MLTOP, "kernel", "--via", "ssh", *args],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=env,
        check=False,
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == {"schema", "nodes", "lines", "gaps", "learned"}, done.stderr
    return found


def test_what_one_of_four_nodes_says_is_found(tmp_path: Path) -> None:
    logs = {"h01": USUAL, "h02": USUAL, "h03": (*USUAL, ODD), "h04": USUAL}
    hosts = {name: host(tree(tmp_path, name, lines)) for name, lines in logs.items()}
    done = kernel(tmp_path, hosts, "-w", "h[01-04]", "--json")
    assert done.returncode == 0, done.stderr
    found = report(done)
    assert {node["node"]: node["state"] for node in found["nodes"]} == dict.fromkeys(hosts, "live")
    (line,) = found["lines"]
    assert line["pattern"] == "NVRM: Xid (PCI:BDF): 79, pid=#, name=python#, GPU has fallen off the bus."
    assert (line["nodes"], line["level"], line["count"], line["example"]) == (["h03"], 3, 1, ODD)
    assert line["first_at"] == line["last_at"] == 1_700_000_001.0
    assert found["gaps"] == []

    done = kernel(tmp_path, hosts, "-w", "h[01-04]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == ["err", "h03", "1"]
    assert "1 of 4 kinds of lines new (3 on most of 4 nodes)" in done.stdout
    assert "mltop kernel --learn" in done.stderr

    done = kernel(tmp_path, hosts, "-w", "h[01-04]", "--all", "--json")
    assert sorted(len(line["nodes"]) for line in report(done)["lines"]) == [1, 4, 4, 4]


def test_what_is_learned_is_not_told_again(tmp_path: Path) -> None:
    first, second = tree(tmp_path, "h01", USUAL), tree(tmp_path, "h02", (*USUAL, ODD))
    hosts = {"h01": host(first), "h02": host(second)}
    done = kernel(tmp_path, hosts, "-w", "h01", "--learn")
    assert done.returncode == 0, done.stderr
    assert "learned 3 kinds of lines" in done.stderr
    done = kernel(tmp_path, hosts, "-w", "h[01-02]", "--json")
    assert [line["example"] for line in report(done)["lines"]] == [ODD]
    done = kernel(tmp_path, hosts, "-w", "h[01-02]", "--learn", "--json")
    assert report(done)["learned"] == 4
    done = kernel(tmp_path, hosts, "-w", "h[01-02]")
    assert done.stdout == "none of 4 kinds of lines new (4 known)\n"


def test_nodes_without_an_answer_make_it_3_and_the_others_count(tmp_path: Path) -> None:
    hosts = {
        "h01": host(tree(tmp_path, "h01", (ODD,))),
        "h02": host(tree(tmp_path, "h02", ())),
        "h03": REFUSED,
    }
    done = kernel(tmp_path, hosts, "-w", "h[01-03]", "--json")
    assert done.returncode == 3
    found = report(done)
    assert [line["nodes"] for line in found["lines"]] == [["h01"]]
    (gap,) = found["gaps"]
    assert (gap["node"], gap["what"]) == ("h02", "kernel_log")
    assert "Xid history before start unknown" in gap["why"]
    assert "mltop: h02: kernel log unreadable" in done.stderr
    assert "mltop: h03 lost: connection refused" in done.stderr


def test_a_damaged_list_is_one_line_and_stays(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    damaged = tmp_path / "state" / "kernel-lines.json"
    damaged.write_text("{")
    done = kernel(tmp_path, {"h01": host(tree(tmp_path, "h01", USUAL))}, "-w", "h01", "--learn")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"{damaged}: is not a list of kernel lines" in done.stderr
    assert damaged.read_text() == "{"
