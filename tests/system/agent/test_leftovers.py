"""What real processes leave on GPUs (the library is a fake, the processes are not): check, snapshot, what travels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.ranks.access import in_first_namespace, user_name
from tests.fakes.machine import FIRST_RANK_PID, FakeMachine
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]
GIB = 1024**3
NEVER = 4_194_303  # the largest pid there can be: taken by nobody in practice


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(tmp_path / "nvml", count=3)
    shape("h100", fake, 3)
    fake.write()
    return fake


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def make(code: str, **environ: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield make
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def asked(nvml: FakeNvml, tmp_path: Path, *args: str) -> tuple[dict[str, Any], int]:
    env = {**os.environ, **nvml.env(), "MLTOP_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run([*MLTOP, *args], capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.returncode


def leftovers(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["subject"]: one for one in found["findings"] if one["id"] == "gpu.leftover"}


SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
# A parent that does not collect its dead child.
ZOMBIE = """
import os, time
child = os.fork()
if child == 0:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
time.sleep(600)
"""


def test_an_epilog_is_told_who_is_left(
    nvml: FakeNvml, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    live, parent = start(SLEEP), start(ZOMBIE)
    assert said(live) == "ready"
    zombie = int(said(parent))
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    for index, pid in enumerate((live.pid, zombie, NEVER)):
        nvml.set(f"gpu.{index}.processes", [(pid, 40 * GIB, "compute")])
        nvml.set(f"gpu.{index}.memory_used_bytes", 40 * GIB)
    nvml.write()
    found, code = asked(nvml, tmp_path, "check", "--json")
    assert code == found["exit"] != 0
    left = leftovers(found)
    of_live, of_dead = left["GPU 0"], left["GPU 1"]
    assert (
        f"(pid {live.pid} of {user_name(os.getuid())}, " in of_live["message"]
        and "holds 40 GiB of its memory" in of_live["message"]
    )
    assert of_live["action"].endswith(f"kill {live.pid}") and of_live["severity"] == "warning"
    assert f"parent {os.getpid()}" in of_live["evidence"][0]
    assert of_dead["message"].startswith("Dead process holds 40 GiB on GPU 1: ")
    assert f"(pid {zombie} of {user_name(os.getuid())}, " in of_dead["message"]
    assert of_dead["action"].startswith(f"sudo kill {parent.pid} (its parent)")
    if in_first_namespace("/proc"):
        assert left["GPU 2"]["message"] == "Dead process holds 40 GiB on GPU 2"
        assert "sudo nvidia-smi -r -i 2" in left["GPU 2"]["action"]
    else:
        assert f"the pids ({NEVER}) are of another PID namespace" in left["GPU 2"]["message"]


def test_a_rank_that_waits_and_a_busy_gpu_are_left_alone(
    nvml: FakeNvml, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    rank = start(SLEEP, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(40_000 + os.getpid() % 9999))
    server, stopped = start(SLEEP), start(SLEEP, RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    for process in (rank, server, stopped):
        assert said(process) == "ready"
    stopped.send_signal(signal.SIGSTOP)  # as a debugger does
    for index, process in enumerate((rank, server, stopped)):
        nvml.set(f"gpu.{index}.processes", [(process.pid, 40 * GIB, "compute")])
    nvml.set("gpu.1.busy_percent", 80)
    nvml.set("gpu.1.gpm.2", "60")
    nvml.write()
    found, _ = asked(nvml, tmp_path, "check", "--json")
    assert leftovers(found) == {}
    stopped.send_signal(signal.SIGCONT)


def test_what_a_sample_says_of_them(
    nvml: FakeNvml, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    live, parent = start(SLEEP), start(ZOMBIE)
    assert said(live) == "ready"
    zombie = int(said(parent))
    nvml.set("gpu.0.processes", [(live.pid, GIB, "compute"), (zombie, GIB, "compute"), (NEVER, GIB, "compute")])
    nvml.write()
    found, code = asked(nvml, tmp_path, "snapshot", "--json")
    assert code == 0
    first, dead, gone = found["samples"][0]["gpus"][0]["processes"]
    assert (first["pid"], first["user"], first["ppid"]) == (live.pid, user_name(os.getuid()), os.getpid())
    assert first["name"] == Path(f"/proc/{live.pid}/comm").read_text().strip()
    assert first["state"] in ("S", "R") and 0 < first["started_at"] <= found["samples"][0]["sampled_at"] + 60
    assert (dead["state"], dead["ppid"], dead["absent"]) == ("Z", parent.pid, "")
    assert (gone["state"], gone["name"]) == ("", "")
    assert gone["absent"] == ("ended" if in_first_namespace("/proc") else "elsewhere")
    assert not [one for one in found["findings"] if one["id"] == "gpu.leftover"]  # a snapshot judges no epilog


def test_on_a_whole_machine(tmp_path: Path) -> None:
    """Without its job, a healthy node has nothing to say; a process that the job has left is its only finding."""
    machine = FakeMachine(tmp_path, ranks=False)

    def report() -> dict[str, Any]:
        done = subprocess.run(
            [*MLTOP, "check", "--json"], capture_output=True, text=True, timeout=90, env=machine.env(), check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit"] == done.returncode
        return found

    found = report()
    assert (found["findings"], found["exit"]) == ([], 0)
    machine.proc.add(777, argv=["/usr/bin/python3", "serve.py"], ppid=1)
    machine.nvml.set("gpu.5.processes", [(777, 30 * GIB, "compute")])
    machine.nvml.set("gpu.5.memory_used_bytes", 30 * GIB)
    machine.nvml.write()
    found = report()
    assert [(one["id"], one["subject"]) for one in found["findings"]] == [("gpu.leftover", "GPU 5")]
    assert (found["exit"], "pid 777 of root" in found["findings"][0]["message"]) == (1, True)
    machine.proc.die(777)
    assert "zombie" in report()["findings"][0]["evidence"][0]
    machine.proc.remove(777)
    assert report()["findings"][0]["message"] == "Dead process holds 30 GiB on GPU 5"
    machine.proc.pid_namespace(4026532198)  # in a container it cannot be told
    found = report()
    assert "of another PID namespace" in found["findings"][0]["message"] and found["exit"] == 3
    assert FIRST_RANK_PID not in machine.proc.processes


def test_the_screen_shows_who_it_is(nvml: FakeNvml, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    from tests.terminal import Terminal

    live = start(SLEEP)
    assert said(live) == "ready"
    nvml.set("gpu.0.processes", [(live.pid, 40 * GIB, "compute")])
    nvml.write()
    name = Path(f"/proc/{live.pid}/comm").read_text().strip()
    with Terminal([*MLTOP], columns=160, lines=50, env={**os.environ, **nvml.env()}) as terminal:
        terminal.wait_for("last 10 min", 60)
        terminal.send("3")
        terminal.wait_for(str(live.pid), 60)
        terminal.send(":gpu 0\r")
        wait_until(lambda: "PARENT" in terminal.text() and name in terminal.text(), 60, "the GPU's processes")
        (words,) = [line.split() for line in terminal.text().splitlines() if line.split()[:1] == [str(live.pid)]]
        assert user_name(os.getuid())[:8] in words and str(os.getpid()) in words and words[-1] == name
        assert f"CRIT GPU 0 is idle, but {name}" not in terminal.text()
        terminal.send("q")
        assert terminal.wait(30) == 0
