"""The slice `throttling` of `bash tests/gpu` over fakes: a GEMM at the power limit, and every check can differ."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.slices import throttling
from tests.hardware.slices.throttling import Loaded
from tests.system.hardware.faults.fault import Lie
from tests.system.hardware.faults.throttling import FAULTS
from tests.system.hardware.hardware_lies import differing, put, put_in_sample
from tests.system.hardware.hardware_runs import run, tell

UUID = "GPU-5a4e0001-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    machine = GpuMachine(tmp_path_factory.mktemp("machine"), ranks=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, text in machine.env().items():
            patch.setenv(name, text)
        pythons = Pythons(sys.executable, sys.executable)
        context = Context(machine.directory, time.monotonic() + 300, pythons, Machine(), False)
        yield throttling.loaded(context, 0, UUID, 2.0)
    assert "energy_mj" in machine.nvml.path.read_text(), "the load has left the scenario whole"


def test_nothing_differs_by_itself(loaded: Loaded) -> None:
    checks = list(throttling.checks_of(copy.deepcopy(loaded)))
    assert differing(checks) == set(), [check for check in checks if check.outcome == "differs"]
    assert {check.name for check in checks if check.outcome == "agrees"} == set(throttling.CHECKS)


def test_one_lie_makes_one_check_differ(loaded: Loaded) -> None:
    others = {}
    for name, fault in FAULTS.items():
        found = differing(throttling.checks_of(with_lies(loaded, fault.lies)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def with_lies(loaded: Loaded, lies: tuple[Lie, ...]) -> Loaded:
    found = copy.deepcopy(loaded)
    for lie in lies:
        if lie.source == "mltop":
            # A counter that stands wrong at the end; what is no counter is wrong all along.
            for one in found.looks[-1:] if lie.name.startswith("throttle_ns.") else found.looks:
                put_in_sample(one.gpu, lie)
            continue
        for one in found.looks:
            put(one.before, lie)
            put(one.after, lie)
    return found


def test_the_whole_command(tmp_path: Path) -> None:
    """nvidia-smi lies about what it can lie about; all else agrees."""
    machine = GpuMachine(tmp_path, ranks=False)
    for fault in FAULTS.values():
        for lie in fault.lies:
            if lie.source != "mltop":
                tell(machine, lie)
    done = run(machine, "--only", "throttling", "--minutes", "0.75")
    lies = {"throttle_reasons", "sm_clock_mhz", "power_w"}
    agrees = set(throttling.CHECKS) - lies
    assert (done.code, done.names("differs"), done.names("agrees")) == (1, lies, agrees), done.report
    assert json.loads(next(done.directory.glob("fixtures/*/throttling-0.json")).read_text())


def test_no_load_is_put_on_a_gpu_that_somebody_uses(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    done = run(machine, "--only", "throttling")
    assert (done.code, done.names("not tried")) == (3, set(throttling.CHECKS)), done.report
    assert all("somebody else uses this GPU (pid 4000)" in check["why"] for check in done.results["checks"])
    assert "sm_clock_mhz = 1410" not in machine.nvml.path.read_text(), "the GEMM has run"


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, ranks=False)
    nowhere = tmp_path / "nowhere/torch"
    nowhere.mkdir(parents=True)
    (nowhere / "__init__.py").write_text("raise ImportError('libcudart.so is missing')\n")
    done = run(machine, "--only", "throttling", env={"PYTHONPATH": str(nowhere.parent)})
    assert (done.code, done.names("not tried")) == (3, set(throttling.CHECKS))
    assert "ImportError: libcudart.so is missing" in done.report
