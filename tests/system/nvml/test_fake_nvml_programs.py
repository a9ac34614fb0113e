"""Other people's programs over the fake NVML: nvitop, nvtop, and a C program that works as nvtop does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml.build import SOURCES
from tests.fakes.nvml.scenario import FakeNvml
from tests.terminal import Terminal

GIB = 2**30
LOST = 15  # NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", count=8)


def test_nvitop_shows_all_gpus_and_processes(fake: FakeNvml) -> None:
    fake.set("gpu.*.busy_percent", 97)
    fake.set("gpu.*.processes", [(os.getpid(), 3 * GIB, "compute")])
    fake.write()
    nvitop = Path(sys.executable).with_name("nvitop")
    done = subprocess.run(
        [str(nvitop), "-1"],
        env={**os.environ, **fake.env(), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for index in range(8):
        assert re.search(rf"│ +{index} +H100 80GB", done.stdout), done.stdout
        assert re.search(rf"│ +{index} +{os.getpid()} C .*3072MiB", done.stdout), done.stdout


def test_a_c_program_that_works_as_nvtop_does(fake: FakeNvml, tmp_path: Path) -> None:
    fake.set("gpu.*.busy_percent", 97)
    fake.set("gpu.1.processes", [(pid, pid, "compute") for pid in range(1, 12)] + [(99, None, "graphics")])
    fake.write()
    program = tmp_path / "nvtop_like"
    subprocess.run(["cc", "-o", str(program), str(SOURCES / "client" / "nvtop_like.c"), "-ldl"], check=True)
    done = subprocess.run([str(program)], env={**os.environ, **fake.env()}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "gpu 0 0000:1B:00.0 NVIDIA H100 80GB HBM3 97 599785472" in lines
    assert len([line for line in lines if line.startswith("gpu ")]) == 8
    for kind in ("compute", "old"):  # _v3 and the unversioned function, whose entries are smaller
        assert [line for line in lines if f" {kind} " in line] == [f"process 1 {kind} {n} {n}" for n in range(1, 12)]
    assert f"process 1 graphics 99 {2**64 - 1}" in lines


def test_nvtop_runs_also_with_a_lost_gpu(fake: FakeNvml, tmp_path: Path) -> None:
    """Without a home of its own it does not start, and ours may say what it shows."""
    fake.set("gpu.*.processes", [(os.getpid(), 3 * GIB, "compute")])
    fake.set("gpu.3.call.*", f"error {LOST}")
    fake.write()
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with Terminal(["nvtop"], columns=160, lines=50, env={**fake.env(), **home}) as terminal:
        terminal.wait_for("3072MiB")
        assert "Device 0 [NVIDIA H100 80GB HBM3]" in terminal.text()
        terminal.send("q")
        assert terminal.wait() == 0
