"""py-spy on a node that has none: sent when stacks are first asked for, kept, checked, run wherever it can be."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Message, Request
from mltop.probes.reach.bundle import py_spy_sha256
from tests.bootstrapping import Bootstrapped, command, environment, file_here, in_mounts, nowhere_to_write, running
from tests.waiting import wait_until

MACHINE = os.uname().machine
SHA256 = py_spy_sha256(MACHINE)
JOB = f"test-{uuid.uuid4().hex[:12]}"
SCRIPT = "import time\ndef train_step():\n    time.sleep(600)\ntrain_step()\n"
DAY_S = 86400.0


@pytest.fixture
def home(warm_home: Path) -> Path:
    return warm_home


@pytest.fixture(autouse=True)
def rank() -> Iterator[int]:
    """Pid of a rank of JOB that sits in train_step()."""
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": JOB}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], env=env, start_new_session=True)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def bare(home: Path | str, **more: str) -> dict[str, str]:
    """An environment in which no py-spy of the node's own is found."""
    return environment(home, **{"PATH": "/usr/bin:/bin", **more})


def beside_a_rank(setup: str) -> str:
    """For ``in_mounts``: out of a user namespace nobody looks into other processes, so there is a rank inside, too."""
    if os.geteuid() == 0:
        return setup
    environ = ("RANK=0", "WORLD_SIZE=1", f"TORCHELASTIC_RUN_ID={JOB}")
    rank = ["setpriv", "--pdeathsig", "KILL", "env", *environ, sys.executable, "-c", SCRIPT]
    return f"{shlex.join(rank)} >/dev/null </dev/null & {setup}"


def python_without_py_spy() -> str:
    """Of the Python that runs the tests, outside of the virtual environment."""
    return os.path.realpath(sys.executable)


def node_command() -> list[str]:
    return command(python=python_without_py_spy())


def ready(node: Bootstrapped) -> Bootstrapped:
    """Booted, and the rank is in its samples."""
    assert node.boot().kind == "hello"
    wait_until(lambda: any(rank.job == JOB for rank in node.next("sample").sample.ranks), what="the rank in a sample")
    return node


def ask(node: Bootstrapped, number: int = 1, **args: object) -> None:
    node.send(Request("request", id=number, op="stacks", args={"job": JOB, "py_spy": SHA256, **args}))


def answer(node: Bootstrapped) -> str:
    """The function that the rank is in, from the parts up to "done"; or the error."""
    said: list[Message] = []
    while not said or said[-1].kind not in ("done", "error"):
        said.append(node.next("part", "done", "need"))
        assert said[-1].kind != "need", "it has py-spy already"
    if said[-1].kind == "error":
        return f"{said[-1].error} ({said[-1].fix})"
    (stacks,) = [message.stacks for message in said if message.stacks is not None]
    (digest,) = stacks.digests
    return digest.frames[0].function if digest.frames else digest.error


def needed(node: Bootstrapped) -> Message:
    need = node.next("need")
    assert need.data == {"file": "py-spy", "machine": MACHINE}
    return need


def programs(home: Path) -> list[str]:
    return [name for name in os.listdir(home / ".cache/mltop") if len(name) != 64]


def test_sent_once_and_kept(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ask(ready(node), 4)
        assert needed(node).id == 4
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"
        ask(node, 5)
        assert answer(node) == "train_step"
    assert programs(home) == [f"py-spy-{SHA256}"]
    assert (home / f".cache/mltop/py-spy-{SHA256}").stat().st_mode & 0o777 == 0o700
    with running(node_command(), bare(home)) as node:
        ask(ready(node))
        assert answer(node) == "train_step"


def test_two_requests_at_once_send_for_it_once(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ask(ready(node), 1)
        ask(node, 2)
        needed(node)
        node.send(file_here("py-spy"))
        done: list[int] = []
        while len(done) < 2:
            message = node.next("done", "need")
            assert message.kind == "done"
            done.append(message.id)
        assert sorted(done) == [1, 2]


def test_a_damaged_one_in_the_cache_is_sent_anew(home: Path) -> None:
    path = home / f".cache/mltop/py-spy-{SHA256}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"#!/bin/sh\nexit 0\n")
    path.chmod(0o700)
    with running(node_command(), bare(home)) as node:
        ask(ready(node))
        needed(node)
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"
    assert path.stat().st_size > 1_000_000


def test_one_that_is_not_the_announced_one_is_refused(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ask(ready(node))
        needed(node)
        node.send(Request("file", op="py-spy", args=file_here().args))
        assert answer(node) == "the py-spy that came is not the one that was announced (try again)"
        assert programs(home) == []
        ask(node, 2)
        needed(node)
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"


def test_what_was_not_asked_for_is_not_kept(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ready(node).send(file_here("py-spy"))
        node.send(Request("request", id=1, op="doctor"))
        node.next("done")
    assert programs(home) == []


def test_the_operator_has_none(home: Path, tmp_path: Path) -> None:
    error = Request("file", op="py-spy", args={"error": "no py-spy for it at hand", "fix": "pip download it"})
    with running(node_command(), bare(home)) as node:
        ask(ready(node))
        needed(node)
        node.send(error)
        assert answer(node) == "no py-spy for it at hand (pip download it)"
    # The node's own is better than none.
    own = tmp_path / "bin/py-spy"
    own.parent.mkdir()
    own.symlink_to(Path(sys.executable).parent / "py-spy")
    with running(node_command(), bare(home, PATH=f"{own.parent}:/usr/bin:/bin")) as node:
        ask(ready(node))
        needed(node)
        node.send(error)
        assert answer(node) == "train_step"


def test_cancelled_while_it_is_awaited(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ask(ready(node), 9)
        needed(node)
        node.send(Request("cancel", id=9))
        done = node.next("done")
        assert (done.id, done.data) == (9, {"cancelled": True})
        ask(node, 10)
        needed(node)


def test_a_cache_where_nothing_may_be_executed(home: Path) -> None:
    argv = in_mounts(beside_a_rank(f"mount -t tmpfs -o noexec none {home}"), node_command())
    with running(argv, bare(home)) as node:
        ask(ready(node))
        needed(node)
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"
        ask(node, 2)
        assert answer(node) == "train_step"


def test_memory_only() -> None:
    with running(in_mounts(beside_a_rank(nowhere_to_write()), node_command()), bare("/nonexistent")) as node:
        ask(ready(node))
        assert node.booted.root == ""
        needed(node)
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"


def test_use_keeps_it_in_the_cache(home: Path) -> None:
    with running(node_command(), bare(home)) as node:
        ask(ready(node))
        needed(node)
        node.send(file_here("py-spy"))
        assert answer(node) == "train_step"
        path = home / f".cache/mltop/py-spy-{SHA256}"
        os.utime(path, times=(0, 0))
        ask(node, 2)
        assert answer(node) == "train_step"
        assert time.time() - path.stat().st_mtime < DAY_S
        path.unlink()  # somebody cleans up
        ask(node, 3)
        needed(node)
