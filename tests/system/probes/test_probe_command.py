"""The command of a probe process: every Python, from a source tree, an agent's cache folder and a bundle in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.active.child import Order
from mltop.probes.active.supervisor.pythons import probe_command
from mltop.probes.agent.protocol import Message, Request
from mltop.probes.system.spawn import probe_of
from tests.bootstrapping import Bootstrapped, bundle_sha256, command, environment, in_mounts, nowhere_to_write, running
from tests.fakes.probes import modules_variable, torch_python

SHA256 = bundle_sha256()
OLDEST = (3, 9)
_VERSIONS = Path("~/.pyenv/versions").expanduser()
OTHERS = [
    str(folder / "bin/python3")
    for folder in sorted(_VERSIONS.glob("3.*"))
    if tuple(map(int, folder.name.split(".")[:2])) >= OLDEST
]
# What a probe process can import: as the fake child is started, so is this.
LOOK = """
import importlib.util, json, sys

def main():
    import mltop.probes.active.child as child
    child.read_order()
    names = ("psutil", "pynvml", "textual", "tests")
    found = {name: importlib.util.find_spec(name) is not None for name in names}
    child.say(child.ProbeEvent("result", data={"found": found, "path": sys.path, "file": child.__file__}))
"""


def run(python: str, target: str, **more: Any) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        probe_command(python, target, "matmul", "k1"),
        input=Order("matmul", options={"do": "leave"}).to_line(),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        **more,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("python", [sys.executable, *OTHERS])
def test_every_python_finds_our_package_and_nothing_else_of_ours(python: str, tmp_path: Path) -> None:
    target = tmp_path / "look.py"
    target.write_text(LOOK)
    (tmp_path / "tests.py").write_text("raise SystemExit('from the working directory')")
    code, events, errors = run(python, str(target))
    assert (code, errors) == (0, "")
    (event,) = events
    isolated = [python, "-c", "import json, sys; print(json.dumps([entry for entry in sys.path if entry]))"]
    its_own = json.loads(subprocess.run(isolated, capture_output=True, text=True, cwd="/", check=True).stdout)
    assert event["data"]["path"] == its_own
    if python != sys.executable:
        assert event["data"]["found"] == {"psutil": False, "pynvml": False, "textual": False, "tests": False}


def test_a_probe_process_is_known_by_its_command() -> None:
    assert probe_of(probe_command("python3", "m", "copies", "k7")) == ("copies", "k7")
    assert probe_of(["python", "train.py", "mltop-probe"]) is None


def measured(node: Bootstrapped, python: str) -> dict[str, Any]:
    """The result of a probe of the processors, by an agent that came over its connection."""
    args = {"key": "k1", "kind": "matmul", "gpus": ["cpu"], "force": True, "python": python}
    node.send(Request("request", id=5, op="probe", args={**args, "options": {"do": "measure"}}))
    events: list[dict[str, Any]] = []
    message = Message("part")
    while message.kind == "part":
        message = node.next("part", "done")
        events.append(message.data)
    assert message.kind == "done", message.error
    (result,) = [event for event in events if event.get("event") == "result"]
    return result


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("compiled", "agents"), [(True, ""), (False, ""), (True, OTHERS[0] if OTHERS else "")])
def test_from_a_cache_folder(compiled: bool, agents: str, home: Path, tmp_path: Path) -> None:
    """``agents``: the agent's own Python, which may be another than the one with torch."""
    with running(command(python=agents), environment(home, MLTOP_PROBE_MODULES=modules_variable())) as node:
        assert node.boot().kind == "hello"
        bundle = home / ".cache/mltop" / SHA256
        if not compiled:
            for path in bundle.glob("compiled-*"):
                path.unlink()
        assert measured(node, torch_python(tmp_path))["device"] == "cpu"
        node.close_stdin()
        assert node.wait() == 0


def test_from_memory() -> None:
    """A node where no folder can be written."""
    env = environment("/nonexistent", MLTOP_PROBE_MODULES=modules_variable())
    with running(in_mounts(nowhere_to_write(), command()), env) as node:
        assert node.boot().kind == "hello"
        assert node.booted.root == ""
        assert measured(node, sys.executable)["device"] == "cpu"
