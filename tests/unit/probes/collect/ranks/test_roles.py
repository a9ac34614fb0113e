"""What kind of program a command line is, and which interpreter runs it."""

from __future__ import annotations

import pytest

from mltop.probes.collect.ranks.roles import interpreter, looks_like_python, role_of

PY = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("role", "exe", "command"),
    [
        ("python", PY, "/venv/bin/python train.py --epochs 3"),
        ("python", PY, "python -u -W ignore -X dev -m train.pipeline"),
        ("python", PY, "python -m pipeline.train"),
        ("python", PY, "python -m wandbish"),
        ("python", PY, "python /home/u/.conda/envs/x/bin/train.py"),
        ("python", PY, "python -m mltop.probes.demo.job"),
        ("python", PY, "ray::TrainWorker"),
        ("python", "/opt/pypy/bin/pypy3", "pypy3 train.py"),
        ("python", "/usr/bin/python3.11 (deleted)", "python train.py"),
        ("python", "/usr/bin/python3.13t", "python3.13t train.py"),
        ("launcher", PY, "/venv/bin/python /venv/bin/torchrun --nproc-per-node 8 train.py"),
        ("launcher", PY, "python -um torch.distributed.run train.py"),
        ("launcher", PY, "python -mtorch.distributed.launch train.py"),
        ("launcher", PY, "python /v/lib/python3.11/site-packages/torch/distributed/run.py train.py"),
        ("launcher", PY, "python -u -m deepspeed.launcher.launch --world_info=e30= train.py"),
        ("launcher", PY, "python /venv/bin/deepspeed train.py"),
        ("launcher", PY, "python /venv/bin/accelerate launch train.py"),
        ("launcher", PY, "/opt/conda/bin/python /opt/conda/bin/conda run -n x python train.py"),
        ("launcher", "/usr/bin/srun", "srun python train.py"),
        ("launcher", "/usr/sbin/slurmstepd", "slurmstepd: [4711.0]"),
        ("launcher", "/usr/bin/orterun", "mpirun -np 8 python train.py"),
        ("wrapper", "/usr/local/bin/uv", "uv run train.py"),
        ("wrapper", "/usr/bin/time", "time python train.py"),
        ("wrapper", "/usr/libexec/singularity/bin/starter-suid", "Singularity runtime parent"),
        ("worker", PY, "python -c from multiprocessing.resource_tracker import main;main(5)"),
        ("worker", PY, "python /v/torch/_inductor/compile_worker/__main__.py --pickler=x"),
        ("shell", "/usr/bin/bash", "-bash"),
        ("shell", "/bin/busybox", "sh -c python train.py"),
        ("shell", "/usr/bin/dash", "sh -c python train.py"),
        ("tool", PY, "/venv/bin/python /venv/bin/mltop"),
        ("tool", PY, "python -m mltop"),
        ("tool", PY, "python -m mltop.probes.agent.main"),
        ("tool", PY, "python -c import sys;p='/home/u/.cache/mltop/x'"),
        ("tool", PY, "python /home/u/.cache/mltop/0123/agent.pyz"),
        ("tool", "/venv/bin/py-spy", "py-spy dump --pid 1"),
        ("tool", "/usr/bin/nvidia-smi", "nvidia-smi dmon"),
        ("other", "/opt/nccl-tests/all_reduce_perf", "./all_reduce_perf -b 8"),
        ("other", None, ""),
    ],
)
def test_role(role: str, exe: str | None, command: str) -> None:
    argv = command.split() if " -c " not in command else [*command.split(" ", 2)]
    assert role_of(argv, exe, "comm") == role


def test_data_loader_workers_are_told_by_their_thread_name() -> None:
    assert role_of(["python", "train.py"], PY, "pt_data_worker") == "worker"


def test_interpreter_prefers_the_virtual_environments_path() -> None:
    assert interpreter(["/venv/bin/python", "train.py"], PY) == "/venv/bin/python"
    assert interpreter(["python", "train.py"], PY) == PY
    assert interpreter(["ray::Worker"], PY + " (deleted)") == PY
    assert interpreter(["python"], None) == "python"
    assert interpreter(["./all_reduce_perf"], "/opt/all_reduce_perf") is None


def test_scripts_of_the_operating_system_are_nobodys_training() -> None:
    assert looks_like_python(["/usr/bin/python3", "train.py"], None, "python3")
    assert looks_like_python([], None, "python3")
    assert not looks_like_python(["/usr/bin/python3", "/usr/bin/networkd-dispatcher"], None, "networkd-dispat")
    assert not looks_like_python(["nginx"], None, "nginx")
