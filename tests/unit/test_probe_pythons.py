"""Finding a Python that has torch: the order, what each says of itself, and what is taken from a job's environment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.active.environment import JobProcess, job_process, with_devices, with_job
from mltop.probes.active.pythons import NoTorch, ask, candidates, find_torch, unfit
from mltop.probes.model.probe import ProbeDevice
from tests.fakes.probes import torch_folder, torch_python, torchless_python
from tests.fakes.scripts import shell_script

NEVER = threading.Event()


@pytest.fixture(autouse=True)
def _nothing_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "MLTOP_PROBE_PYTHON", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def paths(named: str = "", *jobs: JobProcess) -> list[str]:
    return [candidate.path for candidate in candidates(named, jobs)]


def test_a_named_one_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobProcess(7, "/job/bin/python")
    monkeypatch.setenv("MLTOP_PROBE_PYTHON", "/node/python")
    assert paths("/mine/python", job) == ["/mine/python"]
    assert paths("", job) == ["/node/python"]
    assert candidates("/job/bin/python", [job])[0].job is job  # its libraries belong to it


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/activated")
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    called_bare = JobProcess(7, "python", "/usr/bin/python3.11", ("/job/venv",))
    called_whole = JobProcess(8, "/other/bin/python", "/other/bin/python", ("/conda",))
    rest = ["/activated/bin/python", "/conda/bin/python", sys.executable, "python3"]
    assert paths("") == rest
    assert paths("", called_bare) == ["/job/venv/bin/python", "/usr/bin/python3.11", *rest]
    assert paths("", called_whole) == ["/other/bin/python", "/conda/bin/python", "/activated/bin/python", *rest[2:]]


@pytest.mark.parametrize(
    ("said", "for_gpus", "why"),
    [
        ({"python": "3.9.0", "torch": "2.1", "cuda": "12.1"}, True, ""),
        ({"python": "3.12.1", "torch": "2.1", "hip": "6.1"}, True, ""),
        ({"python": "3.12.1", "torch": "2.1+cpu"}, False, ""),
        ({"python": "3.12.1", "torch": "2.1+cpu"}, True, "its torch 2.1+cpu is built without CUDA"),
        ({"python": "3.12.1"}, False, "torch is not installed"),
        ({"python": "3.8.10", "torch": "2.1"}, False, "it is Python 3.8.10, older than 3.9"),
        ({"python": "3.12.1", "error": "OSError: x"}, False, "its torch cannot be looked at: OSError: x"),
    ],
)
def test_unfit(said: dict[str, str], for_gpus: bool, why: str) -> None:
    assert unfit(said, for_gpus) == why


def test_torch_is_found_and_not_imported(tmp_path: Path) -> None:
    found = find_torch(torch_python(tmp_path), [], True, NEVER)
    assert found is not None
    assert (found.torch, found.cuda, found.hip) == ("2.9.0+cu128", "12.8", None)
    assert found.executable == sys.executable


def test_a_folder_called_torch_is_none(tmp_path: Path) -> None:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    line = 'PYTHONPATH={lib} exec {python} -S "$@"'
    script = shell_script(tmp_path / "python", line, lib=tmp_path / "lib", python=sys.executable)
    said = ask(str(script), os.environ, NEVER, 30)
    assert isinstance(said, dict)
    assert unfit(said, False) == "torch is not installed"


def test_the_first_that_will_do_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without, with_torch = tmp_path / "without", tmp_path / "with"
    (without / "bin").mkdir(parents=True)
    torchless_python(without / "bin")
    torch_python(with_torch)
    monkeypatch.setenv("VIRTUAL_ENV", str(without))
    monkeypatch.setenv("CONDA_PREFIX", str(with_torch))
    found = find_torch("", [], True, NEVER)
    assert found is not None
    assert found.path == f"{with_torch}/bin/python"
    assert found.origin == "activated where the agent was started"


def test_a_named_one_without_torch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(Path(torch_python(tmp_path / "good")).parents[1]))
    script = torchless_python(tmp_path)
    with pytest.raises(NoTorch) as error:
        find_torch(script, [], False, NEVER)
    why = f"no Python with a torch that will do: {script} (named for this probe): torch is not installed"
    assert str(error.value) == why
    assert "--torch-python PATH" in error.value.fix
    assert "MLTOP_PROBE_PYTHON" in error.value.fix


def test_when_none_has_torch_each_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    torchless_python(folder)
    (folder / "python").rename(folder / "python3")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    with pytest.raises(NoTorch) as error:
        find_torch("", [], False, NEVER)
    sentences = str(error.value).removeprefix("no Python with a torch that will do: ").split("; ")
    assert sentences[0].startswith(f"{tmp_path}/gone/bin/python (activated where the agent was started): ")
    assert sentences[0].endswith("not found")
    assert sentences[1:] == [
        f"{folder}/python3 (the agent's own): torch is not installed",
        "python3 (on PATH): torch is not installed",
    ]


def test_one_that_hangs_is_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 600 & wait\n")
    script.chmod(0o755)
    began = time.monotonic()
    assert ask(str(script), os.environ, NEVER, 0.3) == "did not answer within 0.3 s"
    cancelled = threading.Event()
    cancelled.set()
    assert ask(str(script), os.environ, cancelled, 60) == "cancelled"
    assert time.monotonic() - began < 30


def test_start_up_files_may_print(tmp_path: Path) -> None:
    folder = torch_folder(tmp_path)
    (folder / "sitecustomize.py").write_text("print('Welcome')\nprint('no newline', end='')\n")
    said = ask(sys.executable, {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}, NEVER, 30)
    assert isinstance(said, dict)
    assert said["torch"] == "2.9.0+cu128"


VARIABLES = {
    "VIRTUAL_ENV": "/job/venv",
    "LD_LIBRARY_PATH": "/job/lib",
    "PYTHONPATH": "/job/src",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_DEBUG_FILE": "/job/nccl.log",
    "GLOO_SOCKET_IFNAME": "eth0",
    "CUDA_HOME": "/cuda",
    "CUDA_VISIBLE_DEVICES": "3",
    "CUDA_LAUNCH_BLOCKING": "1",
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


@pytest.fixture
def training() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"], env=VARIABLES)
    try:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sleep"):
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_of_a_jobs_environment_only_what_its_libraries_need_is_taken(training: int) -> None:
    job = job_process(training, "/job/venv/bin/python")
    assert job is not None
    assert (job.argv0, job.activated) == ("sleep", ("/job/venv",))
    assert job.variables == {
        name: VARIABLES[name]
        for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME", "CUDA_HOME")
    }
    with_its_python, with_another = with_job(job, True), with_job(job, False)
    assert (with_its_python["PYTHONPATH"], with_its_python["NCCL_IB_HCA"]) == ("/job/src", "mlx5")
    assert with_another.get("PYTHONPATH") != "/job/src"
    assert with_another["NCCL_IB_HCA"] == "mlx5"
    assert "HF_TOKEN" not in with_its_python


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_python_is_not_run() -> None:
    process = subprocess.Popen(["sleep", "600"], user=65534)
    try:
        assert job_process(process.pid, "/home/nobody/venv/bin/python") is None
        assert job_process(1 << 23, None) is None
    finally:
        process.kill()
        process.wait()


def test_devices_are_seen_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PYTHONHOME", "/somewhere")
    devices = [ProbeDevice("GPU-a"), ProbeDevice("MIG-b", kind="mig")]
    environ = with_devices(with_job(None, False), devices)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-b"
    assert "RANK" not in environ
    assert "PYTHONHOME" not in environ
    assert with_devices({}, [ProbeDevice("cpu", kind="cpu")])["CUDA_VISIBLE_DEVICES"] == ""
