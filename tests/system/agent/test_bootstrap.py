"""Stage 0, stage 1 and the agent as a node's login shell runs them: every shell, every Python, every end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Request, encode
from mltop.probes.reach.bundle import opening
from mltop.probes.reach.launchers.remote_command import FIX
from tests.bootstrapping import Bootstrapped, bundle_sha256, command, environment, file_here, processes_of, running
from tests.waiting import wait_until

SHELLS = ("bash", "dash", "zsh", "tcsh", "fish")


def installed_pythons() -> dict[tuple[int, int], str]:
    """By version: this one, and what pyenv and the system have beside it."""
    paths = [
        sys.executable,
        "/usr/bin/python3",
        *map(str, Path("~/.pyenv/versions").expanduser().glob("[23].*/bin/python")),
    ]
    found: dict[tuple[int, int], str] = {}
    for path in filter(os.path.exists, paths):
        code = "import sys; print('%d %d' % sys.version_info[:2])"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True, check=True)
        major, minor = map(int, said.stdout.split())
        found.setdefault((major, minor), path)
    return found


PYTHONS = installed_pythons()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def cache_of(home: Path) -> list[str]:
    return sorted(os.listdir(home / ".cache/mltop"))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell(shell: str, home: Path) -> None:
    with running(command(shell=shell), environment(home)) as node:
        hello = node.boot()
        assert hello.node == "here"
        assert not node.booted.cached
        assert node.booted.notes == []
        assert node.booted.root == str(home / ".cache/mltop")
        assert node.later_sample().host.memory_total_bytes > 0  # psutil's compiled part works
        node.close_stdin()
        assert node.wait() == 0
        assert node.errors() == ""
    with running(command(shell=shell), environment(home)) as node:
        node.boot()
        assert node.booted.cached
        assert node.sent_bytes == len(opening())
    wait_until(lambda: not processes_of(home), what="the end of every process")
    assert cache_of(home) == [bundle_sha256()]


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshenv"), ("tcsh", ".tcshrc")])
def test_shells_that_say_something_first(shell: str, file: str, home: Path) -> None:
    (home / file).write_text('echo "Welcome to the cluster"; printf "no newline"\n')
    argv = command(shell=shell)
    if shell == "bash":  # sshd makes bash read it, which bash finds out by what its stdin is
        argv[1:1] = ["--rcfile", str(home / file), "-i"]
    with running(argv, environment(home)) as node:
        assert node.boot().kind == "hello"
        assert b"Welcome to the cluster" in node.noise


@pytest.mark.parametrize("shell", SHELLS)
def test_a_node_without_a_suitable_python(shell: str, home: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # what 3.6 answers to the question for its version
    old.chmod(0o755)
    for python, why in (("/nonexistent/py thon", "it is not there"), (str(old), "it does not work: it says nothing")):
        with running(command(shell=shell, python=python), environment(home, SLURMD_NODENAME="n17")) as node:
            refusal = node.next("error")
            assert refusal.error == f"{python} is no Python 3.9 or newer on this node: {why}"
            assert refusal.fix == FIX
            assert refusal.node == "n17"
            assert node.wait() == 97


def test_one_that_is_too_old_first_on_path(home: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin/python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\ncat >/dev/null\nexit 1\n")  # it must not get at stage 1 either
    old.chmod(0o755)
    path = f"{old.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
    with running(command(), environment(home, PATH=path)) as node:
        hello = node.boot()
        assert hello.kind == "hello"
        assert str(old) not in node.booted.python


def ends_cleanly(node: Bootstrapped, home: Path) -> None:
    node.close_stdin()
    node.wait()
    wait_until(lambda: not processes_of(home), what="the end of every process")
    if (home / ".cache/mltop").exists():
        assert [name for name in cache_of(home) if name.startswith(".tmp")] == []


@pytest.mark.parametrize("share", [0, 0.001, 0.02, 0.5, 0.99])
def test_end_of_file_in_stage_1(share: float, home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening()[: int(len(opening()) * share)])
        ends_cleanly(node, home)
        assert node.process.returncode == 98


def test_end_of_file_before_the_bundle(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        ends_cleanly(node, home)
        assert node.process.returncode == 98
    assert cache_of(home) == []


def test_end_of_file_within_the_bundle(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        node.send_frame(file_here(), share=0.6)
        ends_cleanly(node, home)
    assert cache_of(home) == []


def test_end_of_file_before_the_hello_is_read(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        node.send(file_here())
        ends_cleanly(node, home)
        assert node.process.returncode == 0


def test_the_agent_dies_of_end_of_file(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.boot()
        node.next("sample")
        ends_cleanly(node, home)
        assert node.process.returncode == 0


def test_what_arrives_slowly_is_told(home: Path) -> None:
    """Each part is sent when the one before is known to have come."""
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        frame = encode(file_here())
        parts = [frame[at : at + 20_000] for at in range(0, len(frame), 20_000)]
        for part in parts[:-1]:
            node.send(part)
            assert node.next("progress").node == "here"
        node.send(parts[-1])
        assert node.next("hello").kind == "hello"


def test_a_caller_that_never_sends_the_bundle(home: Path) -> None:
    with running(command("--silence", "1"), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        refusal = node.next("error")
        assert refusal.error == "the agent's files did not arrive: the caller sent nothing for too long"
        assert node.wait() == 98
    assert cache_of(home) == []


def test_other_frames_and_noise_before_the_bundle(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        node.send(b"what a shell says\n" + bytes(range(256)) * 300 + b"\n")
        node.send(Request("ping"))
        node.send(Request("file", op="bundle", node="another", args={"error": "not for this node"}))
        node.send(Request("request", id=7, op="doctor"))
        node.send(Request("file", op="bundle", args={"sha256": "0" * 64, "data": "for another machine type"}))
        node.send(file_here())
        assert node.next("hello").kind == "hello"
        assert node.next("done").id == 7  # asked before there was an agent, answered by it


def test_the_caller_has_no_bundle(home: Path) -> None:
    missing = Request("file", op="bundle", args={"error": "it cannot be made", "fix": "make it"})
    with running(command(), environment(home)) as node:
        refusal = node.boot(lambda boot: missing)
        assert (refusal.kind, refusal.error, refusal.fix) == ("error", "it cannot be made", "make it")
        assert node.wait() == 98
