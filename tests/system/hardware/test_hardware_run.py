"""`bash tests/gpu` itself: what it needs, what it does with a slice that breaks off, and that it changes nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.scripts import shell_script
from tests.hardware.slices import LIMIT_S, SLICES, module_of
from tests.hardware.sources import smi
from tests.system.hardware.hardware_runs import CHANGES, HARMLESS, ROOT, Done, nothing_was_changed, run
from tests.waiting import wait_until


def start(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "tests/gpu"), *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("without", ["driver", "gpu"])
def test_without_a_gpu_nothing_is_tried(without: str, tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, ranks=False)
    machine.nvml.unset_all("gpu.0")
    machine.nvml.set(*{"driver": ("call.nvmlInit", "error 9"), "gpu": ("count", 0)}[without])
    machine.nvml.write()
    done = run(machine)
    assert (done.code, done.names("agrees") | done.names("differs")) == (3, set())
    assert {(check["slice"], check["name"]) for check in done.results["checks"]} == {
        (name, check) for name in SLICES for check in module_of(name).CHECKS
    }
    said = {"driver": "NVMLError_DriverNotLoaded", "gpu": "NVML lists no GPU"}[without]
    assert all(said in check["why"] for check in done.results["checks"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "nothing"), "'nothing'"),
        (("--minutes", "0"), "above 0"),
        (("--minutes", "nan"), "above 0"),
        (("--minutes", "soon"), "--minutes"),
        (("--min", "3"), "--min"),
        (("values",), "values"),
        (("-o", "/proc/none/here"), "-o /proc/none/here"),
        (("-o", str(ROOT)), "not empty"),
    ],
)
def test_usage(words: tuple[str, ...], says: str) -> None:
    done = start(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and "Traceback" not in done.stderr


def test_the_module_does_the_same(tmp_path: Path) -> None:
    """From anywhere, whatever else is called tests or mltop there."""
    for name in ("tests", "mltop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "--help"], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0 and all(name in done.stdout for name in SLICES)
    done = start("--help", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and all(name in done.stdout for name in SLICES), done.stderr


def test_it_needs_nothing_but_the_checkout_and_a_torch(tmp_path: Path) -> None:
    """A Python into which nothing was ever installed; the fake torch is found by PYTHONPATH."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    done = run(GpuMachine(tmp_path / "machine"), "--only", "values", env={"MLTOP_GPU_PYTHON": str(bare / "bin/python")})
    assert (done.code, done.names("differs")) == (0, set()), done.report
    assert set(module_of("values").CHECKS) - done.names("agrees") == {"fabric.cluster_uuid"}, done.report
    assert set(done.results["pythons"].values()) == {str(bare / "bin/python")}
    (copy,) = (ROOT / "tests/hardware/wheels").glob("nvidia_ml_py-*.whl")
    assert done.results["versions"]["pynvml"] == copy.name.split("-")[1]


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = shell_script(tmp_path / "python", "exit 1")
    done = start(env={"MLTOP_GPU_PYTHON": str(old)})
    assert done.returncode == 2 and f"{old} is no Python ≥ 3.10" in done.stderr


def test_a_slice_that_hangs_costs_no_other(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("does", "at once", "hang")
    done = run(machine, "--minutes", "0.35")
    why = {check["slice"]: check["why"] for check in done.results["checks"]}
    assert done.code == 3 and set(why) == set(SLICES), done.report
    assert re.match(r"it took more than \d+ s", why["values"])
    assert why["throttling"] == "the time given with --minutes is over"
    assert done.names("not tried") >= set(module_of("values").CHECKS)


def test_a_slice_that_is_killed_costs_no_other(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("does", "at once", "kill")
    done = run(machine, "--only", "values")
    assert done.code == 3 and done.names("not tried") == set(module_of("values").CHECKS)
    assert all(check["why"].startswith("it was ended by SIGKILL") for check in done.results["checks"])


def test_a_broken_nvidia_smi_is_told_in_its_own_words(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("fails", "with", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    done = run(machine, "--only", "values")
    assert done.code == 3
    assert {check["why"] for check in done.results["checks"]} == {
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    }


def test_a_field_that_an_older_nvidia_smi_does_not_know_costs_only_itself(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("unknown", "ecc.mode.pending", "")
    done = run(machine, "--only", "values")
    assert done.code == 0, done.report
    assert done.check("ecc.enabled_pending")["outcome"] == "not tried"
    assert done.check("ecc.enabled_pending")["why"] == "this nvidia-smi has no ecc.mode.pending"
    assert done.check("ecc.enabled")["outcome"] == "agrees"


def test_ctrl_c_keeps_what_is_there(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("does", "at once", "hang")
    out = tmp_path / "out"
    process = subprocess.Popen(
        ["bash", str(ROOT / "tests/gpu"), "-o", str(out)],
        env=machine.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(machine.smi.asked, 60, "the first question to nvidia-smi")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    results = json.loads((out / "results.json").read_text())
    assert process.returncode == 130 and "Traceback" not in said, said
    assert results["interrupted"] and {check["slice"] for check in results["checks"]} == set(SLICES)
    assert {check["why"] for check in results["checks"]} == {"the run was interrupted"}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[GpuMachine, Done]:
    machine = GpuMachine(tmp_path_factory.mktemp("machine"))
    return machine, run(machine, "--only", "values", env={"LC_ALL": "C"})


def test_what_is_saved_tells_the_versions(one_run: tuple[GpuMachine, Done]) -> None:
    _, done = one_run
    versions = done.results["versions"]
    assert {"mltop", "python", "kernel", "driver", "nvml", "cuda_driver", "torch", "cuda"} <= set(versions)
    assert (versions["driver"], versions["torch"], versions["cuda"]) == ("580.95.05", "2.9.0+cu128", "12.8")
    assert [gpu["name"] for gpu in done.results["gpus"]] == ["NVIDIA H100 80GB HBM3"]
    lines = [line for line in done.report.splitlines() if " values " in line]
    assert len(lines) == len(done.results["checks"])
    assert all(line.startswith(("agrees ", "differs ", "not tried ")) for line in lines)


def test_a_run_that_changes_something_fails_its_test(one_run: tuple[GpuMachine, Done]) -> None:
    machine, _ = one_run
    called = machine.nvml.counts_path.read_bytes()
    assert b"nvmlDeviceGetPowerUsage\0" in called
    machine.nvml.counts_path.write_bytes(called.replace(b"nvmlDeviceGetPowerUsage\0", b"nvmlDeviceSetPowerUsage\0"))
    with pytest.raises(AssertionError, match="nvmlDeviceSetPowerUsage"):
        nothing_was_changed(machine)
    machine.nvml.counts_path.unlink()
    subprocess.run([machine.smi.bin / "nvidia-smi", "-pm", "1"], env=machine.env(), capture_output=True)
    with pytest.raises(AssertionError, match="-pm"):
        nothing_was_changed(machine)


@pytest.mark.parametrize(
    "words",
    [("-pm", "1"), ("-pl", "300"), ("--gpu-reset",), ("-q", "-lgc", "1000"), ("-mig", "1"), ("dmon", "-f", "x")],
)
def test_nvidia_smi_is_not_asked_for_more(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="change nothing"):
        smi(*words)


def test_no_code_of_it_names_what_changes_something() -> None:
    found = {
        (path.name, name)
        for path in (ROOT / "tests/hardware").rglob("*.py")
        for name in CHANGES.findall(path.read_text(encoding="utf-8"))
    }
    assert {one for one in found if one[1] not in HARMLESS} == set()
    assert CHANGES.search("pynvml.nvmlDeviceSetPowerManagementLimit(handle, 1)")


def test_nvidia_smi_is_started_in_one_place() -> None:
    named = [
        path.name
        for path in (ROOT / "tests/hardware").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == "nvidia-smi"
    ]
    assert named.count("sources.py") == 1
    assert all((ROOT / "tests/hardware" / name).name != "run.py" for name in named)


@pytest.mark.parametrize("name", SLICES)
def test_no_check_is_left_without_a_fault(name: str) -> None:
    faults = import_module(f"tests.system.hardware.faults.{name}").FAULTS
    assert set(faults) == set(module_of(name).CHECKS)
    assert all(fault.lies and fault.also <= set(faults) for fault in faults.values())


def test_every_slice_ends_by_itself() -> None:
    assert LIMIT_S == 9 * 60
    assert all(0 < one.seconds < LIMIT_S and one.purpose and one.needs for one in SLICES.values())
