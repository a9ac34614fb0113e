"""The slice `cost` of `bash tests/gpu` over fakes. What it measures here is a busy machine's: verdicts are made of
figures that are made up.
"""

from __future__ import annotations

import copy
import json
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.agent import sampler
from tests.fakes.gpu_machine import GpuMachine
from tests.hardware import cost_checks as judged
from tests.hardware.cost_checks import CHECKS, EFFECT, EVERY_SECOND, SLOWER, WHEN, Calls, Cost, Usage, Window
from tests.hardware.slices.cost import Plan
from tests.processes import command_of, is_gone
from tests.replays import replay
from tests.system.hardware.faults.cost import FAULTS
from tests.system.hardware.hardware_lies import differing, put_in_record
from tests.system.hardware.hardware_runs import ROOT, run
from tests.waiting import wait_until

# Those of an H100 with a new driver make no calls of their own: batches and counters do it.
SILENT = {"NVML time of mig"}


def figures() -> Cost:
    calls = Calls("", 2, 60, [660, 690], {tier: [0.0002] * 200 for tier in (*EVERY_SECOND, *SLOWER)}, [0.004] * 60)
    rates = (100.0, 99.95, 100.02, 100.01)
    return Cost(
        {when: copy.deepcopy(calls) for when in WHEN},
        {when: Usage("", 30.0, 0.003, 46.5, nvml_mib=17.0) for when in WHEN},
        [Window(number % 4 in (1, 2), rates[number % 4]) for number in range(12)],
        "",
    )


def test_the_whole_command(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, ranks=False)
    done = run(machine, "--only", "cost", "--minutes", "3")
    assert done.code in (0, 1) and {check["name"] for check in done.results["checks"]} == set(CHECKS), done.report
    untried = {check["name"]: check["why"] for check in done.results["checks"] if check["outcome"] == "not tried"}
    # How much the rate of a load on a busy machine varies, nobody knows.
    assert set(untried) - {EFFECT} == SILENT and all(untried.values()), done.report
    assert {f"NVML calls per GPU and second ({when})" for when in WHEN} <= done.names("agrees"), done.report
    saved = json.loads(next(done.directory.glob("fixtures/*/cost.json")).read_text())
    assert {tier for calls in saved["calls"].values() for tier in calls["slower"]} == set(SLOWER) - {"static"}
    assert {tier for calls in saved["calls"].values() for tier in calls["seconds"]} <= {*EVERY_SECOND, *SLOWER}
    assert {check.name for check in replay(next(done.directory.glob("fixtures/*")))} == set(CHECKS)
    assert all(usage["pss_mib"] > 5 > usage["nvml_mib"] for usage in saved["usage"].values())


def test_what_nvml_takes_by_itself_is_not_the_agents() -> None:
    """On an H100 51.5 MiB in all."""
    told = {
        nvml: list(judged.of_usage(Cost(usage={"idle": Usage("", 1.0, 0.0, 51.5, nvml_mib=nvml)}), "idle"))[1]
        for nvml in (None, 1.0, 20.0)
    }
    assert [one.outcome for one in told.values()] == ["not tried", "differs", "agrees"]
    assert "51.5 MiB less 20.0 MiB that NVML takes" in told[20.0].why


def test_a_slow_driver_and_no_torch(tmp_path: Path) -> None:
    """The one differs, the other costs only what needs a load."""
    machine = GpuMachine(tmp_path, ranks=False)
    machine.nvml.set("call.nvmlDeviceGetClockInfo", "block 0.13")  # twice in a poll
    machine.nvml.write()
    nowhere = tmp_path / "nowhere/torch"
    nowhere.mkdir(parents=True)
    (nowhere / "__init__.py").write_text("raise ImportError('libcudart.so is missing')\n")
    done = run(machine, "--only", "cost", "--minutes", "3", env={"PYTHONPATH": str(nowhere.parent)})
    assert (done.code, done.names("differs") >= {"NVML time of a poll (idle)", "NVML time of fast"}) == (1, True)
    under_load = {name for name in CHECKS if name.endswith("(load)")} | {EFFECT}
    assert done.names("not tried") == under_load | SILENT, done.report
    assert all("libcudart.so is missing" in done.check(name)["why"] for name in under_load)


def test_ctrl_c_leaves_nobody_behind(tmp_path: Path) -> None:
    """With an agent and its reader running."""
    machine = GpuMachine(tmp_path, ranks=False)
    before = machine.nvml.path.read_text()
    process = subprocess.Popen(
        ["bash", str(ROOT / "tests/gpu"), "-o", str(tmp_path / "out"), "--only", "cost"],
        env=machine.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: any("probes.agent" in one for one in started_with(machine)), 60, "the agent to run")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    wait_until(lambda: not started_with(machine), what=f"the end of {started_with(machine)}")
    assert machine.nvml.path.read_text() == before


def started_with(machine: GpuMachine) -> list[str]:
    """Commands of processes that have this machine's environment."""
    mark = f"MLTOP_FAKE_NVML={machine.nvml.path}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes() and not is_gone(int(entry.name)):
                found.append(command_of(int(entry.name)))
    return found


def test_no_load_is_put_on_a_gpu_that_somebody_uses(tmp_path: Path) -> None:
    done = run(GpuMachine(tmp_path), "--only", "cost")
    assert (done.code, done.names("not tried")) == (3, set(CHECKS)), done.report
    assert all("somebody else uses this GPU (pid 4000)" in check["why"] for check in done.results["checks"])


def test_nothing_differs_by_itself() -> None:
    checks = list(judged.checks_of(figures()))
    assert {check.name for check in checks if check.outcome == "agrees"} == set(CHECKS), checks


@pytest.mark.parametrize("name", FAULTS)
def test_one_lie_makes_one_check_differ(name: str) -> None:
    record: dict[str, Any] = asdict(figures())
    for lie in FAULTS[name].lies:
        put_in_record(record, lie)
    assert differing(judged.checks_of(Cost.of(record))) == {name} | FAULTS[name].also


def test_what_was_not_measured_is_not_tried() -> None:
    checks = list(judged.checks_of(Cost()))
    assert {check.name for check in checks} == set(CHECKS)
    assert all(check.outcome == "not tried" and check.why for check in checks)


def of_rates(*rates: float, lost: float = 0.0) -> Cost:
    """Windows of a GEMM with these rates if it were alone; the agent takes ``lost`` of it."""
    windows = [
        Window(number % 4 in (1, 2), rate * (1 - lost if number % 4 in (1, 2) else 1))
        for number, rate in enumerate(rates)
    ]
    return Cost(windows=windows, windows_why="")


@pytest.mark.parametrize(
    ("found", "outcome", "says"),
    [
        (of_rates(*[100.0] * 12), "agrees", "0.000 %"),
        (of_rates(*[100.0] * 12, lost=0.004), "agrees", "0.400 %"),
        (of_rates(*[100.0] * 12, lost=0.007), "differs", "0.700 %"),
        # It gets slower all the time, as a GPU does that gets warm.
        (of_rates(*(100 - 0.2 * number for number in range(12))), "agrees", "± 0."),
        (of_rates(*(100 - 0.2 * number for number in range(12)), lost=0.02), "differs", "± 0."),
        # As much up and down as would have to be seen.
        (of_rates(*(100 + 2 * (number % 3) for number in range(12)), lost=0.006), "not tried", "varies too much"),
        # One window in which something else happened.
        (of_rates(*[100.0] * 5, 80.0, *[100.0] * 14, lost=0.001), "agrees", "0.1"),
        (of_rates(100.0, 99.0, 99.0, 100.0), "not tried", "4 windows only"),
    ],
)
def test_what_a_gemm_loses(found: Cost, outcome: str, says: str) -> None:
    check = judged.effect(found)
    assert (check.outcome, says in check.why) == (outcome, True), check


def test_percentiles() -> None:
    seconds = [number / 1000 for number in range(1, 101)]
    assert (judged.milliseconds(seconds, 50), judged.milliseconds(seconds, 99)) == (51.0, 100.0)
    assert judged.milliseconds([0.003], 99) == 3.0


def test_how_long_it_takes_is_a_matter_of_the_time_given() -> None:
    assert Plan.of(500) == Plan()
    assert Plan.of(250).windows < Plan().windows and Plan.of(250).polls == Plan().polls
    assert Plan.of(40).settle_s < 1


def test_the_time_of_a_poll_is_what_the_agent_waits() -> None:
    assert sampler.GPUS_WAIT_S == judged.POLL_MS / 1000
