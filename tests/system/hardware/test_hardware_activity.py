"""The slice `activity` of `bash tests/gpu` over fakes: GPM under known loads, and every check can differ."""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.hardware import activity_checks as judged
from tests.hardware.activity_checks import CHECKS, LOADS, OTHERS, Activity, Under
from tests.hardware.children import NOBODY, rights_of, why_not_as
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.slices.activity import Plan, Watch, take
from tests.once import once
from tests.replays import wrong
from tests.strangers import needs_root
from tests.system.hardware.faults.activity import FAULTS
from tests.system.hardware.hardware_lies import differing, put_in_record
from tests.system.hardware.hardware_runs import Done, run

UUID = "GPU-5a4e0001-0000-4000-8000-000000000000"
AS_OTHER = {name for name in CHECKS if name.endswith(OTHERS)}
# Of each kind of work what it cannot do.
WRONG = {
    "spin": {"busy_percent": 100, "gpm.2": 50, "gpm.5": 30, "gpm.10": 40},
    "host": {"busy_percent": 0, "gpm.2": 80, "gpm.5": 50, "gpm.21": 1000},
    "copy": {"busy_percent": 0, "gpm.5": 60, "gpm.10": 5},
    "memory": {"busy_percent": 0, "gpm.2": 10, "gpm.5": 50, "gpm.10": 5},
    "fp32": {"busy_percent": 0, "gpm.2": 10, "gpm.5": 90, "gpm.10": 95},
    "bursts": {"busy_percent": 0, "gpm.2": 98, "gpm.5": 90},
    "bf16": {"busy_percent": 0, "gpm.2": 20, "gpm.5": 3, "gpm.10": 95, "sm_clock_mhz": 1410},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[str]], Done]:
    """With time enough for everything, and none for taking it slowly; what nvidia-smi was asked."""

    def make(folder: Path) -> tuple[list[list[str]], Done]:
        machine = GpuMachine(folder, ranks=False)
        done = run(machine, "--only", "activity", "--minutes", "3")
        return machine.smi.asked(), done

    return once(tmp_path_factory, "activity", make)


@pytest.fixture(scope="module")
def record(ran: tuple[list[list[str]], Done]) -> dict[str, Any]:
    """What was saved, as if an ordinary user had seen the same."""
    found: dict[str, Any] = json.loads(next(ran[1].directory.glob("fixtures/*/activity-0.json")).read_text())
    found["other"] = copy.deepcopy(found["own"])
    found["other_under"] = copy.deepcopy(found["loads"]["bf16"])
    return found


def test_the_whole_command(ran: tuple[list[list[str]], Done]) -> None:
    asked, done = ran
    assert (done.code, done.names("differs")) == (0, set()), done.report
    assert set(CHECKS) - AS_OTHER <= done.names("agrees"), done.report
    rest = [check for check in done.results["checks"] if check["name"] in AS_OTHER]
    assert len(rest) == len(AS_OTHER)
    assert all(check["outcome"] == "agrees" or check["why"] for check in rest)
    assert any(words[0] == "dmon" for words in asked)
    assert wrong(next(done.directory.glob("fixtures/*"))) == []


def test_where_everything_is_wrong(tmp_path: Path) -> None:
    """In so little time that there is none for what mltop renews slowly, and for what GPU-Util is an average of."""
    machine = GpuMachine(tmp_path, ranks=False)
    machine.smi.lie("query", "utilization.gpu", "50")
    for metric in (2, 5, 10):
        machine.smi.lie("dmon", str(metric), "60")
    env = {"MLTOP_FAKE_TORCH_EFFECTS": json.dumps(WRONG)}
    done = run(machine, "--only", "activity", "--minutes", "1.75", env=env)
    slow = {name for name in CHECKS if any(what in name for what in ("occupancy", "fp32_active", "pcie"))}
    settled = {f"busy ({load})" for load in LOADS} | {"spin: busy over sm_active"}
    # Both ask one NVML, and idle it is in truth.
    same = {name for name in CHECKS if name.endswith("(NVML)") or "(idle)" in name} | {"gpm"}
    assert (done.code, set(CHECKS) - slow - settled - same - AS_OTHER - done.names("differs")) == (1, set()), (
        done.report
    )
    assert "more --minutes" in done.check("sm_occupancy (bf16)")["why"]
    assert "more --minutes" in done.check("busy (bf16)")["why"]


def test_nothing_differs_by_itself(record: dict[str, Any]) -> None:
    checks = list(judged.checks_of(Activity.of(copy.deepcopy(record))))
    assert differing(checks) == set(), [check for check in checks if check.outcome == "differs"]
    assert {check.name for check in checks if check.outcome == "agrees"} == set(CHECKS)


def test_one_lie_makes_one_check_differ(record: dict[str, Any]) -> None:
    others = {}
    for name, fault in FAULTS.items():
        lying = copy.deepcopy(record)
        for lie in fault.lies:
            put_in_record(lying, lie)
        found = differing(judged.checks_of(Activity.of(lying)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def test_what_mltop_does_not_tell_differs_where_nvml_does(record: dict[str, Any]) -> None:
    lying = Activity.of(copy.deepcopy(record))
    for under in (*lying.loads.values(), lying.other_under):
        under.series = {"busy": under.series["busy"]}
    names = [name for name in CHECKS if "_active" in name and "(" in name and ":" not in name]
    told = {check.name: (check.outcome, check.ours) for check in judged.checks_of(lying) if check.name in names}
    assert told == {name: ("not tried" if name.endswith("(NVML)") else "differs", None) for name in names}


def without_gpm(record: dict[str, Any], gap: dict[str, Any], sample_code: int, supported: bool) -> Activity:
    found = Activity.of(copy.deepcopy(record))
    for view in (found.own, found.other):
        view.source, view.gap = None, gap
        view.nvml.sample_code, view.nvml.supported = sample_code, supported
    for under in (*found.loads.values(), found.other_under):
        under.series = {"busy": under.series["busy"]}
        under.gaps = dict.fromkeys((*judged.METRICS, judged.PCIE_RX), gap)
        under.nvml, under.smi_gpm, under.smi_why = {}, {}, ""
    return found


@pytest.mark.parametrize(
    ("kind", "code", "sample_code", "says"),
    [("unsupported", "", 3, "needs Hopper"), ("unknown", "no_permission", 4, "ro")],
)
def test_without_gpm_it_says_why(kind: str, code: str, sample_code: int, says: str, record: dict[str, Any]) -> None:
    why = {"unsupported": "GPM needs Hopper", "unknown": "no permission: root"}[kind]
    gap = {"what": "gpu.0.sm_active", "why": why, "fix": "", "kind": kind, "code": code}
    checks = list(judged.checks_of(without_gpm(record, gap, sample_code, sample_code != 3)))
    agree = {check.name for check in checks if check.outcome == "agrees"}
    assert differing(checks) == set(), [check for check in checks if check.outcome == "differs"]
    assert agree == {name for name in CHECKS if name.startswith("busy")} | {"gpm", f"gpm {OTHERS}"}
    assert all(check.why for check in checks if check.outcome == "not tried")
    assert [says in check.why for check in checks if check.name == "sm_active (bf16)"] == [True]


def test_dcgm_is_too_slow_for_loads_of_some_seconds(record: dict[str, Any]) -> None:
    """Before Hopper, mltop takes what DCGM has."""
    found = Activity.of(copy.deepcopy(record))
    found.own.source, found.own.nvml.supported = "dcgm", False
    (check,) = [check for check in judged.checks_of(found) if check.name == "gpm"]
    assert (check.outcome, check.why) == ("not tried", "mltop has it by dcgm; NVML says not supported")

    class Told(Watch):
        def __init__(self) -> None:
            self.index = 0

        def samples(self, since_at: float = 0.0) -> list[tuple[float, dict[str, Any], dict[str, Any]]]:
            gpu = {"index": 0, "busy": 0.5, "sm_active": 0.25, "activity_source": "dcgm"}
            return [(float(number), gpu, {}) for number in range(30)]

        def taken(self, since_s: float, until_s: float) -> list[dict[str, Any]]:
            return []

    under = Under()
    take(under, Told(), 0.0, 0.0, 30.0, 0.0)
    assert (under.value("busy"), under.value("sm_active")) == (0.5, None)
    assert "DCGM" in under.gaps["sm_active"]["why"]


@pytest.fixture
def public() -> Iterator[Path]:
    """Everybody may read what is in it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def context_of(machine: GpuMachine, python: str = sys.executable) -> Context:
    return Context(machine.directory, time.monotonic() + 300, Pythons(python, sys.executable), Machine(), False)


@pytest.mark.parametrize(
    ("kind", "driver", "call", "state"),
    [
        ("h100", "580", "", "told"),
        ("h100", "580", "error 4", "no permission"),
        ("h100", "580", "error 999", "NVML error 999"),
        ("a100", "535", "", "not supported"),
    ],
)
def test_how_gpm_stands(
    kind: str, driver: str, call: str, state: str, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = GpuMachine(public, ranks=False, kind=kind, driver=driver)
    if call:
        machine.nvml.set("call.nvmlGpmSampleGet", call)
        machine.nvml.write()
    for name, text in machine.env().items():
        monkeypatch.setenv(name, text)
    with Watch(context_of(machine), 0, UUID, 0.12) as watch:
        view = watch.view()
    assert (view.state, view.nvml.state) == (state, state)


@needs_root
def test_as_an_ordinary_user(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the Pythons here one that everybody may run, with what this one has."""
    machine = GpuMachine(public, ranks=False)
    machine.nvml.counts_path.touch()
    machine.nvml.counts_path.chmod(0o666)
    for name, text in machine.env().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(os.path.isabs, sys.path)))
    pythons = [sys.executable, "/usr/bin/python3"]
    contexts = [context_of(machine, python) for python in pythons]
    whys = [why_not_as(context, NOBODY) for context in contexts]
    usable = [context for context, why in zip(contexts, whys, strict=True) if not why]
    if not usable:
        assert all(f"uid {NOBODY} cannot run" in why for why in whys)
        return
    with Watch(usable[0], 0, UUID, 0.12, NOBODY) as watch:
        view = watch.view()
        assert (view.state, view.nvml.state) == ("told", "told")
        assert (rights_of(watch.agent.pid, NOBODY), rights_of(os.getpid(), NOBODY)) == ("none", "some")


def test_how_long_it_takes_is_a_matter_of_the_time_given() -> None:
    assert [Plan.of(left_s) for left_s in (500, 165, 90, 20)] == [
        Plan(0.5, True, 5),
        Plan(0.12, True),
        Plan(0.12, False),
        Plan(0.12, False),
    ]


def test_no_load_is_put_on_a_gpu_that_somebody_uses(tmp_path: Path) -> None:
    done = run(GpuMachine(tmp_path), "--only", "activity")
    assert (done.code, done.names("not tried")) == (3, set(CHECKS)), done.report
    assert all("somebody else uses this GPU (pid 4000)" in check["why"] for check in done.results["checks"])
