"""The slice `stacks` of `bash tests/gpu` over fakes: real processes and py-spy, a torch whose GPU is a fake's."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model import GpuSample
from mltop.probes.model.gpu import GpuProcess
from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.scripts import shell_script
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.jobs import Backend, Case, Job, longest_gap_s
from tests.hardware.loads import sorted_out
from tests.hardware.ours import Mltop
from tests.hardware.signals import Watcher, no_others
from tests.hardware.slices import stacks
from tests.hardware.slices.stacks import Found, checks_of
from tests.once import once
from tests.replays import on_machine, wrong
from tests.system.hardware.faults.stacks import FAULTS
from tests.system.hardware.hardware_lies import differing
from tests.system.hardware.hardware_runs import ROOT, Done, run
from tests.waiting import wait_until

# How long processes stand still, and how much of a core they get, is this machine's: here it is made up.
MEASURED = {"healthy: pause", "healthy: pause (--native)"}
SHORT = ("--only", "stacks", "--minutes", "2.2")  # with more, everything takes longer
ITS_PID = 424242
# Every rank of every job stands in the same all-reduce, says this py-spy.
LYING_PY_SPY = [
    {
        "thread_name": "MainThread",
        "os_thread_id": ITS_PID,
        "frames": [
            {"name": name, "filename": file, "line": 7, "module": None, "locals": []}
            for name, file in (
                ("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py"),
                ("train", "/x/t.py"),
            )
        ],
    }
]
EFFECTS = {
    "bf16": {"busy_percent": 100, "power_mw": 100_000, "gpm.5": 1},
    "spin": {"busy_percent": 90, "power_mw": 400_000, "gpm.2": 0.5, "gpm.5": 5},
}


def one_run(folder: Path, env: dict[str, str]) -> Done:
    return run(GpuMachine(folder / "machine", ranks=False), *SHORT, env=env, processes=True)


def lies(folder: Path) -> dict[str, str]:
    said = folder / "stack.json"
    said.write_text(json.dumps(LYING_PY_SPY))
    return {
        "MLTOP_PY_SPY": str(shell_script(folder / "py-spy", f"sed s/{ITS_PID}/$4/ {{said}}", said=said)),
        "MLTOP_FAKE_TORCH_NCCL": "refuses",
        "MLTOP_FAKE_TORCH_EFFECTS": json.dumps(EFFECTS),
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return once(tmp_path_factory, "stacks", lambda folder: one_run(folder, {}))


@pytest.fixture(scope="module")
def data(done: Done) -> dict[str, Any]:
    """What the run has found, but for what this machine's speed decides."""
    found: dict[str, Any] = json.loads(next(done.directory.glob("fixtures/*/stacks.json")).read_text())
    for look, seconds in (("healthy", 0.004), ("healthy (--native)", 0.02)):
        found["looks"][look].update(pause_s=seconds, usual_s=0.001)
    found["known"]["kernel"]["ranks"]["0"]["main_cpu"] = 0.98
    found["known"]["healthy"]["ranks"]["0"].update(main_cpu=0.3, switches=400.0, calls=400.0)
    return found


def test_the_whole_command_agrees(done: Done) -> None:
    assert done.names("differs") <= MEASURED, done.report
    tried = done.names("agrees") | MEASURED
    assert set(stacks.CHECKS) - tried == {"BUSY_CPU", "BUSY_MAIN_CPU"}, done.report  # the fake's synchronize sleeps
    assert [done.check(f"{case}: culprits")["ours"] for case in stacks.HANGS] == [[], [1], [], [], [], [], [1]]
    saved = next(done.directory.glob("fixtures/*/stacks.json")).read_text()
    assert str(ROOT) not in saved and "job_child.py" in saved, "frames are told without their folders"


def test_all_that_can_lie_differs(tmp_path: Path) -> None:
    """NCCL refuses, too: gloo's ranks are tried all the same."""
    done = one_run(tmp_path, lies(tmp_path))
    alone = ("kernel", "stream", "item", "alone")
    lied = {"healthy: native frames", "dataloader: place", "gloo: culprits", "gloo: place"}
    lied |= {f"{case}: {what}" for case in alone for what in ("place", "waits in")}
    lied |= {"SPINNING_BUSY", "SPINNING_POWER", "SPINNING_TENSOR", "spins (spinning)", "spins (gemm)"}
    assert done.names("differs") - MEASURED == lied, done.report
    assert done.check("gloo: waits in")["outcome"] == "agrees"
    refused = done.check("collective: kind")
    assert refused["outcome"] == "not tried" and "Duplicate GPU detected" in refused["why"]


def test_nothing_differs_by_itself(data: dict[str, Any]) -> None:
    checks = list(checks_of(Found.of(data)))
    assert differing(checks) == set()
    assert {check.name for check in checks if check.outcome == "agrees"} == set(stacks.CHECKS)


def test_one_lie_makes_one_check_differ(data: dict[str, Any]) -> None:
    others = {}
    for name, fault in FAULTS.items():
        bent = copy.deepcopy(data)
        for lie in fault.lies:
            put(bent, lie.name.split("."), json.loads(lie.text))
        found = differing(checks_of(Found.of(bent)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def test_what_was_saved_is_compared_with_the_thresholds_of_today(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "stacks.json").write_text(json.dumps(data))
    assert wrong(tmp_path) == []
    bent = copy.deepcopy(data)
    bent["known"]["collective"]["gpu"]["busy"] = 0.9
    (tmp_path / "stacks.json").write_text(json.dumps(bent))
    assert {text.partition(":")[0] for text in wrong(tmp_path)} == {"SPINNING_BUSY", "spins (spinning)"}


def put(at: Any, path: list[str], value: Any) -> None:
    for name in path[:-1]:
        at = at[int(name)] if isinstance(at, list) else at[name]
    assert path[-1] in at, path
    at[path[-1]] = value


def test_what_was_not_had_says_why() -> None:
    checks = list(checks_of(Found(0, why={"kernel": "rank 0 of the job kernel ended: no memory"})))
    assert {check.outcome for check in checks} == {"not tried"}
    assert {check.why for check in checks if check.name.startswith("kernel")} == {
        "rank 0 of the job kernel ended: no memory"
    }


def test_a_native_dump_that_failed_costs_no_other(data: dict[str, Any]) -> None:
    bent = copy.deepcopy(data)
    del bent["looks"]["healthy (--native)"]
    bent["why"]["healthy"] = "mltop stacks did not end within 90 s"
    checks = {check.name: check for check in checks_of(Found.of(bent))}
    assert checks["healthy: kind"].outcome == "agrees"
    assert checks["healthy: native frames"].why == "mltop stacks did not end within 90 s"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("py-spy is not installed on this node", "pip install py-spy"),
        ("permission denied: this root has no CAP_SYS_PTRACE, as in a container", "start it with --cap-add SYS_PTRACE"),
        ("permission denied: kernel.yama.ptrace_scope is 1", "sudo mltop stacks"),
    ],
)
def test_who_may_not_look_is_told_what_would_help(error: str, fix: str, data: dict[str, Any]) -> None:
    digest = {**data["looks"]["kernel"]["job"]["digests"][0], "error": error, "fix": fix, "frames": []}
    report = {"jobs": [{"verdict": {}, "classes": [], "digests": [digest]}]}
    with pytest.raises(NotTriedError) as reason:
        stacks.of_job(report, FakeJob([digest["pid"]]))  # type: ignore[arg-type]
    assert str(reason.value) == f"{error} ({fix})"


class FakeJob:
    case = "kernel"

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids


def test_no_job_is_put_on_a_gpu_that_somebody_uses() -> None:
    machine = Machine(gpus=[{"index": index, "uuid": f"GPU-{index}"} for index in range(2)])
    used = GpuSample(0, busy=0.0, processes=[GpuProcess(42)])
    free = GpuSample(1, busy=0.0, processes=[])
    found, why = sorted_out(machine.gpus, [used, free])
    assert [gpu["index"] for gpu in found] == [1]
    assert why == {0: "somebody else uses this GPU (pid 42): no load is put on it"}
    assert sorted_out(machine.gpus, [used])[1][1] == "mltop does not list this GPU"


@pytest.mark.parametrize(
    ("given", "free"), [("1", [1]), ("GPU-0", [0]), ("1,0", [0, 1]), ("", []), ("7", []), ("GPU-", [0, 1]), ("-1", [])]
)
def test_loads_are_for_the_gpus_that_we_were_given(
    given: str, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    gpus = [{"index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    found, why = sorted_out(gpus, [GpuSample(index, busy=0.0, processes=[]) for index in range(2)])
    assert [gpu["index"] for gpu in found] == free
    assert all(f"CUDA_VISIBLE_DEVICES={given} leaves this GPU out" in text for text in why.values())


def test_nobody_elses_ranks_are_stopped(tmp_path: Path) -> None:
    """Nor is it tried where we would be taken for one."""
    machine = GpuMachine(tmp_path)
    with pytest.MonkeyPatch.context() as patch, on_machine(machine.root, machine.env()), Mltop() as mltop:
        watcher = Watcher(mltop, 0)
        with pytest.raises(NotTriedError, match=r"training runs on this machine \(pid 4000\)"):
            no_others(watcher)
        patch.setenv("RANK", "0")
        with pytest.raises(NotTriedError, match="env -u RANK"):
            no_others(watcher)


def test_the_longest_gap_is_that_of_a_time() -> None:
    steps = [0.0, 1.0, 1.1, 1.2, 5.0, 5.1]
    assert longest_gap_s(steps, 1.05, 1.15) == pytest.approx(0.1)
    assert longest_gap_s(steps, 2.0, 3.0) == pytest.approx(3.8)
    assert longest_gap_s([], 0.0, 1.0) is None


def test_the_job_is_one_of_the_real_torch(tmp_path: Path) -> None:
    """But for CUDA: its ranks, collectives, steps and workers; all have ended with it."""
    pids = with_real_torch(tmp_path)
    assert len(pids) == 3
    wait_until(lambda: not any(map(alive, pids)), what="the end of all ranks")


def with_real_torch(folder: Path) -> list[int]:
    context = Context(folder, time.monotonic() + 120, Pythons(sys.executable, sys.executable), Machine(), False)

    def job(case: Case, ranks: int, backend: Backend) -> Job:
        return Job(context, case, [""] * ranks, backend, device="cpu")

    with job("collective", 2, "gloo") as stuck, job("dataloader", 1, "") as loading:
        assert [len(stuck.steps(rank)) for rank in (0, 1)] == [3, 3]
        wait_until(loading.steps, what="the first step")
        stuck.check_alive()
        loading.check_alive()
        return [*stuck.pids, *loading.pids]


def test_a_job_ends_with_who_started_it(tmp_path: Path) -> None:
    """Its workers, too."""
    machine = GpuMachine(tmp_path, ranks=False)
    code = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / ".dev")!r}]
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.jobs import Job
from pathlib import Path
context = Context(Path("/"), time.monotonic() + 60, Pythons("", sys.executable), Machine(), False)
uuid = "GPU-5a4e0001-0000-4000-8000-000000000000"
with Job(context, "dataloader", [uuid]) as job:
    children = Path(f"/proc/{{job.pids[0]}}/task/{{job.pids[0]}}/children").read_text().split()
    print(job.pids[0], *children, flush=True)
    time.sleep(60)
"""
    env = {**machine.env(), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) >= 2 and all(map(alive, pids))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, pids)), what="the end of the rank and its worker")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")
