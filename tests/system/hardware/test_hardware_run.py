"""`bash tests/gpu` itself: what it needs, what it does with a slice that breaks off, and that it changes nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import TORCH, GpuMachine
from tests.fakes.scripts import python_script, shell_script
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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy without environments in it: what it finds beside it is what the test puts there."""
    copy = tmp_path / "checkout"
    for name in ("probes", "tui", ".dev", "tests/hardware", "tests/fixtures"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [ROOT / "tests/gpu", *(ROOT / "tests").glob("*.py")]:
        shutil.copy(path, copy / "tests")
    return copy


def environment(folder: Path, *packages: Path) -> Path:
    """A bare one in which these folders are on the path, as if installed. Its Python."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in packages))
    return folder / "bin/python"


def alone(machine: GpuMachine, python: Path) -> dict[str, str]:
    """No other Python's packages, nor programs, are near."""
    found = {name: text for name, text in machine.env().items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return {**found, "PYTHONPATH": "", "PATH": f"{machine.smi.bin}:{python.parent}:/usr/bin:/bin"}


def test_it_needs_nothing_but_the_checkout_and_a_torch(checkout: Path, tmp_path: Path) -> None:
    """A Python into which nothing was ever installed but torch: what needs mltop's commands says how to have them."""
    (copy,) = (ROOT / "tests/hardware/wheels").glob("nvidia_ml_py-*.whl")
    bare = environment(tmp_path / "bare", TORCH)
    machine = GpuMachine(tmp_path / "machine")
    env = {**alone(machine, bare), "MLTOP_GPU_PYTHON": str(bare)}
    done = run(machine, "--only", "values", "screen", env=env, checkout=checkout)
    assert (done.code, done.names("differs")) == (0, set()), done.report
    untried = {*module_of("values").CHECKS, *module_of("screen").CHECKS} - done.names("agrees")
    assert untried == {"fabric.cluster_uuid", *module_of("screen").CHECKS}, done.report
    assert {done.results["pythons"][name] for name in ("mltop", "torch")} == {str(bare)}
    assert done.results["versions"]["pynvml"] == copy.name.split("-")[1]
    skipped = re.search(
        r"^skipped: screen: no mltop can be started here \(none is installed\): (.*)", done.report, re.M
    )
    assert skipped and skipped[1].startswith("MLTOP=/path/to/mltop bash tests/gpu")


def test_mltop_and_torch_may_be_in_two_pythons(checkout: Path, tmp_path: Path) -> None:
    """mltop with all its packages but torch in an environment of the checkout's, torch in another Python, on PATH.

    mltop is that of its environment, not the checkout's.
    """
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("torch", "mltop", "_mltop")) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    for name in ("probes", "tui"):
        shutil.copytree(ROOT / name, packages / "mltop" / name, ignore=shutil.ignore_patterns("__pycache__"))
    python = environment(checkout / ".venv", packages)
    program = python_script(python.with_name("mltop"), "from mltop.tui.cli import main\nmain()\n", python=python)
    python.with_name("py-spy").symlink_to(Path(sysconfig.get_path("scripts")) / "py-spy")
    torch = environment(tmp_path / "torch", TORCH, packages_with(tmp_path / "nvml", "pynvml.py"))
    machine = GpuMachine(tmp_path / "machine", ranks=False)
    short = ("--only", "stacks", "--minutes", "2.2")
    done = run(machine, *short, env=alone(machine, torch), processes=True, checkout=checkout)
    pythons = done.results["pythons"]
    assert (pythons["program"], pythons["mltop"]) == (str(program), str(python)), done.report
    assert pythons["torch"] in (str(torch), str(torch.with_name("python3")))
    assert pythons["package"] == str(packages / "mltop")
    assert f"{program}, in Python" in done.report.splitlines()[1]
    tried = {"healthy: kind", "collective: culprits", "item: waits in"}
    assert tried <= done.names("agrees"), done.report


def packages_with(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    return folder


def test_an_mltop_that_cannot_be_started_is_named(checkout: Path, tmp_path: Path) -> None:
    old = shell_script(tmp_path / "mltop", "exit 1")
    machine = GpuMachine(tmp_path / "machine", ranks=False)
    env = {**machine.env(), "MLTOP": str(old)}
    done = run(machine, "--only", "screen", env=env, checkout=checkout)
    assert done.code == 3
    (line,) = [line for line in done.report.splitlines() if line.startswith("skipped: ")]
    assert f"no mltop can be started here ({old}: it is no script of a Python environment)" in line


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = shell_script(tmp_path / "python", "exit 1")
    done = start(env={"MLTOP_GPU_PYTHON": str(old)})
    assert done.returncode == 2 and f"{old} is no Python ≥ 3.10" in done.stderr


def test_a_slice_that_hangs_costs_no_other(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    machine.smi.lie("does", "at once", "hang")
    done = run(machine, "--only", "values", "throttling", "--minutes", "0.75")
    why = {check["slice"]: check["why"] for check in done.results["checks"]}
    assert done.code == 3 and set(why) == {"values", "throttling"}, done.report
    assert re.match(r"it took more than \d+ s", why["values"])
    assert re.match(r"it takes 5 s at least, \d s are left of --minutes 0.75", why["throttling"])
    assert re.search(r"^skipped: throttling: it takes 5 s", done.report, re.MULTILINE)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_keeps_what_is_there(number: signal.Signals, tmp_path: Path) -> None:
    """By Ctrl-C, and by `timeout` or a scheduler."""
    process, results = hanging(tmp_path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert results()["interrupted"] and {check["slice"] for check in results()["checks"]} == {"values", "throttling"}
    assert {check["why"] for check in results()["checks"]} == {"the run was interrupted"}


def test_who_is_killed_has_said_what_it_knew(tmp_path: Path) -> None:
    process, results = hanging(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert results()["interrupted"] and {check["slice"] for check in results()["checks"]} == {"values", "throttling"}
    assert {check["why"] for check in results()["checks"]} == {"the run has not come to it"}


def hanging(folder: Path) -> tuple[subprocess.Popen[str], Callable[[], Any]]:
    """A run whose first slice waits for nvidia-smi, and what it has saved."""
    machine = GpuMachine(folder)
    machine.smi.lie("does", "at once", "hang")
    process = subprocess.Popen(
        ["bash", str(ROOT / "tests/gpu"), "-o", str(folder / "out"), "--only", "values", "throttling"],
        env=machine.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(machine.smi.asked, 60, "the first question to nvidia-smi")
    return process, lambda: json.loads((folder / "out/results.json").read_text())


def test_what_a_slice_finds_is_saved_while_it_runs(tmp_path: Path) -> None:
    """Both of cost's first checks come long before its end."""
    machine = GpuMachine(tmp_path, ranks=False)
    process = subprocess.Popen(
        ["bash", str(ROOT / "tests/gpu"), "-o", str(tmp_path / "out"), "--only", "cost"],
        env=machine.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    report = tmp_path / "out/report.txt"
    try:
        found = "agrees     cost        NVML calls per GPU and second (idle)"
        wait_until(lambda: report.exists() and found in report.read_text(), 120, "a check in the report")
        assert process.poll() is None and "the run has not come to it" in report.read_text()
    finally:
        process.terminate()
        process.wait(60)


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
    assert all(0 < one.least <= one.seconds < LIMIT_S and one.purpose and one.needs for one in SLICES.values())
